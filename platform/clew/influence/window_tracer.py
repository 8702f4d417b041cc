"""TracIn over training windows: which pieces of text or sequences of frames led to a prediction.

The influence of training window i on a test window is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_test(theta_k)>

with L the task's own loss, summed over a window: for text, the loss of its tokens (for a
continuation, those after the prompt); for frames, the loss of the target. Gradients are computed in
evaluation mode: without dropout or noise. Each gradient is used for all tests, so
that a further test costs almost nothing.

With an index, the sum is first estimated from projections for all windows. It is then computed only
for the windows with the largest estimates and, if opponents are wanted, the smallest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.config.schema import RunConfig
from clew.config.services import InfluenceConfig
from clew.errors import ConfigError
from clew.influence import unrolling
from clew.influence.factors import (
    Factor,
    Factors,
    in_full,
    inner_products,
    is_cheaper_in_full,
    squared_norms,
)
from clew.influence.kernel import FactoredGradients, squared_norm
from clew.influence.linearization import ExampleFacts
from clew.influence.scores import (
    Scored,
    deviation,
    require_finite,
    strongest,
    tile_of_intervals,
)
from clew.influence.summation import Products, Sums, checked_weights
from clew.influence.window_index import (
    Estimates,
    Searched,
    find_index,
    index_of,
    make_index,
    search,
    window_norms,
)
from clew.layers.products import MatrixProduct
from clew.training.checkpoints import read_model
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.replay import Replay
from clew.training.task import B, Task

WINDOWS_AT_ONCE = 4
Progress = Callable[[int, int], None]


class WindowCheckpoint(Generic[B]):
    """Inner products of training windows with all tests, at one checkpoint.

    Gradients are multiplied out, one parameter at a time, if that is cheaper than their factors.
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
            by_part[part] = by_part.get(part, 0.0) + product
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
            if name not in self._vectors:
                full = [in_full(test[name]) for test in self.tests]
                self._vectors[name] = torch.cat(full)
                for test in self.tests:
                    test[name] = []
            return self._vectors[name] @ vectors.T, norm
        product = torch.cat([inner_products(train, test) for test in tests])
        return product, squared_norms(train) if norms else None


def part_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def last_layers(model: nn.Module, count: int) -> Callable[[str], bool]:
    """Return a function that selects the parameters of the last modules, by name.

    Only modules with trainable parameters are counted, in order of definition.
    """
    if count < 1:
        raise ConfigError(f"the last {count} modules were asked for; expected at least 1")
    trainable = (part_of(name) for name, p in model.named_parameters() if p.requires_grad)
    kept = set(list(dict.fromkeys(trainable))[-count:])
    return lambda name: part_of(name) in kept


@dataclass(frozen=True, eq=False)
class WindowExplanation:
    """The strongest training windows of one test window."""

    proponents: Scored
    opponents: Scored
    parts: tuple[str, ...]
    self_influence: float | None
    """Self-influence of the test window, the scale of the scores; None for unrolled scores."""
    loss: float
    """Summed loss of the test window at the last checkpoint."""
    searched: Searched | None = None


