"""Promote: the best checkpoint of a run becomes a registered model that can be asked and served.

Order of things, so that nothing is ever half moved: everything is checked on local files first;
then the servable model is uploaded and becomes a version, which nobody uses by itself; then it is
loaded again from the registry and asked; only then do aliases move (`clew.runs.alias_moves`).
A candidate that the gate refuses is kept as a version under the alias `challenger`, with the reason
as a tag; one that cannot even be loaded is not registered. A command that was cut off may simply
be run again: it takes up the version that it finds.
"""

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clew import names
from clew.config.directions import maximizes
from clew.errors import ConfigError, PromotionRefused, TrackingError
from clew.runs.alias_moves import move_aliases, settle_dead_claims
from clew.runs.reading.best_run import best_of_runs, find_best_run
from clew.runs.reading.runs import find_run
from clew.runs.registry import Registry, check_alias, check_name
from clew.workflows.model_source import ModelSource, open_run_best
from clew.workflows.promotion import (
    Promotion,
    PromotionRequest,
    PromotionResult,
    Report,
    previous_of,
)
from clew.workflows.promotion_gate import Gate

__all__ = [
    "PromotionRequest",
    "PromotionResult",
    "default_name",
    "promote",
    "promote_best_of",
    "rollback",
]

DEFAULT_METRIC = "valid/mrr"


def promote(request: PromotionRequest, report: Report = lambda check: None) -> PromotionResult:
    """Register a run's best checkpoint, check it, and make it champion.

    Args:
        request: Which run, under which name.
        report: Called with each check as it is done.

    Raises:
        UsageError: the run, the metric, the name or the registry cannot be used.
        PromotionRefused: the gate said no, or somebody else was faster.
    """
    alias = request.alias or names.ALIAS_CHAMPION
    check_alias(alias, reserved=frozenset({names.ALIAS_PREVIOUS, names.ALIAS_CHALLENGER}))
    if request.name:
        check_name(request.name)
    registry = Registry.connect()
    metric = request.metric or DEFAULT_METRIC
    run_id = _choose_run(request, metric)
    maximize = maximizes(metric)
    with tempfile.TemporaryDirectory(prefix="clew-promote-") as folder:
        candidate = open_run_best(run_id, Path(folder) / "candidate")
        _require_servable(candidate)
        name = request.name or default_name(find_run(run_id).tags.get(names.TAG_DATASET, "model"))
        promotion = Promotion.begin(registry, request, name, alias)
        gate = Gate(
            candidate,
            champion=promotion.holder(),
            metric=metric.rpartition("/")[2],
            maximize=maximize,
            work=Path(folder),
        )
        result = promotion.run(gate, report)
    if result.refused:
        raise PromotionRefused(result.outcome)
    return result


def promote_best_of(
    run_ids: Sequence[str],
    request: PromotionRequest,
    report: Report = lambda check: None,
) -> PromotionResult:
    """Promote the best of some runs by the metric of the request, the first of equals.

    Raises:
        UsageError: as `promote`; also if a run does not have the metric.
        PromotionRefused: as `promote`.
    """
    metric = request.metric or DEFAULT_METRIC
    best = best_of_runs([find_run(run_id) for run_id in run_ids], metric)
    return promote(dataclasses.replace(request, run_id=best.run_id, experiment=""), report)


def rollback(name: str, alias: str = "", *, dry_run: bool = False) -> PromotionResult:
    """Give an alias back to the version that had it before; once more undoes that.

    Args:
        name: The registered model.
        alias: Which alias; champion unless given.
        dry_run: Say what would happen, and write nothing.

    Raises:
        TrackingError: there is no such model or no former version.
        PromotionRefused: somebody else moved the aliases meanwhile.
    """
    alias = alias or names.ALIAS_CHAMPION
    if not name:
        raise ConfigError("rollback needs --name, the registered model whose alias goes back")
    check_name(name)
    registry = Registry.connect()
    if not dry_run:
        settle_dead_claims(registry, name)
    now = registry.version_at(name, alias)
    former = registry.version_at(name, previous_of(alias))
    before = {previous_of(alias): former.number, alias: now.number}
    after = {previous_of(alias): now.number, alias: former.number}
    if before == after:
        raise TrackingError(
            f"{alias!r} and {previous_of(alias)!r} of {name!r} are the same version"
        )
    if dry_run:
        outcome = (
            f"dry run, nothing written: {alias} of {name} would be version {former.number} again, "
            f"version {now.number} would be {previous_of(alias)}"
        )
        return PromotionResult(name, alias, None, now.number, former.run_id, outcome)
    move_aliases(registry, name, before=before, after=after)
    outcome = (
        f"rolled back: {alias} of {name} is version {former.number} again, version {now.number} "
        f"is {previous_of(alias)}"
    )
    return PromotionResult(name, alias, former.number, now.number, former.run_id, outcome)


def default_name(dataset: str) -> str:
    """Return the name that models of a data set are registered under unless told otherwise."""
    return f"clew-{re.sub(r'[^A-Za-z0-9_-]+', '-', dataset).strip('-') or 'model'}"


def _choose_run(request: PromotionRequest, metric: str) -> str:
    """Return the run that is meant: by its id, or the best of an experiment."""
    if bool(request.run_id) == bool(request.experiment):
        given = "both" if request.run_id else "neither"
        raise ConfigError(
            f"{given} of --run-id and --experiment given; give the run, or the experiment whose "
            "best run is meant"
        )
    if request.experiment:
        return find_best_run(request.experiment, metric).run_id
    run = find_run(request.run_id)
    if request.metric and request.metric not in run.metrics:
        known = sorted(key for key in run.metrics if key.startswith(("valid/", "test/")))
        raise TrackingError(
            f"run {run.run_id} has no metric {request.metric!r}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return run.run_id


def _require_servable(candidate: ModelSource) -> None:
    if candidate.manifest.task != names.TASK_LINK_PREDICTION:
        raise ConfigError(
            f"run {candidate.run_id} is {candidate.manifest.task}; only "
            f"{names.TASK_LINK_PREDICTION} models can be registered and served"
        )
