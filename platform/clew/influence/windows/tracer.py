"""TracIn over training windows: which pieces of text or sequences of frames led to a prediction.

The influence of training window i on a test window is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_test(theta_k)>

with L the task's own loss, summed over a window: for text, the loss of its tokens (for a
continuation, those after the prompt); for frames, the loss of the target. Gradients are computed in
evaluation mode: without dropout, mirroring or noise. Each gradient is used for all tests, so
that a further test costs almost nothing.

With an index, the sum is first estimated from projections for all windows. It is then computed only
for the windows with the largest estimates and, if opponents are wanted, the smallest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import nn

from clew.influence.kernel import FactoredGradients
from clew.influence.scores import Scored, Strongest, deviation, require_finite
from clew.influence.summation import checked_weights
from clew.influence.windows.checkpoint import WindowCheckpoint, WindowSums, last_layers
from clew.influence.windows.estimates import Estimates, Searched, SearchSettings
from clew.influence.windows.index_files import IndexOf, WindowIndex, find_index, index_of
from clew.influence.windows.indexing import make_index, search, window_norms
from clew.layers.products import MatrixProduct
from clew.training.checkpoints import read_model
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.task import B, Task

WINDOWS_AT_ONCE = 4
Progress = Callable[[int, int], None]


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


class WindowTracer(Generic[B]):
    """Explains predictions of one trained model by its training windows.

    Args:
        task: Builds the model and computes the losses.
        windows: The training windows.
        checkpoints: Checkpoints in order of their steps.
        device: Device to compute on.
        num_last_layers: Use only this many modules, counted from the end; None: all.
        half: Half-precision type of matrix products; None: float32.
        with_cosine: Whether to also compute cosines.
    """

    def __init__(
        self,
        task: Task[B],
        windows: ExampleSource[B],
        checkpoints: Sequence[CheckpointRecord],
        *,
        device: torch.device,
        num_last_layers: int | None = None,
        half: torch.dtype | None = None,
        with_cosine: bool = True,
    ) -> None:
        self.task, self.windows, self.checkpoints = task, windows, checkpoints
        self.device, self.num_last_layers = device, num_last_layers
        self.half, self.with_cosine = half, with_cosine
        self.weights = checked_weights(checkpoints)
        self._examined: dict[str, dict[str, str]] = {}

    def model(self, record: CheckpointRecord) -> nn.Module:
        return read_model(record.path, self.task.build_model).to(self.device).eval()

    @torch.no_grad()
    def explain(
        self,
        tests: Sequence[B],
        *,
        top_k: int,
        settings: SearchSettings | None = None,
        progress: Progress = lambda done, total: None,
    ) -> list[WindowExplanation]:
        """Score training windows for test windows, in one pass over the training windows.

        Args:
            tests: Batches of exactly one window each.
            top_k: Proponents and opponents to keep for each.
            settings: How to choose the windows to score; None: all are scored.
            progress: Called with the number of windows done and in total.
        """
        found, chosen = None, np.arange(len(self.windows))
        if settings is not None:
            found = self._estimates(tests, settings, progress)
            chosen = found.candidates()
        norms = self.with_cosine and found is None
        sums = self._sums(tests, chosen, norms=norms, progress=progress)
        if found is not None and self.with_cosine:
            sums.own = found.own[chosen]
        return [self._explanation(sums, i, chosen, top_k, found) for i in range(len(tests))]

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
        """Return the gradients of a checkpoint's model; only the first model is examined.

        Args:
            record: The checkpoint.
            half: Half-precision type of matrix products.
            every: Whether to include parameters that are not selected.
        """
        model, count = self.model(record), None if every else self.num_last_layers
        select = last_layers(model, count) if count is not None else lambda name: True
        kind = "every" if count is None else "selected"
        gradients = FactoredGradients(
            self.task,
            model,
            self.windows,
            select=select,
            half=half,
            examined=self._examined.get("every", self._examined.get(kind)),
        )
        self._examined.setdefault(kind, gradients.explicit_parameters)
        return gradients

    def checkpoint(
        self, record: CheckpointRecord, tests: Sequence[B], *, half: torch.dtype | None
    ) -> WindowCheckpoint[B]:
        gradients = self.gradients(record, half=half)
        return WindowCheckpoint(gradients, self.windows, tests, MatrixProduct(half))

    def _estimates(
        self, tests: Sequence[B], settings: SearchSettings, progress: Progress
    ) -> Estimates:
        """Estimate all scores; a missing index is built first."""
        indices, made, scores, own = [], [], [], []
        for record, weight in zip(self.checkpoints, self.weights, strict=True):
            wanted = index_of(record.path, len(self.windows), settings.rank, self.half)
            index = find_index(record.path, wanted)
            if index is None:
                index = self._make_index(record, wanted, progress)
                made.append(index.manifest.seconds)
            self._examined.setdefault("every", index.manifest.explicit_parameters)
            gradients = self.gradients(record, half=self.half)
            factors = [gradients(test.to(self.device)) for test in tests]
            scores.append(weight * search(index, factors, gradients.parts))
            own.append(weight * window_norms(index, gradients.parts))
            indices.append(index)
        return Estimates(
            torch.stack(scores).sum(0),
            torch.stack(own).sum(0),
            settings,
            [index.manifest for index in indices],
            sum(index.num_bytes for index in indices),
            made,
        )

    def _make_index(
        self, record: CheckpointRecord, wanted: IndexOf, progress: Progress
    ) -> WindowIndex:
        total = len(self.windows)
        return make_index(
            record.path,
            wanted,
            self.gradients(record, half=self.half, every=True),
            self.windows,
            tiles(np.arange(total)),
            multiply=MatrixProduct(self.half),
            progress=lambda done: progress(done, total),
        )

    def _sums(
        self, tests: Sequence[B], chosen: np.ndarray, *, norms: bool, progress: Progress
    ) -> WindowSums:
        sums, done, total = WindowSums(), 0, len(chosen) * len(self.checkpoints)
        for record, weight in zip(self.checkpoints, self.weights, strict=True):
            kernel = self.checkpoint(record, tests, half=self.half)
            products = []
            for indices in tiles(chosen):
                products.append(kernel.products(indices, norms=norms))
                done += len(indices)
                progress(done, total)
            sums.add(weight, products, kernel)
        last = kernel.gradients.model
        sums.losses = [float(self.task.loss(last, t.to(self.device)).total) for t in tests]
        return sums

    def _explanation(
        self, sums: WindowSums, test: int, chosen: np.ndarray, top_k: int, found: Estimates | None
    ) -> WindowExplanation:
        opponents_wanted = found is None or found.settings.opponents
        best, worst = Strongest(top_k, 1), Strongest(top_k if opponents_wanted else 0, -1)
        tile = sums.tile(test, chosen)
        for sink in (best, worst):
            sink.add(tile)
        proponents, opponents = best.result(), worst.result()
        require_finite(proponents, opponents)
        assert sums.tests is not None
        own = float(sums.tests[test])
        return WindowExplanation(
            proponents,
            opponents,
            sums.parts,
            own,
            sums.losses[test],
            None if found is None else found.compared(test, chosen, tile.influence[0], own),
        )


def tiles(indices: np.ndarray) -> Iterator[np.ndarray]:
    """Yield groups of windows that are computed together."""
    for start in range(0, len(indices), WINDOWS_AT_ONCE):
        yield indices[start : start + WINDOWS_AT_ONCE]
