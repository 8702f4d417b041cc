"""Reads metric curves: every value with its step and its time in seconds since the run started.

The curve of epochs shows the progress of a training run and the remaining time. An `Estimate` is a
mean over seeds with its interval. Runs are chosen by their value at the best checkpoint.
"""

import math
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric
from scipy.special import stdtrit

from clew import names
from clew.config.schema import TASK_KINDS
from clew.errors import TrackingError
from clew.names import direction_of, maximizes
from clew.runs import store
from clew.runs.reading.runs import RunRecord, client, database_of, stored_number
from clew.runs.reading.search import RunQuery, every_run, experiment_id_of

MAX_POINTS = 600
NUM_THREADS = 8
HISTORY_COLUMNS = ("run_id", "step", "seconds", "value")
TRAINING = f"{names.PARAMETER_PREFIX}training."
TEST_PREFIX = names.metric("test", "")

Pick = Literal["best", "last"]
S = TypeVar("S", int, str)

HEADLINES = {kind.task: names.metric("valid", kind.metrics[0]) for kind in TASK_KINDS.values()}
"""The main validation metric of each task."""
HELD_OUT = f"{names.PARAMETER_PREFIX}data.hold_out_validation"
"""Parameter that is false if the metrics `valid/` of a run are those of its test examples."""


def headline_key(run: RunRecord) -> str:
    """Return the main metric of the run; a test metric if the run has no validation metric."""
    key = HEADLINES.get(run.tags.get(names.TAG_TASK, ""), next(iter(HEADLINES.values())))
    if key not in run.metrics and (tested := key.replace("valid/", "test/")) in run.metrics:
        return tested
    return key


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; very small or large ones use exponents."""
    if not math.isfinite(value):
        return str(value)
    if not 1e-4 <= abs(value) < 1e6:
        return "0" if value == 0 else f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def metric_histories(runs: Sequence[RunRecord], key: str) -> pd.DataFrame:
    """Return a metric of several runs as rows `run_id, step, seconds, value`, in order of steps.

    Runs without the metric have no rows. Each curve is thinned to about `MAX_POINTS` values; its
    first, last, smallest and largest values are kept.
    """
    having = {run.run_id: run for run in runs if key in run.metrics}
    found = list(_values(client(), list(having), key)) if having else []
    if not found:
        return pd.DataFrame(columns=list(HISTORY_COLUMNS))
    frame = pd.DataFrame(found, columns=["run_id", "step", "milliseconds", "value"])
    started = frame["run_id"].map({run_id: run.started_ms for run_id, run in having.items()})
    frame["seconds"] = (frame.pop("milliseconds") - started) / 1000
    places = frame["run_id"].map({run_id: place for place, run_id in enumerate(having)})
    order = np.lexsort((frame["seconds"], frame["step"], places))
    curves = frame.iloc[order].groupby("run_id", sort=False)
    return pd.concat([thin(curve) for _, curve in curves], ignore_index=True)[[*HISTORY_COLUMNS]]


def _values(
    connected: MlflowClient, run_ids: Sequence[str], key: str
) -> Iterator[tuple[str, int, int, float]]:
    """Yield each value of a metric as (run id, step, time in milliseconds, value).

    A database returns all runs in one query; a server needs one request per run.
    """
    if (base := database_of(connected)) is not None:
        with store.using(f"metric {key}"):
            for found in base.get_metric_history_bulk(run_ids, key, sys.maxsize):
                yield found.run_id, found.step, found.timestamp, stored_number(found.value)
        return

    def read(run_id: str) -> list[Metric]:
        with store.using(f"metric {key} of run {run_id}"):
            return list(connected.get_metric_history(run_id, key))

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for run_id, history in zip(run_ids, threads.map(read, run_ids), strict=True):
            for found in history:
                yield run_id, found.step, found.timestamp, stored_number(found.value)


def run_histories(run: RunRecord) -> dict[str, pd.DataFrame]:
    """Return the curve of each metric of a run, by key, as `metric_histories` returns it."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        keys = sorted(run.metrics)
        frames = threads.map(lambda key: metric_histories([run], key), keys)
        return dict(zip(keys, frames, strict=True))


def thin(frame: pd.DataFrame, max_points: int = MAX_POINTS) -> pd.DataFrame:
    """Return at most about `max_points` rows of a curve, including its smallest and largest."""
    if len(frame) <= max_points:
        return frame
    places = np.linspace(0, len(frame) - 1, max_points).astype(int)
    values = frame["value"].to_numpy(float)
    if np.isfinite(values).any():
        places = np.union1d(places, [int(np.nanargmin(values)), int(np.nanargmax(values))])
    return frame.iloc[places]


def smooth(frame: pd.DataFrame, weight: float) -> pd.DataFrame:
    """Return the curves with `value` smoothed exponentially, separately for each run.

    `weight` in [0, 1) is the weight of the earlier values. The start of a curve is corrected for
    its short history.
    """
    if weight <= 0 or frame.empty:
        return frame
    frame = frame[np.isfinite(frame["value"].astype(float))]
    smoothed = frame.groupby("run_id", sort=False)["value"].transform(
        lambda values: values.ewm(alpha=1 - weight, adjust=True).mean()
    )
    return frame.assign(value=smoothed)


def pick_values(frame: pd.DataFrame, key: str, pick: Pick) -> dict[str, float]:
    """Return one value per run: its best or its last.

    `best` is the best finite value. It is the last value if neither direction of a metric is
    better, if no value is finite, and for a test metric, because the test split chooses nothing.
    """
    chooses = pick == "best" and not key.startswith(TEST_PREFIX)
    direction = direction_of(key) if chooses else None
    chosen: dict[str, float] = {}
    for run_id, values in frame.groupby("run_id", sort=False)["value"]:
        finite = values[np.isfinite(values)]
        if direction is None or finite.empty:
            chosen[str(run_id)] = float(values.iloc[-1])
        else:
            chosen[str(run_id)] = float(finite.max() if direction == "larger" else finite.min())
    return chosen


