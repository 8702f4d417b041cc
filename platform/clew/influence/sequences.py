"""TracIn for image sequences: which training windows drive a prediction.

The influence of training window i on a test window is

    sum over checkpoints k of w_k <grad L_i(theta_k), grad L_test(theta_k)>

with L the task's own loss and gradients of every parameter, frames' convolutions included. No
window is mirrored and no noise added: gradients are taken in evaluation mode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clew.checkpoints import CheckpointRecord, load_model
from clew.data.frame_windows import SequenceWindows
from clew.influence.guards import checked_weights, require_finite
from clew.influence.scores import Scored, Strongest
from clew.influence.summation import Summation
from clew.influence.task_checkpoint import TaskCheckpoint, last_layers
from clew.tasks.sequence_regression import SequenceRegression

WINDOWS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class SequenceExplanation:
    """The strongest training windows of one test window."""

    proponents: Scored
    opponents: Scored
    parts: tuple[str, ...]
    self_influence: float
    """Of the test window on itself: the scale of the scores."""
    loss: float
    """Its loss at the last checkpoint."""
    prediction: float
    """The prediction at the last checkpoint, in the target's unit."""


def explain_window(
    task: SequenceRegression,
    checkpoints: Sequence[CheckpointRecord],
    test: SequenceWindows,
    *,
    top_k: int,
    device: torch.device,
    num_last_layers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SequenceExplanation:
    """Score every training window for one test window.

    Args:
        task: The data and its losses.
        checkpoints: In order of their steps.
        test: Exactly one window.
        top_k: Proponents and opponents to keep.
        device: Where to compute.
        num_last_layers: Count only so many modules from the end; None: all.
        progress: Told windows done and to do.
    """
    weights = checked_weights(checkpoints)
    batch = test.batch(np.array([0]))
    kernels = []
    for record in checkpoints:
        model = task.build_model()
        load_model(record.path, model)
        model.to(device)
        select = last_layers(model, num_last_layers) if num_last_layers else lambda name: True
        examples = task.train_examples()
        kernels.append(TaskCheckpoint(task, model, examples, batch, select=select))
    summation = Summation(kernels, weights, cosine=True)
    best, worst = Strongest(top_k, 1), Strongest(top_k, -1)
    total = len(task.train_examples())
    for start in range(0, total, WINDOWS_AT_ONCE):
        indices = np.arange(start, min(start + WINDOWS_AT_ONCE, total))
        with torch.no_grad():
            summation.run([indices], [best, worst])
        progress(int(indices[-1]) + 1, total)
    proponents, opponents = best.result(), worst.result()
    require_finite(proponents, opponents)
    last = kernels[-1].gradients.model
    with torch.no_grad():
        return SequenceExplanation(
            proponents,
            opponents,
            kernels[0].parts,
            self_influence=float(summation.test_self_influence[0]),
            loss=float(task.loss(last, batch.to(device)).total),
            prediction=float(task.predict(last, test, device)[0]),
        )
