"""TracIn for language models: which training windows made a continuation likely.

The influence of window i on a continuation is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L(theta_k)>

with L_i the summed loss of the window's tokens and L that of the continuation's tokens given the
prompt. Gradients are factored by token: an inner product of two windows of T and P tokens costs
2 T P (in + out) for a matrix, and no gradient is ever held in full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clew.checkpoints import CheckpointRecord, load_model
from clew.data.tokens import TokenBatch, TokenWindows
from clew.influence.guards import checked_weights, require_finite
from clew.influence.scores import Scored, Strongest
from clew.influence.summation import Summation
from clew.influence.task_checkpoint import TaskCheckpoint, last_layers
from clew.tasks.language_modeling import LanguageModeling

WINDOWS_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class TextExplanation:
    """The strongest training windows of one continuation."""

    proponents: Scored
    opponents: Scored
    parts: tuple[str, ...]
    self_influence: float
    """Of the continuation on itself: the scale of the scores."""
    loss: float
    """Summed loss of the continuation at the last checkpoint, in nats."""


class TextTracer:
    """Explains continuations of one trained language model.

    Args:
        task: The text and its losses.
        checkpoints: In order of their steps.
        device: Where to compute.
        num_last_layers: Count only so many modules from the end; None: all.
    """

    def __init__(
        self,
        task: LanguageModeling,
        checkpoints: Sequence[CheckpointRecord],
        *,
        device: torch.device,
        num_last_layers: int | None = None,
    ) -> None:
        self.task, self.checkpoints, self.device = task, checkpoints, device
        self.weights = checked_weights(checkpoints)
        self.num_last_layers = num_last_layers
        self.windows = whole_windows(task.train_examples())

    def explain(
        self,
        test: TokenBatch,
        *,
        top_k: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> TextExplanation:
        """Score every training window for one continuation.

        Args:
            test: Prompt and continuation, the latter's tokens counted.
            top_k: Proponents and opponents to keep.
            progress: Told windows done and to do.
        """
        kernels = [self._kernel(record, test) for record in self.checkpoints]
        summation = Summation(kernels, self.weights, cosine=True)
        best, worst = Strongest(top_k, 1), Strongest(top_k, -1)
        total = len(self.windows)
        for start in range(0, total, WINDOWS_AT_ONCE):
            indices = np.arange(start, min(start + WINDOWS_AT_ONCE, total))
            with torch.no_grad():
                summation.run([indices], [best, worst])
            progress(int(indices[-1]) + 1, total)
        proponents, opponents = best.result(), worst.result()
        require_finite(proponents, opponents)
        last = kernels[-1].gradients.model
        with torch.no_grad():
            loss = float(self.task.loss(last, test.to(self.device)).total)
            own = float(summation.test_self_influence[0])
        return TextExplanation(proponents, opponents, kernels[0].parts, own, loss)

    def _kernel(self, record: CheckpointRecord, test: TokenBatch) -> TaskCheckpoint[TokenBatch]:
        model = self.task.build_model()
        load_model(record.path, model)
        model.to(self.device)
        count = self.num_last_layers
        select = last_layers(model, count) if count is not None else lambda name: True
        return TaskCheckpoint(self.task, model, self.windows, test, select=select)


def whole_windows(windows: TokenWindows) -> TokenWindows:
    """Return training windows that do not overlap, so that each text is counted once."""
    return TokenWindows(windows.packed, start=windows.start, end=windows.end, length=windows.length)
