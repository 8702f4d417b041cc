"""A small task with the difficulties of real ones: dropout, weighted rows, ragged batches."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer
from clew.training.task import LossSum
from clew.training.trainer import Trainer
from tests.memory_tracker import MemoryTracker


@dataclass(frozen=True)
class ToyBatch:
    inputs: Tensor
    targets: Tensor
    weights: Tensor
    ids: Tensor

    @property
    def num_examples(self) -> int:
        return len(self.ids)

    @property
    def count(self) -> int:
        return int(sum(self.weights.tolist()))  # a number even where sums are fake tensors

    def to(self, device: torch.device) -> Self:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def pin_memory(self) -> Self:
        return replace(self, inputs=self.inputs.pin_memory(), targets=self.targets.pin_memory())

    def units(self) -> dict[str, int]:
        return {"examples": self.num_examples}

    def describe(self) -> str:
        return f"examples {self.ids.tolist()}"


class ToyExamples:
    """Rows count one to three times in the loss, so that counts differ from numbers of rows."""

    def __init__(self, num_examples: int, poison: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(num_examples, 6, generator=generator)
        self.targets = self.inputs.sum(dim=1, keepdim=True).sin()
        self.weights = 1.0 + torch.arange(num_examples) % 3
        if poison is not None:
            self.inputs[poison] = float("nan")
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: np.ndarray) -> ToyBatch:
        ids = torch.from_numpy(indices)
        self.drawn.extend(indices.tolist())
        return ToyBatch(self.inputs[ids], self.targets[ids], self.weights[ids], ids)


class ToyModel(nn.Module):
    def __init__(self, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.norm(self.first(inputs)))))


class ToyTask:
    kind = "toy"
    dataset = "toy"
    data_fingerprint = "0" * 16

    def __init__(
        self,
        num_examples: int = 37,
        dropout: float = 0.0,
        batch_norm: bool = False,
        poison: int | None = None,
        scores: list[float] | None = None,
    ) -> None:
        self.dropout, self.batch_norm = dropout, batch_norm
        self.examples = ToyExamples(num_examples, poison)
        self.losses: list[float] = []
        self.scores = scores

    def describe(self) -> dict[str, str]:
        return {}

    def build_model(self) -> nn.Module:
        return ToyModel(self.dropout, self.batch_norm)

    def has_examples(self, split: str) -> bool:
        return True

    def train_examples(self) -> ToyExamples:
        return self.examples

    def example_losses(self, model: nn.Module, batch: ToyBatch) -> Tensor:
        error = model(batch.inputs).float() - batch.targets
        return error.square().squeeze(1) * batch.weights

    def loss(self, model: nn.Module, batch: ToyBatch) -> LossSum:
        total = self.example_losses(model, batch).sum()
        if not isinstance(total, FakeTensor):
            self.losses.append(float(total.detach()))
        return LossSum(total, batch.count)

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        if self.scores is not None:
            return {f"{split}/mrr": self.scores.pop(0)}
        everything = self.examples.batch(np.arange(len(self.examples)))
        loss = self.example_losses(model, everything).mean()
        return {f"{split}/mrr": float(1.0 / (1.0 + loss))}

    def write_artifacts(self, folder: Path) -> None:
        (folder / "names.txt").write_text("toy\n")


def toy_config(**overrides: Any) -> RunConfig:
    defaults = {
        "training.batch_size": 8,
        "training.num_epochs": 3,
        "training.log_every_steps": 1,
        "training.checkpoint_frequency": 1,
        "training.device": "cpu",
        "tracking.log_mfu": False,
    }
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return from_mapping({"data": {"name": "umls"}}, defaults | named)


@pytest.fixture
def config() -> Any:
    return toy_config


@pytest.fixture
def toy_task() -> type[ToyTask]:
    return ToyTask


@pytest.fixture
def make_trainer(tmp_path: Path) -> Any:
    """Return a function that builds trainers for the toy task, each with its own folder."""
    made = 0

    def make(task: ToyTask | None = None, **overrides: Any) -> Trainer[Any]:
        nonlocal made
        made += 1
        settings = toy_config(**overrides)
        return build_trainer(
            settings,
            task or ToyTask(),
            MemoryTracker(),
            device=torch.device("cpu"),
            world=World(),
            folder=tmp_path / f"run-{made}",
            origin=Manifest(0, 0, 0.0, "toy", {}, "hash", "0" * 16),
            keep_all_checkpoints=True,
            goes_on_with="--resume RUN",
        )

    return make
