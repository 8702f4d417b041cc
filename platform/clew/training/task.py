"""The seam between what is learned and how: tasks, their batches and their losses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from clew.training.loaders import Batch, ExampleSource

B = TypeVar("B", bound=Batch)


@dataclass(frozen=True)
class LossSum:
    """A loss as a sum and what it is divided by, so that any grouping of examples agrees.

    `total` is a float32 (or float64) scalar; `count` is the number of rows, tokens or targets,
    equal to the batch's own `count`.
    """

    total: Tensor
    count: int


@runtime_checkable
class Task(Protocol[B]):
    """Data, model and loss of one kind of problem.

    It is all that trainer, evaluator and influence engine see of it. The hinge between them:
    `example_losses(model, batch).sum() == loss(model, batch).total`.
    """

    kind: str
    dataset: str
    data_fingerprint: str

    def describe(self) -> dict[str, str]:
        """Return tags that say what was chosen, for example the loss implementation."""
        ...

    def build_model(self) -> nn.Module:
        """Build the network with freshly drawn weights, on the CPU, in float32."""
        ...

    def train_examples(self) -> ExampleSource[B]:
        """Return the training examples, addressed by index."""
        ...

    def has_examples(self, split: str) -> bool:
        """Return whether a split, `valid` or `test`, can be evaluated."""
        ...

    def loss(self, model: nn.Module, batch: B) -> LossSum:
        """Return the batch's summed loss, differentiable."""
        ...

    def example_losses(self, model: nn.Module, batch: B) -> Tensor:
        """Return one loss for each example of the batch, `(example,)`, differentiable."""
        ...

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        """Return the quality on a split, `valid` or `test`, under names such as `valid/mrr`.

        Empty if the split has no examples.
        """
        ...

    def write_artifacts(self, folder: Path) -> None:
        """Write what readers of the run need beyond the weights, for example names of entities."""
        ...

    def write_report(self, split: str, folder: Path) -> None:
        """Write details of the last evaluation of a split, for example ranks by relation."""
        ...
