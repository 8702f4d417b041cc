"""Factored gradients and their products equal one backward pass per example, in float64."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clew.influence.factors import Factors, inner_products
from clew.influence.kernel import FactoredGradients, InfluenceError, example_gradients, squared_norm
from clew.training.task import LossSum, Task
from tests.oracles.plain_tracin import influence_by_parameter, tracin_reference


@dataclass
class Pair:
    x: Tensor
    y: Tensor

    @property
    def num_examples(self) -> int:
        return len(self.x)

    @property
    def count(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Self:
        return type(self)(self.x.to(device), self.y.to(device))

    def pin_memory(self) -> Self:
        return type(self)(self.x.pin_memory(), self.y.pin_memory())

    def units(self) -> dict[str, int]:
        return {"examples": len(self.x)}

    def describe(self) -> str:
        return "pairs"


@dataclass
class Examples:
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: np.ndarray) -> Pair:
        return Pair(self.x[indices], self.y[indices])


class SmallTask(Task[Pair]):
    """Regression for float inputs, next-token prediction for integer inputs."""

    kind = "test"
    dataset = "random"
    data_fingerprint = "0"

    def __init__(self, model: nn.Module, examples: Examples) -> None:
        self.model, self.examples = model, examples

    def describe(self) -> dict[str, str]:
        return {}

    def build_model(self) -> nn.Module:
        return self.model

    def train_examples(self) -> Examples:
        return self.examples

    def loss(self, model: nn.Module, batch: Pair) -> LossSum:
        return LossSum(self.example_losses(model, batch).sum(), batch.count)

    def example_losses(self, model: nn.Module, batch: Pair) -> Tensor:
        out = model(batch.x)
        if batch.y.dtype == torch.long:
            return F.cross_entropy(out.mT, batch.y, reduction="none").sum(1)
        return (out - batch.y).square().flatten(1).sum(1)

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        return {}

    def write_artifacts(self, folder: Path) -> None:
        pass


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.gain = nn.Parameter(torch.rand(7) + 0.5)
        self.second = nn.Linear(7, 3, bias=False)
        self.shift = nn.Parameter(torch.randn(1, 3))
        self.turned = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True) * self.gain
        x = 1.0 / (1.5 + self.second(x).square()) + self.shift
        return (x @ self.turned) @ self.turned.T


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding="same")
        self.strided = nn.Conv2d(4, 6, (2, 3), stride=2, dilation=(1, 2), padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 6)
        self.grouped = nn.Conv2d(6, 6, 2, groups=3)
        self.batch = nn.BatchNorm2d(6)
        self.along = nn.Conv1d(6, 5, 2, stride=1, padding=1)
        self.scale = nn.Parameter(torch.rand(5, 1) + 0.5)
        self.head = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x), inplace=True)
        x = F.relu(self.norm(self.strided(x)), inplace=True)
        x = F.relu(self.batch(self.grouped(x)), inplace=True)
        x = F.relu(self.along(x.flatten(2))) * self.scale
        return self.head(x.flatten(1))


class TiedSequence(nn.Module):
    """Embedding tied to the output layer, positions, a recurrence with a plain parameter."""

    def __init__(self, vocabulary: int = 6, dim: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.position = nn.Parameter(torch.randn(1, 8, dim) * 0.1)
        self.segment = nn.Embedding(8, dim)
        self.decay = nn.Parameter(torch.randn(dim))
        self.mix = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.root = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.token(ids) + self.position[:, :length]
        x = x + self.segment(torch.arange(length)) + F.embedding(ids.flip(1), self.token.weight)
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(length):
            state = torch.sigmoid(self.decay) * state + self.mix(x[:, t])
            states.append(state)
        hidden = torch.stack(states, 1).flatten(0, 1)
        hidden = self.root(torch.tanh(self.norm(hidden)))
        return self.head(hidden).unflatten(0, (-1, length))


class WithGru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x[:, None])[0][:, -1])


class Doubler(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Hidden(nn.Module):
    """A custom function uses one parameter alone, and another one that a linear layer uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.rand(3) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = Doubler.apply(self.linear(x), self.scale)
        return Doubler.apply(x, self.linear.bias)


def task_for(name: str) -> tuple[SmallTask, nn.Module]:
    torch.manual_seed(0)
    if name == "sequence":
        model: nn.Module = TiedSequence().double()
        ids = torch.randint(0, 6, (9, 5))
        return SmallTask(model, Examples(ids, torch.randint(0, 6, (9, 5)))), model
    if name == "conv":
        model, x = ConvNet().double(), torch.randn(9, 2, 7, 8, dtype=torch.float64)
        y = torch.randn(9, 2, dtype=torch.float64)
    else:
        model = {"mlp": Mlp, "gru": WithGru, "hidden": Hidden}[name]().double()
        x = torch.randn(9, 5, dtype=torch.float64)
        y = torch.randn(9, 3, dtype=torch.float64)
    model.train()
    model(x)  # running statistics away from 0 and 1, lazy shapes
    return SmallTask(model.eval(), Examples(x, y)), model


