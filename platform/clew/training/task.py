"""The interface between tasks and training: data, model and loss of one kind of problem."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from clew.training.loaders import Batch, ExampleSource

B = TypeVar("B", bound=Batch)


@dataclass(frozen=True)
class LossSum:
    """A loss as a sum and its divisor, so that the mean does not depend on the batches.

    `total` is a float32 (or float64) scalar. `count` is the number of rows, tokens or targets, and
    is equal to the `count` of the batch.
    """

    total: Tensor
    count: float


@dataclass(frozen=True, eq=False)
class ExampleValues:
    """A metric of a split as one value for each example, `(example,)`; their mean is the metric.

    Neighbours in a sequence (`in_sequence`) resemble each other, so they count for less than as
    many independent examples.
    """

    values: np.ndarray
    unit: str
    """Plural name of the examples for messages, such as `triples`."""
    in_sequence: bool = False


@runtime_checkable
class Task(Protocol[B]):
    """Data, model and loss of one kind of problem.

    The trainer, the evaluator and the influence engine use a task only through this interface. They
    rely on `example_losses(model, batch).sum() == loss(model, batch).total`.
    """

    kind: str
    dataset: str
    data_fingerprint: str

    def describe(self) -> dict[str, str]:
        """Return tags for the choices that were made, for example the loss implementation."""

    def build_model(self) -> nn.Module:
        """Build the network with random weights, on the CPU, in float32."""

    def train_examples(self) -> ExampleSource[B]:
        """Return the training examples, which are read by index."""

    def has_examples(self, split: str) -> bool:
        """Return whether a split (`valid` or `test`) has examples to evaluate."""

    def loss(self, model: nn.Module, batch: B) -> LossSum:
        """Return the summed loss of the batch; it is differentiable."""

    def example_losses(self, model: nn.Module, batch: B) -> Tensor:
        """Return one differentiable loss per example of the batch, `(example,)`."""

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        """Return the metrics on a split (`valid` or `test`), with names such as `valid/mrr`.

        The result is empty if the split has no examples.
        """

    def example_values(
        self, model: nn.Module, split: str, name: str, device: torch.device
    ) -> ExampleValues | None:
        """Return the values behind a metric, such as `mrr`, of the last evaluation of a split.

        The result is None if the metric is not a mean over examples.
        """

    def write_artifacts(self, folder: Path) -> None:
        """Write what users of the run need besides the weights, for example entity names."""

    def write_report(self, split: str, folder: Path) -> None:
        """Write details of the last evaluation of a split, for example ranks by relation."""
