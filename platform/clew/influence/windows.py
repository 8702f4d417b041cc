"""TracIn by training windows: which pieces of text or sequences of frames led to a prediction.

The influence of training window i on a test window is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_test(theta_k)>

with L the task's own loss, summed over a window: for text, the loss of its tokens (for a
continuation, those after the prompt); for frames, the loss of the target. Gradients are factored by
token or by frame, so none is ever kept in full. They are computed in evaluation mode: without
dropout, mirroring or noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from torch import nn

from clew.influence.guards import checked_weights, require_finite
from clew.influence.scores import Scored, Strongest
from clew.influence.summation import Summation
from clew.influence.task_checkpoint import TaskCheckpoint, last_layers
from clew.training.checkpoints import CheckpointRecord, load_model
from clew.training.loaders import ExampleSource
from clew.training.task import B, Task

WINDOWS_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class WindowExplanation:
    """The strongest training windows of one test window."""

    proponents: Scored
    opponents: Scored
    parts: tuple[str, ...]
    self_influence: float
    """Self-influence of the test window: the scale of the scores."""
    loss: float
    """Summed loss of the test window at the last checkpoint."""


class WindowTracer(Generic[B]):
    """Explains predictions of one trained model by its training windows.

    Args:
        task: Builds the model and computes the losses.
        windows: The training windows.
        checkpoints: Checkpoints in order of their steps.
        device: Device to compute on.
        num_last_layers: Use only this many modules, counted from the end; None: all.
    """

    def __init__(
        self,
        task: Task[B],
        windows: ExampleSource[B],
        checkpoints: Sequence[CheckpointRecord],
        *,
        device: torch.device,
        num_last_layers: int | None = None,
    ) -> None:
        self.task, self.windows, self.checkpoints = task, windows, checkpoints
        self.device, self.num_last_layers = device, num_last_layers
        self.weights = checked_weights(checkpoints)

    def model(self, record: CheckpointRecord) -> nn.Module:
        """Return the model of a checkpoint, for evaluation."""
        model = self.task.build_model()
        load_model(record.path, model)
        return model.to(self.device).eval()

    def explain(
        self,
        test: B,
        *,
        top_k: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> WindowExplanation:
        """Score every training window for one test window.

        Args:
            test: A batch of exactly one window.
            top_k: Proponents and opponents to keep.
            progress: Called with the number of windows done and in total.
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
        return WindowExplanation(proponents, opponents, kernels[0].parts, own, loss)

    def _kernel(self, record: CheckpointRecord, test: B) -> TaskCheckpoint[B]:
        model, count = self.model(record), self.num_last_layers
        select = last_layers(model, count) if count is not None else lambda name: True
        return TaskCheckpoint(self.task, model, self.windows, test, select=select)