BOTH = ("weight", "bias")
NETWORKS = ["mlp", "conv", "sequence", "gru", "hidden"]


def assert_same(value: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert (value - expected).abs().max() <= tolerance * expected.abs().max().clamp_min(1e-30)


def by_part(train: Factors, test: Factors) -> dict[str, Tensor]:
    return {name: inner_products(train[name], test[name]) for name in train}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_agrees_with_backward_passes(name):
    task, model = task_for(name)
    gradients = FactoredGradients(task, model, task.examples)
    train = task.examples.batch(np.arange(6))
    test = task.examples.batch(np.array([6, 7, 8, 0]))
    ours = by_part(gradients(train), gradients(test))
    a, b = example_gradients(task, model, train), example_gradients(task, model, test)
    reference = influence_by_parameter(a, b)
    assert list(ours) == list(reference)
    for parameter, expected in reference.items():
        assert_same(ours[parameter], expected)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in a.values()]).sum(0)
    assert_same(squared_norm(gradients(train)), norms)
    total = torch.stack(list(ours.values())).sum(0)
    assert_same(0.5 * total, tracin_reference(task, [(model, 0.2), (model, 0.3)], train, test))
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", {"turned"}),
        ("conv", {f"{name}.{kind}" for name in ("conv", "grouped", "along") for kind in BOTH}),
        ("sequence", {"position", "segment.weight", "decay", "root.weight"}),
        (
            "gru",
            {f"gru.{kind}_{of}_l0" for kind in BOTH for of in ("ih", "hh")},
        ),
        ("hidden", {"scale", "linear.bias"}),
    ],
)
def test_explicit_gradients_are_said(name, expected):
    task, model = task_for(name)
    assert set(FactoredGradients(task, model, task.examples).explicit_parameters) == expected


def test_result_does_not_depend_on_the_batch():
    task, model = task_for("sequence")
    gradients = FactoredGradients(task, model, task.examples)
    test = gradients(task.examples.batch(np.arange(3)))
    whole = by_part(gradients(task.examples.batch(np.arange(9))), test)
    for size in (1, 5):
        pieces = [
            by_part(gradients(task.examples.batch(np.arange(9)[i : i + size])), test)
            for i in range(0, 9, size)
        ]
        for name, expected in whole.items():
            assert_same(torch.cat([piece[name] for piece in pieces], 1), expected)


def test_selected_parameters_only():
    task, model = task_for("mlp")
    gradients = FactoredGradients(
        task, model, task.examples, select=lambda name: name.startswith("second")
    )
    assert gradients.parts == ("second.weight",)
    assert list(gradients(task.examples.batch(np.arange(2)))) == ["second.weight"]
    with pytest.raises(InfluenceError):
        FactoredGradients(task, model, task.examples, select=lambda name: False)


def test_uncovered_parameter_is_named():
    task, model = task_for("mlp")
    model.register_parameter("forgotten", nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    with pytest.raises(InfluenceError):
        FactoredGradients(task, model, task.examples)
    model.forgotten.requires_grad_(False)
    assert "forgotten" not in FactoredGradients(task, model, task.examples).parts


def test_wrong_task_is_detected():
    class WrongTask(SmallTask):
        def example_losses(self, model: nn.Module, batch: Pair) -> Tensor:
            losses = super().example_losses(model, batch)
            return losses / len(losses)

        def loss(self, model: nn.Module, batch: Pair) -> LossSum:
            return LossSum(super().example_losses(model, batch).sum(), batch.count)

    task, model = task_for("mlp")
    with pytest.raises(InfluenceError):
        FactoredGradients(WrongTask(model, task.examples), model, task.examples)


def test_coupled_examples_are_detected():
    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return x - x.mean(0)

    task, _ = task_for("mlp")
    model = Coupled().double()
    with pytest.raises(InfluenceError):
        FactoredGradients(SmallTask(model, task.examples), model, task.examples)


def test_shuffled_examples_are_detected():
    class Shuffled(Examples):
        def batch(self, indices: np.ndarray) -> Pair:
            return super().batch((indices + len(indices)) % len(self))

    task, model = task_for("mlp")
    with pytest.raises(InfluenceError):
        FactoredGradients(task, model, Shuffled(task.examples.x, task.examples.y))