@dataclass(eq=False)
class WindowTracer(Generic[B]):
    """Explains predictions of one trained model by its training windows."""

    task: Task[B]
    windows: ExampleSource[B]
    checkpoints: Sequence[CheckpointRecord]
    """Checkpoints in order of their steps."""
    _: KW_ONLY
    device: torch.device
    num_last_layers: int | None = None
    """Use only this many modules, counted from the end; None: all."""
    half: torch.dtype | None = None
    """Half-precision type of matrix products; None: float32."""
    with_cosine: bool = True

    def __post_init__(self) -> None:
        self.weights = checked_weights(self.checkpoints)
        self._examined: dict[str, dict[str, str]] = {}

    def model(self, record: CheckpointRecord) -> nn.Module:
        return read_model(record.path, self.task.build_model).to(self.device).eval()

    @torch.no_grad()
    def explain(
        self,
        tests: Sequence[B],
        *,
        top_k: int,
        settings: InfluenceConfig | None = None,
        progress: Progress = lambda done, total: None,
    ) -> list[WindowExplanation]:
        """Score training windows for test windows, in one pass over the training windows."""
        found, chosen = None, np.arange(len(self.windows))
        if settings is not None:
            found = self._estimates(tests, settings, progress)
            chosen = found.candidates()
        norms = self.with_cosine and found is None
        sums, of_tests, last = self._sums(tests, chosen, norms=norms, progress=progress)
        if found is not None and self.with_cosine:
            sums.own = found.own[chosen]
        tile, own = sums.tile(chosen, of_tests, cosine=True), of_tests.tolist()
        model, on_device = last.gradients.model, [test.to(self.device) for test in tests]
        losses = [float(self.task.loss(model, test).total) for test in on_device]
        opponents = found is None or found.settings.search_opponents
        best, worst = strongest(tile, top_k, opponents=opponents)
        require_finite(best, worst)
        return [
            WindowExplanation(
                best.only(i),
                worst.only(i),
                last.parts,
                own[i],
                losses[i],
                None if found is None else found.compared(i, chosen, tile.influence[i], own[i]),
            )
            for i in range(len(tests))
        ]

    @torch.no_grad()
    def half_precision_deviation(self, tests: Sequence[B]) -> dict[str, float]:
        """Return the deviation of a few scores from float32, at the last checkpoint."""
        sample = np.unique(np.linspace(0, len(self.windows) - 1, WINDOWS_AT_ONCE).astype(int))
        scores = [
            self.checkpoint(self.checkpoints[-1], tests, half=half)
            .products(sample, norms=False)
            .by_part.sum(0)
            for half in (self.half, None)
        ]
        return deviation(*(score.float().cpu().numpy() for score in scores))

    def gradients(
        self, record: CheckpointRecord, *, half: torch.dtype | None, every: bool = False
    ) -> FactoredGradients[B]:
        """Return the gradients of a checkpoint's model; only the first model is examined."""
        model, count = self.model(record), None if every else self.num_last_layers
        select = last_layers(model, count) if count is not None else lambda name: True
        kind = "every" if count is None else "selected"
        examined = self._examined.get("every", self._examined.get(kind))
        gradients = FactoredGradients(
            self.task, model, self.windows, select=select, half=half, examined=examined
        )
        self._examined.setdefault(kind, gradients.explicit_parameters)
        return gradients

    def checkpoint(
        self, record: CheckpointRecord, tests: Sequence[B], *, half: torch.dtype | None
    ) -> WindowCheckpoint[B]:
        gradients = self.gradients(record, half=half)
        return WindowCheckpoint(gradients, self.windows, tests, MatrixProduct(half))

    def _estimates(
        self, tests: Sequence[B], settings: InfluenceConfig, progress: Progress
    ) -> Estimates:
        """Estimate all scores; a missing index is built first."""
        indices, made, scores, own, total = [], [], [], [], len(self.windows)
        for record, weight in zip(self.checkpoints, self.weights, strict=True):
            wanted = index_of(record.path, total, settings.projection_rank, self.half)
            index = find_index(record.path, wanted)
            if index is None:
                index = make_index(
                    record.path,
                    wanted,
                    self.gradients(record, half=self.half, every=True),
                    self.windows,
                    tiles(np.arange(total)),
                    multiply=MatrixProduct(self.half),
                    progress=lambda done: progress(done, total),
                )
                made.append(index.manifest.seconds)
            self._examined.setdefault("every", index.manifest.explicit_parameters)
            gradients = self.gradients(record, half=self.half)
            factors = [gradients(test.to(self.device)) for test in tests]
            scores.append(weight * search(index, factors, gradients.parts))
            own.append(weight * window_norms(index, gradients.parts))
            indices.append(index)
        summed = torch.stack(scores).sum(0), torch.stack(own).sum(0)
        return Estimates(*summed, settings, indices, made)

    def _sums(
        self, tests: Sequence[B], chosen: np.ndarray, *, norms: bool, progress: Progress
    ) -> tuple[Sums, Float[Tensor, "test"], WindowCheckpoint[B]]:
        """Return the sums, the self-influences of the tests, and the last checkpoint."""
        sums, done, total = Sums(), 0, len(chosen) * len(self.checkpoints)
        of_tests = torch.zeros(len(tests), dtype=torch.float64, device=self.device)
        for record, weight in zip(self.checkpoints, self.weights, strict=True):
            kernel = self.checkpoint(record, tests, half=self.half)
            products = []
            for indices in tiles(chosen):
                products.append(kernel.products(indices, norms=norms))
                done += len(indices)
                progress(done, total)
            own = [found.squared_norm for found in products if found.squared_norm is not None]
            by_part = torch.cat([found.by_part for found in products], dim=2)
            sums.add(weight, Products(by_part, torch.cat(own) if own else None))
            of_tests += kernel.test_squared_norm.double() * weight
        return sums, of_tests, kernel


def tiles(indices: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(indices), WINDOWS_AT_ONCE):
        yield indices[start : start + WINDOWS_AT_ONCE]


class UnrolledWindowTracer(WindowTracer[B]):
    """Explains predictions of one trained model by differentiating through its training.

    Every training example is a fact with a weight in its loss, even if windows overlap; see
    `clew.influence.unrolling`.
    """

    def __init__(
        self,
        task: Task[B],
        config: RunConfig,
        checkpoints: Sequence[CheckpointRecord],
        *,
        device: torch.device,
        cache: Path,
    ) -> None:
        unrolling.require_replayable(config, device)
        unrolling.require_states(checkpoints)
        super().__init__(task, task.train_examples(), checkpoints, device=device, with_cosine=False)
        self._config, self._cache = config, cache

    def model(self, record: CheckpointRecord) -> nn.Module:
        """Return the model of a checkpoint in evaluation mode, with its average if it has one."""
        model = super().model(record)
        if self._config.training.ema_decay is not None:
            unrolling.load_average(model, record.path)
        return model

    def explain(
        self,
        tests: Sequence[B],
        *,
        top_k: int,
        settings: InfluenceConfig | None = None,
        progress: Progress = lambda done, total: None,
    ) -> list[WindowExplanation]:
        """Score all training examples for every test, in one pass over the training."""
        assert settings is None
        on_device = [test.to(self.device) for test in tests]
        explained = [
            value.cpu().contiguous().numpy().tobytes()
            for test in tests
            for value in vars(test).values()
            if isinstance(value, Tensor)
        ]
        name = unrolling.pass_name(self.checkpoints, self.task.data_fingerprint, *explained)
        losses = [partial(self._loss, batch=test) for test in on_device]
        by_interval = unrolling.through_training(
            lambda: Replay(self._config, self.task, self.checkpoints, self.device),
            ExampleFacts(self.task),
            losses,
            kept=self._cache / f"{name}.safetensors",
            progress=progress,
        )
        model = self.model(self.checkpoints[-1])
        with torch.no_grad():
            values = [float(self._loss(model, batch=test)) for test in on_device]
        return [
            WindowExplanation(
                *strongest(tile_of_intervals(by_interval[:, [number]]), top_k),
                parts=(),
                self_influence=None,
                loss=value,
            )
            for number, value in enumerate(values)
        ]

    def _loss(self, model: nn.Module, batch: B) -> Tensor:
        return self.task.example_losses(model, batch).sum()
