"""Chooses the best run of an experiment by the value of a metric at its best checkpoint."""

import math
from collections.abc import Sequence

from clew import names
from clew.errors import TrackingError
from clew.names import maximizes
from clew.runs import store
from clew.runs.reading.metrics import HEADLINES, whole_number
from clew.runs.reading.runs import RunRecord, client
from clew.runs.reading.search import RunQuery, every_run, experiment_id_of

HELD_OUT = f"{names.PARAMETER_PREFIX}data.hold_out_validation"
"""Parameter that is false if the metrics `valid/` of a run are those of its test examples."""


def own_metric(runs: Sequence[RunRecord]) -> str:
    """Return the default metric for choosing among the runs: the main metric of their task.

    If the runs have several tasks, the task that comes first in `HEADLINES` counts.
    """
    headlines = list(HEADLINES.values())
    found = (key for key in headlines if any(key in run.metrics for run in runs))
    return next(found, headlines[0])


def find_best_run(experiment: str, metric: str = "") -> tuple[RunRecord, int]:
    """Return the finished training run with the best value of a metric, and of how many.

    For a validation metric, the value at the run's best checkpoint counts, not the last value.
    Without a name, the metric is `own_metric` of the runs.

    Raises:
        TrackingError: There is no such experiment, no finished training run in it, or no run with
            a finite value of the metric.
        ConfigError: The metric does not say which of two values is better.
    """
    query = RunQuery((experiment_id_of(experiment),), kind=names.KIND_TRAIN, status="FINISHED")
    runs = list(every_run(query))
    if not runs:
        raise TrackingError(
            f"experiment {experiment!r} has no finished training run; train one (`clew train`) or "
            "give another experiment"
        )
    where = f" of experiment {experiment!r}"
    return best_of_runs(runs, metric or own_metric(runs), where=where)


def best_of_runs(
    runs: Sequence[RunRecord],
    metric: str,
    *,
    where: str = "",
) -> tuple[RunRecord, int]:
    """Return the run with the best value of a metric (of equal runs, the first), and of how many.

    Raises:
        TrackingError: No run has the metric, or no run has a finite value of it.
        ConfigError: The metric does not say which of two values is better.
    """
    tested = [run for run in runs if run.params.get(HELD_OUT, "").lower() == "false"]
    having = [run for run in runs if metric in run.metrics and run not in tested]
    if not having:
        known = sorted({key for run in runs for key in run.metrics})
        raise TrackingError(
            f"no run{where} has metric {metric!r} of validation examples; they have "
            f"{', '.join(key for key in known if key.startswith('valid/')) or 'none'}"
        )
    choose = max if maximizes(metric) else min
    rated = [(value_at_best(run, metric), run) for run in having]
    finite = [(value, run) for value, run in rated if math.isfinite(value)]
    if not finite:
        raise TrackingError(
            f"{metric!r} is NaN or infinite in all {len(having)} runs{where} that have it; choose "
            "by another metric"
        )
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
