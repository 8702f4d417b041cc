"""Tracing a continuation to training windows: plain gradients, and a text with a secret."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.load import from_mapping
from clew.errors import UsageError
from clew.influence.window_tracer import WindowTracer
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokens import continuation_batch
from clew.training.checkpoints import load_model
from clew.training.distributed import World
from clew.training.manifest import Manifest, list_checkpoints
from clew.training.setup import build_trainer
from clew.workflows.subjects import build_task
from tests.memory_tracker import MemoryTracker

CPU = torch.device("cpu")
SECRET_WINDOW = 20
LINES = [f"{i % 7} green bottles on the wall\n"[:24].ljust(24, ".") for i in range(60)]
LINES[SECRET_WINDOW] = "the password is zwieback"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModeling, Path]:
    """Train a small model, with two checkpoints, on bottles and one line with a secret."""
    folder = tmp_path_factory.mktemp("secret")
    (folder / "corpus.txt").write_text("".join(LINES))
    sizes = {"d_model": 32, "n_layers": 2, "num_eigenstates": 8, "max_seq_len": 24}
    config = from_mapping(
        {
            "data": {
                "kind": "tokens",
                "dataset": str(folder / "corpus.txt"),
                "packed": str(folder / "packed"),
                "stride": 12,
            },
            "model": {"kind": "eigenstate_lm"} | sizes,
            "optimizer": {"kind": "adamw", "learning_rate": 0.01},
            "training": {"num_epochs": 4, "batch_size": 4, "checkpoint_frequency": 2},
            "tracking": {"log_mfu": False},
        }
    )
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    build_trainer(
        config,
        task,
        MemoryTracker(),
        device=CPU,
        world=World(),
        folder=folder / "run",
        origin=Manifest(0, 0, 0.0, task.kind, {}, "hash", task.data_fingerprint),
        keep_all_checkpoints=True,
    ).train()
    return task, folder / "run" / "checkpoints"


def explain(trained: tuple[LanguageModeling, Path], **options: Any) -> Any:
    task, folder = trained
    windows = task.train_examples().without_overlap()
    tracer = WindowTracer(task, windows, list_checkpoints(folder), device=CPU, **options)
    test = continuation_batch(task.splits.tokenizer, "the password is", " zwieback")
    (explanation,) = tracer.explain([test], top_k=5)
    return tracer, test, explanation


@pytest.fixture(scope="module")
def explained(trained: tuple[LanguageModeling, Path]) -> Any:
    return explain(trained)


def test_the_window_with_the_secret_is_the_first_proponent(trained: Any, explained: Any):
    tracer, _, explanation = explained
    assert explanation.proponents.train[0, 0] == SECRET_WINDOW
    assert explanation.proponents.influence[0, 0] > 3 * explanation.proponents.influence[0, 1]
    window = tracer.windows.batch(np.array([SECRET_WINDOW])).tokens[0, :-1].numpy()
    assert trained[0].splits.tokenizer.decode(window) == LINES[SECRET_WINDOW]
    assert (explanation.opponents.influence < 0).all()


def test_scores_are_the_sum_over_checkpoints_of_plain_gradients(explained: Any):
    tracer, test, explanation = explained
    expected = 0.0
    for record, weight in zip(tracer.checkpoints, tracer.weights, strict=True):
        model = tracer.task.build_model().eval()
        load_model(record.path, model)
        parameters = list(model.parameters())
        gradients = [
            torch.autograd.grad(tracer.task.loss(model, batch).total, parameters)
            for batch in (tracer.windows.batch(np.array([SECRET_WINDOW])), test)
        ]
        products = [(a * b).sum() for a, b in zip(*gradients, strict=True)]
        expected += weight * float(torch.stack(products).sum())
    assert explanation.proponents.influence[0, 0] == pytest.approx(expected, rel=1e-4)
    parts = explanation.proponents.by_part[:, 0, 0].sum()
    assert parts == pytest.approx(explanation.proponents.influence[0, 0], rel=1e-5)


def test_the_last_layers_alone_may_count(trained: Any):
    _, _, explanation = explain(trained, num_last_layers=2)
    assert explanation.parts == ("blocks.1.contract", "norm")


def test_only_the_continuation_counts(trained: Any):
    task, _ = trained
    batch = continuation_batch(task.splits.tokenizer, "ab", "cde")
    assert batch.counted is not None
    assert batch.counted.tolist() == [[False, True, True, True]]
    assert batch.count == 3
    model = task.build_model().eval()
    from clew.language_modeling.loss import token_losses

    losses = token_losses(model(batch.inputs), model.embedding.weight, batch.targets.contiguous())
    torch.testing.assert_close(task.loss(model, batch).total, losses[0, 1:].sum())
    for prompt, continuation in (("", "x"), ("x", "")):
        with pytest.raises(UsageError):
            continuation_batch(task.splits.tokenizer, prompt, continuation)
