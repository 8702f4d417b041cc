"""Weights of the training facts in the loss of a step.

Every fact has a weight w = 1. The loss is linear in each weight: w = 1 gives the loss that the
model was trained with, and w = 0 the loss without the fact, which keeps its place in the batch.
"""

from dataclasses import dataclass
from typing import Generic, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.training.task import B, Task


@dataclass(frozen=True, eq=False)
class WeightedLoss:
    """A microbatch's summed loss as a function of the weights of the facts in it."""

    total: Float[Tensor, ""]
    weight: Float[Tensor, "entry"]
    """A leaf of ones that requires gradients."""
    fact: Int[np.ndarray, "entry"]
    """Fact of each weight; if a fact has several weights, their gradients are added."""


@runtime_checkable
class Facts(Protocol[B]):  # type: ignore[misc]  # one type of batch, as in Task
    """The training facts of a task."""

    def __len__(self) -> int:
        """Return the number of facts."""
        ...

    def loss(self, model: nn.Module, batch: B, examples: np.ndarray) -> WeightedLoss:
        """Return the twice differentiable loss of a batch of the examples with these indices."""
        ...


class ExampleFacts(Generic[B]):
    """Facts of any task with `example_losses`: every training example is a fact."""

    def __init__(self, task: Task[B]) -> None:
        self.task = task

    def __len__(self) -> int:
        return len(self.task.train_examples())

    def loss(self, model: nn.Module, batch: B, examples: np.ndarray) -> WeightedLoss:
        losses = self.task.example_losses(model, batch)
        weight = torch.ones_like(losses, requires_grad=True)
        return WeightedLoss((weight * losses).sum(), weight, examples)