@dataclass(frozen=True)
class EpochProgress:
    """Finished epochs, total epochs, and remaining seconds; None until the speed is known."""

    epochs: float
    total_epochs: float
    seconds_left: float | None

    @property
    def share(self) -> float:
        return min(1.0, self.epochs / self.total_epochs)


def progress_of(run: RunRecord, curve: pd.DataFrame) -> EpochProgress | None:
    """Return the progress of a training run; None for other runs and if it is not known.

    `curve` is the metric `train/epoch`: rows `step, seconds, value`, in order of steps.
    """
    if run.tags.get(names.TAG_KIND) != names.KIND_TRAIN:
        return None
    total = whole_number(run.params.get(f"{TRAINING}num_epochs", ""))
    if not total:
        return None
    curve = curve[np.isfinite(curve["value"].astype(float)) & (curve["value"] >= 0)]
    if curve.empty:
        return EpochProgress(0.0, total, None)
    last = curve.iloc[-1]
    max_steps = whole_number(run.params.get(f"{TRAINING}max_steps", ""))
    if max_steps and last["step"] > 0:
        total = min(total, max_steps * last["value"] / last["step"])
    if not total:
        return None
    # Use the later half of the time: a resumed run starts with all its earlier values at once.
    first = curve[curve["seconds"] >= curve["seconds"].agg(["min", "max"]).mean()].iloc[0]
    done, seconds = last["value"] - first["value"], last["seconds"] - first["seconds"]
    left = (total - last["value"]) * seconds / done if done > 0 else None
    return EpochProgress(float(last["value"]), total, left)


def whole_number(text: str) -> int | None:
    """Return a count that is stored as text; None for any other text, which a tool may store."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


@dataclass(frozen=True)
class Estimate:
    """A ratio or another mean over rounds, with its 95 % interval by Student's t."""

    value: float
    low: float
    """Lower end of the interval; minus infinity after a single round."""
    high: float
    rounds: int

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Self | None:
        """Return the mean of the values; None if there are no values."""
        if not values:
            return None
        mean, count = statistics.fmean(values), len(values)
        if count == 1:
            return cls(mean, -math.inf, math.inf, count)
        error = statistics.stdev(values) / math.sqrt(count)
        half = error * float(stdtrit(count - 1, 0.975))
        return cls(mean, mean - half, mean + half, count)

    @classmethod
    def of_ratios(cls, values: Mapping[S, float], base: Mapping[S, float]) -> Self | None:
        """Return the geometric mean of the ratios of the rounds that both have.

        Returns None if one of the values is zero or negative, because such a ratio has no meaning.
        """
        seeds = values.keys() & base.keys()
        if any(values[seed] <= 0 or base[seed] <= 0 for seed in seeds):
            return None
        found = cls.of_values([math.log(values[seed] / base[seed]) for seed in seeds])
        if found is None:
            return None
        return cls(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.rounds)


def own_metric(runs: Sequence[RunRecord]) -> str:
    """Return the default metric for choosing among the runs: the main metric of their task.

    If the runs have several tasks, the task that comes first in `HEADLINES` counts.
    """
    headlines = list(HEADLINES.values())
    return next((key for key in headlines if any(key in run.metrics for run in runs)), headlines[0])


def find_best_run(experiment: str, metric: str = "") -> tuple[RunRecord, int]:
    """Return the finished training run with the best value of a metric, and of how many.

    For a validation metric, the value at the run's best checkpoint counts, not the last value.
    Without a name, the metric is `own_metric` of the runs.
    """
    query = RunQuery((experiment_id_of(experiment),), kind=names.KIND_TRAIN, status="FINISHED")
    runs = list(every_run(query))
    if not runs:
        advice = "train one (`clew train`) or give another experiment"
        raise TrackingError(f"experiment {experiment!r} has no finished training run; {advice}")
    return best_of_runs(runs, metric or own_metric(runs), f" of experiment {experiment!r}")


def best_of_runs(runs: Sequence[RunRecord], metric: str, where: str = "") -> tuple[RunRecord, int]:
    """Return the run with the best value of a metric (of equals, the first), and of how many."""
    tested = [run for run in runs if run.params.get(HELD_OUT, "").lower() == "false"]
    having = [run for run in runs if metric in run.metrics and run not in tested]
    if not having:
        valid = {key for run in runs for key in run.metrics if key.startswith("valid/")}
        known = f"they have {', '.join(sorted(valid)) or 'none'}"
        raise TrackingError(f"no run{where} has metric {metric!r} of validation examples; {known}")
    choose = max if maximizes(metric) else min
    rated = [(value_at_best(run, metric), run) for run in having]
    finite = [(value, run) for value, run in rated if math.isfinite(value)]
    if not finite:
        problem = f"{metric!r} is NaN or infinite in all {len(having)} runs{where} that have it"
        raise TrackingError(f"{problem}; choose by another metric")
    return choose(finite, key=lambda rating: rating[0])[1], len(finite)


def value_at_best(run: RunRecord, metric: str) -> float:
    """Return a metric's value at the run's best checkpoint, or the last value if it has none."""
    best_step = run.tags.get(names.TAG_BEST_STEP, "")
    if not metric.startswith("valid/") or whole_number(best_step) is None:
        return run.metrics[metric]
    with store.using(f"metric {metric} of run {run.run_id}"):
        history = client().get_metric_history(run.run_id, metric)
    at_best = [entry.value for entry in history if entry.step == int(best_step)]
    return float(at_best[-1]) if at_best else run.metrics[metric]
