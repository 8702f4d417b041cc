"""How far a training run is, and how long the rest takes at the pace so far."""

from dataclasses import dataclass

import pandas as pd

from clew import names
from clew.runs.reading.runs import RunRecord

TRAINING = f"{names.PARAMETER_PREFIX}training."


@dataclass(frozen=True)
class EpochProgress:
    """Epochs done, all epochs, and the seconds that the rest takes, once there is a pace."""

    epochs: float
    total_epochs: float
    seconds_left: float | None

    @property
    def share(self) -> float:
        """The share that is done."""
        return min(1.0, self.epochs / self.total_epochs)


def progress_of(run: RunRecord, curve: pd.DataFrame) -> EpochProgress | None:
    """Return how far a training run is; None for other runs, and where it is not known.

    Args:
        run: Any run.
        curve: Its metric `train/epoch`: rows `step, seconds, value`, in order of steps.
    """
    try:
        total = float(run.params[f"{TRAINING}num_epochs"])
    except (KeyError, ValueError):
        return None
    if run.tags.get(names.TAG_KIND) != names.KIND_TRAIN:
        return None
    if curve.empty:
        return EpochProgress(0.0, total, None)
    last = curve.iloc[-1]
    max_steps = run.params.get(f"{TRAINING}max_steps", "")
    if max_steps.isdigit():
        total = min(total, int(max_steps) * last["value"] / last["step"])
    # The later half of its time: a resumed run begins with all that it takes over, at once.
    first = curve[curve["seconds"] >= curve["seconds"].agg(["min", "max"]).mean()].iloc[0]
    done, seconds = last["value"] - first["value"], last["seconds"] - first["seconds"]
    left = (total - last["value"]) * seconds / done if done > 0 else None
    return EpochProgress(float(last["value"]), total, left)
