"""The seam through which a search follows a training, and ends it early."""

from clew.runs.base import Tracker


class Watch:
    """Sees a training; this base class only looks on.

    Each method but the first may raise `Interrupted`, which ends the training at once; its run is
    then KILLED, and no further checkpoint is written.
    """

    def started(self, tracker: Tracker) -> None:
        """Receive the run's tracker, before anything is trained."""

    def before_step(self) -> None:
        """See that another optimizer step comes."""

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """See the validation metric.

        Args:
            value: Of `evaluation.metric`.
            epoch: Epochs done; one that steps cut short counts too.
            is_last: Whether training ends here in any case.
        """
