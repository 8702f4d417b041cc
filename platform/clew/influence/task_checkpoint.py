"""One checkpoint of any task in the sum over checkpoints, computed by the generic engine."""

from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np
import torch
from torch import Tensor, nn

from clew.errors import ConfigError
from clew.influence.factors import Factors, inner_products
from clew.influence.kernel import FactoredGradients, squared_norm
from clew.influence.summation import Products
from clew.training.loaders import ExampleSource
from clew.training.task import B, Task


class TaskCheckpoint(Generic[B]):
    """Inner products of training examples with all test examples, at one checkpoint.

    Args:
        task: Computes the losses.
        model: The checkpoint's model, already on its device.
        train: Training examples.
        tests: Test examples, computed once and kept factored.
        select: Whether to include a parameter, by name.
    """

    def __init__(
        self,
        task: Task[B],
        model: nn.Module,
        train: ExampleSource[B],
        tests: B,
        *,
        select: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.gradients = FactoredGradients(task, model, train, select=select)
        self._train = train
        self._device = next(model.parameters()).device
        self._tests = self.gradients(tests.to(self._device))
        self._part_of = {name: part_of(name) for name in self.gradients.parts}
        self._parts = tuple(dict.fromkeys(self._part_of.values()))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the modules with selected parameters."""
        return self._parts

    @property
    def test_squared_norm(self) -> Tensor:
        """Squared gradient norms of the test examples, `(test,)`."""
        return squared_norm(self._tests)

    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        """Return the products of training examples, by index, with all test examples."""
        factors = self._factors(train)
        by_part: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, part in self._part_of.items():
                product = inner_products(factors[name], self._tests[name])
                by_part[part] = by_part[part] + product if part in by_part else product
            own = squared_norm(factors) if norms else None
        return Products(torch.stack(list(by_part.values())), own)

    def squared_norms(self, train: np.ndarray) -> Tensor:
        """Return the squared gradient norms of training examples, `(train,)`."""
        return squared_norm(self._factors(train))

    def _factors(self, train: np.ndarray) -> Factors:
        return self.gradients(self._train.batch(train).to(self._device))


def part_of(parameter: str) -> str:
    """Return the module of a parameter; a plain parameter is its own part."""
    return parameter.rpartition(".")[0] or parameter


def last_layers(model: nn.Module, count: int) -> Callable[[str], bool]:
    """Return a selection of the last modules with trainable parameters, in order of definition.

    Raises:
        ConfigError: If the number of modules is not positive.
    """
    if count < 1:
        raise ConfigError(f"the last {count} modules were asked for; expected at least 1")
    parts: Sequence[str] = list(
        dict.fromkeys(part_of(name) for name, p in model.named_parameters() if p.requires_grad)
    )
    kept = set(parts[-count:])
    return lambda name: part_of(name) in kept
