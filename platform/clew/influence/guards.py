"""What influence refuses to build on: checkpoints without weights, scores that are not finite."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr

from clew.errors import CheckpointError, NonFiniteLossError
from clew.influence.scores import Scored
from clew.training.checkpoints import CheckpointRecord, read_manifest


def checked_weights(checkpoints: Sequence[CheckpointRecord]) -> list[float]:
    """Return the checkpoints' learning-rate weights; a missing or senseless one is an error."""
    if not checkpoints:
        raise CheckpointError(
            "the run has no checkpoints; influence is a sum over them. Train with "
            "training.checkpoint_frequency of 1 or more and tracking.log_checkpoints"
        )
    for record in checkpoints:
        read_manifest(record.path)
        weight = record.learning_rate_weight
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
            raise CheckpointError(
                f"{record.path}: learning_rate_weight is {weight!r}, expected a number that is not "
                "negative; the checkpoint cannot be weighted"
            )
    weights = [float(record.learning_rate_weight) for record in checkpoints]
    if not any(weights):
        raise CheckpointError(
            "all checkpoints have learning_rate_weight 0: nothing was learned between them"
        )
    return weights


def clean_up(device: torch.device) -> None:
    """Return cached memory to the driver."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def require_finite(*results: Scored) -> None:
    """Stop if a score is NaN or infinite."""
    for scored in results:
        if not np.isfinite(scored.influence).all():
            raise NonFiniteLossError(
                "influence scores hold NaN or infinity; a checkpoint or a half-precision product "
                "overflowed. Compute without use_mixed_precision, or leave that checkpoint out"
            )


def deviation(half: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return how far scores `(test, train)` in half precision are from exact ones."""
    correlations = []
    for a, b in zip(half, exact, strict=True):
        top = np.argsort(-np.abs(b))[:100]
        if len(top) > 1:
            correlations.append(spearmanr(a[top], b[top]).statistic)
    error = np.abs(half - exact).max() / np.abs(exact).max()
    return {
        "relative_error": float(error),
        "spearman_top_100": float(np.mean(correlations)) if correlations else 1.0,
    }
