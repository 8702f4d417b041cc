"""TracIn's sum for training windows: the term of one checkpoint, and the sum over checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.errors import ConfigError
from clew.influence.factors import Factor, Factors, inner_products, squared_norms
from clew.influence.kernel import FactoredGradients, squared_norm
from clew.influence.scores import Tile
from clew.influence.summation import Products
from clew.influence.windows.condensing import in_full, is_cheaper_in_full
from clew.layers.products import MatrixProduct
from clew.training.loaders import ExampleSource
from clew.training.task import B


class WindowCheckpoint(Generic[B]):
    """Inner products of training windows with all tests, at one checkpoint.

    Gradients are multiplied out, one parameter at a time, if that is cheaper than their factors.

    Args:
        gradients: Gradients of the checkpoint's model.
        windows: Training windows.
        tests: Batches of one window each, which can differ in length.
        multiply: Matrix product that multiplies gradients out.
    """

    def __init__(
        self,
        gradients: FactoredGradients[B],
        windows: ExampleSource[B],
        tests: Sequence[B],
        multiply: MatrixProduct,
    ) -> None:
        self.gradients, self.windows, self.multiply = gradients, windows, multiply
        self.device = next(gradients.model.parameters()).device
        self.tests: list[Factors] = [gradients(test.to(self.device)) for test in tests]
        self.test_squared_norm = torch.cat([squared_norm(test) for test in self.tests])
        """Squared gradient norms of the tests, `(test,)`."""
        self._vectors: dict[str, Float[Tensor, "test size"]] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(part_of, self.gradients.parts)))

    @torch.no_grad()
    def products(self, train: np.ndarray, *, norms: bool) -> Products:
        factors = self.gradients(self.windows.batch(train).to(self.device))
        by_part: dict[str, Tensor] = {}
        own: Tensor | None = None
        for name in self.gradients.parts:
            # pop, so that a parameter's factors are freed after its products.
            product, norm = self._parameter(name, factors.pop(name), norms=norms)
            part = part_of(name)
            by_part[part] = by_part[part] + product if part in by_part else product
            if norm is not None:
                own = norm if own is None else own + norm
        return Products(torch.stack(list(by_part.values())), own)

    def _parameter(
        self, name: str, train: Sequence[Factor], *, norms: bool
    ) -> tuple[Float[Tensor, "test train"], Float[Tensor, "train"] | None]:
        tests = [test[name] for test in self.tests]
        if name in self._vectors or is_cheaper_in_full(train, tests, norms=norms):
            vectors = in_full(train, self.multiply)
            norm = vectors.square().sum(1) if norms else None
            return self._test_vectors(name) @ vectors.T, norm
        product = torch.cat([inner_products(train, test) for test in tests])
        return product, squared_norms(train) if norms else None

    def _test_vectors(self, name: str) -> Float[Tensor, "test size"]:
        if name not in self._vectors:
            full = [in_full(test[name], MatrixProduct()) for test in self.tests]
            self._vectors[name] = torch.cat(full)
            for test in self.tests:
                test[name] = []
        return self._vectors[name]


@dataclass(eq=False)
class WindowSums:
    """Sums over checkpoints, in float64: a score of every pair, and self-influences."""

    parts: tuple[str, ...] = ()
    by_checkpoint: list[Float[Tensor, "test window"]] = field(default_factory=list)
    by_part: Float[Tensor, "part test window"] | None = None
    tests: Float[Tensor, "test"] | None = None
    """Self-influence of the tests."""
    own: Float[Tensor, "window"] | None = None
    """Self-influence of the windows, if cosines are wanted."""
    losses: list[float] = field(default_factory=list)
    """Loss of each test at the last checkpoint."""

    def add(self, weight: float, tiles: Sequence[Products], kernel: WindowCheckpoint[B]) -> None:
        by_part = torch.cat([tile.by_part for tile in tiles], dim=2).double().mul_(weight)
        self.parts = kernel.parts
        self.by_checkpoint.append(by_part.sum(0))
        self.by_part = by_part if self.by_part is None else self.by_part.add_(by_part)
        tests = kernel.test_squared_norm.double() * weight
        self.tests = tests if self.tests is None else self.tests + tests
        norms = [tile.squared_norm for tile in tiles if tile.squared_norm is not None]
        if norms:
            own = torch.cat(norms).double() * weight
            self.own = own if self.own is None else self.own + own

    def tile(self, test: int, chosen: np.ndarray) -> Tile:
        """Return the scores of one test."""
        assert self.by_part is not None
        assert self.tests is not None
        only = slice(test, test + 1)
        by_checkpoint = torch.stack(self.by_checkpoint)[:, only]
        influence, cosine = by_checkpoint.sum(0), None
        if self.own is not None:
            own = self.own.to(influence.device)
            cosine = influence * (self.tests[only, None] * own).clamp_min(1e-300).rsqrt()
        return Tile(
            train=torch.from_numpy(chosen).to(influence.device),
            influence=influence,
            by_checkpoint=by_checkpoint,
            by_part=self.by_part[:, only],
            cosine=cosine,
            candidate=None,
        )


def part_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def last_layers(model: nn.Module, count: int) -> Callable[[str], bool]:
    """Return a function that selects the parameters of the last modules, by name.

    Only modules with trainable parameters are counted, in order of definition.

    Raises:
        ConfigError: `count` is less than 1.
    """
    if count < 1:
        raise ConfigError(f"the last {count} modules were asked for; expected at least 1")
    parts: Sequence[str] = list(
        dict.fromkeys(part_of(name) for name, p in model.named_parameters() if p.requires_grad)
    )
    kept = set(parts[-count:])
    return lambda name: part_of(name) in kept
