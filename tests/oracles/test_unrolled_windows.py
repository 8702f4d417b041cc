"""The unrolled score of text and of frames against central differences of whole retrainings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.influence.linearization import ExampleFacts
from clew.influence.unrolling import Unrolling
from clew.training.replay import Replay
from clew.training.task import LossSum
from clew.workflows.subjects import build_task
from tests.image_sequences.sequence_files import sequence_columns
from tests.oracles.test_unrolled import train_on
from tests.workflows.trained import sequence_config, text_config

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
STEP = 1e-5


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Weighted:
    """A task, and its training examples, with a weight for the loss of each example."""

    def __init__(self, task, weights: Tensor) -> None:
        self.task, self.weights, self.examples = task, weights, np.arange(0)

    def __getattr__(self, name: str):
        return getattr(self.task, name)

    def __len__(self) -> int:
        return len(self.weights)

    def train_examples(self):
        return self

    def batch(self, indices: np.ndarray):
        self.examples = indices
        return self.task.train_examples().batch(indices)

    def loss(self, model: nn.Module, batch) -> LossSum:
        losses = self.task.example_losses(model, batch) * self.weights[self.examples]
        return LossSum(losses.sum(), batch.count)


def text(folder: Path, **settings: object) -> RunConfig:
    return text_config(folder, **SHORT, **settings)


def frames(folder: Path, **settings: object) -> RunConfig:
    columns = sequence_columns(groups=3, frames_in_group=10)
    return sequence_config(folder, columns, **SHORT, **settings)


SHORT = {"training__device": "cpu"}
CASES: dict[str, tuple[Callable[..., RunConfig], dict[str, object]]] = {
    "text": (text, {}),
    "text without an average": (text, {"training__ema_decay": None}),
    "gated transitions": (text, {"model__transition": "gated"}),
    "documents, filters, dropout": (
        text,
        {
            "model__reset_at_documents": True,
            "model__convolution_width": 3,
            "model__dropout": 0.1,
            "model__further_tokens": 1,
        },
    ),
    "frames, transformer": (frames, {"model__architecture": "transformer"}),
    # With noise on pixels, its central differences change with the step, by up to 1 %.
    "frames, ssm": (frames, {"model__architecture": "ssm", "data__pixel_noise": 0.0}),
    "frames, gnn": (frames, {"model__architecture": "gnn"}),
    "frames, cnn": (frames, {"model__architecture": "cnn"}),
    "frames recomputed": (frames, {"optimizations__use_gradient_checkpointing": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_influence_is_the_change_of_a_retraining(name: str, tmp_path: Path) -> None:
    configure, settings = CASES[name]
    config = configure(tmp_path, **settings)
    task = build_task(config)
    test, count = task.train_examples().batch(np.array([1])), len(task.train_examples())

    def objective(model: nn.Module) -> Tensor:
        return task.example_losses(model, test).sum()

    def trained(name: str, weights: Tensor):
        return train_on(config, Weighted(task, weights), tmp_path / name)

    def loss_after(name: str, weights: Tensor) -> float:
        trainer = trained(name, weights).trainer
        if config.training.ema_decay is not None:
            for key, value in trainer.average.tensors().items():
                dict(trainer.model.named_parameters())[key].data.copy_(value)
        return float(objective(trainer.model.eval()).detach())

    run = trained("run", torch.ones(count))
    replay = Replay(config, run.task, run.records, CPU)
    found = Unrolling(replay, ExampleFacts(task), 1e12).explain([objective]).sum((0, 1))
    for fact in (0, 1, count // 2):
        up, down = (
            loss_after(f"{fact}{sign}", torch.ones(count).index_fill(0, torch.tensor(fact), weight))
            for sign, weight in (("+", 1 + STEP), ("-", 1 - STEP))
        )
        assert found[fact] == pytest.approx(-(up - down) / (2 * STEP), rel=1e-5, abs=1e-8)
