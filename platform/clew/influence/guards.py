"""What influence refuses to build on: missing checkpoints, and checkpoints without weights."""

from collections.abc import Sequence

from clew.errors import CheckpointError
from clew.training.checkpoints import CheckpointRecord


def checked_weights(checkpoints: Sequence[CheckpointRecord]) -> list[float]:
    """Return the checkpoints' learning-rate weights; none at all, or nothing but 0, is an error."""
    if not checkpoints:
        raise CheckpointError(
            "the run has no checkpoints; influence is a sum over them. Train with "
            "training.checkpoint_frequency of 1 or more and tracking.log_checkpoints"
        )
    weights = [record.learning_rate_weight for record in checkpoints]
    if not any(weights):
        raise CheckpointError(
            "all checkpoints have learning_rate_weight 0: nothing was learned between them"
        )
    return weights


def without_gaps(checkpoints: Sequence[CheckpointRecord], place: str) -> list[CheckpointRecord]:
    """Return the checkpoints of a run, one for each step, if none of its steps is left out.

    A resumed run may have written one step twice, under two names: that is one point of the sum.
    In a run of an older version, which did not write down the previous step, a checkpoint that is
    missing is not noticed; the tracking store has all that were written.

    Args:
        checkpoints: In order of their steps.
        place: Where they are, for the message.

    Raises:
        CheckpointError: a checkpoint is missing, or has lost its learning-rate weight.
    """
    ordered = sorted(checkpoints, key=lambda c: (c.step, c.learning_rate_weight, c.epoch))
    kept = list({record.step: record for record in ordered}.values())
    reached = 0
    for record in kept:
        name = f"{record.path.name} (step {record.step})"
        previous = reached if record.previous_step is None else record.previous_step
        if previous > reached:
            raise CheckpointError(
                f"{place}: the checkpoint of step {previous} is missing, which {name} follows; "
                "influence is a sum over all checkpoints of a run: copy the missing one here, or "
                "give the run's id"
            )
        if previous < reached:
            raise CheckpointError(
                f"{place}: {name} follows step {previous}, but there is a checkpoint of step "
                f"{reached} between them; expected the checkpoints of one run"
            )
        if record.learning_rate_weight == 0 and record.step > reached:
            raise CheckpointError(
                f"{place}: {name} has learning_rate_weight 0 for the steps after {reached}, which "
                "an older version of Clew lost when training ended; their influence cannot be "
                "computed: train again"
            )
        reached = record.step
    return kept
