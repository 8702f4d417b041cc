"""Promote: register the best checkpoint of a run as a model that can be queried and served.

A command that was interrupted can be repeated: it reuses the version that it finds, and ends the
run that was left behind. The promotion of one candidate is in `challenge`.
"""

from dataclasses import dataclass

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, PromotionRefused, TrackingError, quoted
from clew.files import working_folder
from clew.names import maximizes
from clew.runs.alias_moves import move_aliases, settle_moves
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.best_run import find_best_run, own_metric
from clew.runs.reading.runs import RunRecord, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.registry import RegisteredVersion, Registry, check_alias, check_name
from clew.runs.store import acting_person
from clew.workflows.model_source import open_run_best
from clew.workflows.promoting.challenge import (
    Challenge,
    PromotionResult,
    Report,
    alias_beside,
)
from clew.workflows.promoting.gate import Gate
from clew.workflows.resume import require_dead

__all__ = ["PromotionRequest", "PromotionResult", "promote", "rollback"]

CUT_OFF = "the promotion's process ended before a decision was recorded"

# Tags that a promotion's run copies from the training run.
TRAINING_TAGS = (
    names.TAG_TASK,
    names.TAG_DATASET,
    names.TAG_DATA_FINGERPRINT,
    names.TAG_CONFIG_HASH,
    names.TAG_VARIANT,
)


@dataclass(frozen=True)
class PromotionRequest:
    """What to promote, and how; an empty field has a default.

    `force` is a reason to overrule failed checks that are not final. It is recorded.
    """

    run_id: str = ""
    experiment: str = ""
    metric: str = ""
    name: str = ""
    alias: str = ""
    dry_run: bool = False
    force: str = ""


def promote(request: PromotionRequest, report: Report = lambda check: None) -> PromotionResult:
    """Check a run's best checkpoint, register it, and give it the alias, by default champion.

    Args:
        request: The run, the model's name and the alias.
        report: Called with the result of each check when it is done.

    Raises:
        UsageError: The run, the metric, the name or the registry cannot be used.
        PromotionRefused: A check failed, or another process moved the aliases in the meantime.
    """
    alias = request.alias or names.ALIAS_CHAMPION
    check_alias(alias, reserved=frozenset({names.ALIAS_PREVIOUS, names.ALIAS_CHALLENGER}))
    if request.name:
        check_name(request.name)
    _check_metric(request.metric)
    registry = Registry.connect()
    run, tries = _choose_run(request)
    metric = request.metric or own_metric([run])
    maximize = maximizes(metric)
    with working_folder("promote", holds=f"run {run.run_id}") as folder:
        candidate = open_run_best(run.run_id, folder)
        name = request.name or names.default_model_name(run.tags.get(names.TAG_DATASET, "model"))
        if request.dry_run:
            state = registry.state(name)
            before = dict(state.aliases if state else {})
        else:
            _end_dead_promotions(registry)
            before = dict(settle_moves(registry, name))
        champion = registry.version(name, before[alias]) if alias in before else None
        gate = Gate(candidate, champion, metric, maximize, folder, tries)
        challenge = Challenge(registry, name, alias, before, gate, report, request.force)
        tags = {key: run.tags[key] for key in TRAINING_TAGS if key in run.tags}
        result = challenge.run(tags, dry_run=request.dry_run)
    if result.refused:
        raise PromotionRefused(result.outcome)
    return result


def rollback(name: str, alias: str = "", *, dry_run: bool = False) -> PromotionResult:
    """Give an alias back to the version that had it before; a second rollback undoes the first.

    Args:
        name: The registered model.
        alias: The alias; empty: champion.
        dry_run: Only report what would happen, and write nothing.

    Raises:
        ConfigError: No name is given, or it is not valid.
        TrackingError: There is no such model or no former version.
        PromotionRefused: Another process moved the aliases in the meantime.
    """
    alias = alias or names.ALIAS_CHAMPION
    if not name:
        raise ConfigError("rollback needs --name, the registered model whose alias goes back")
    check_name(name)
    previous, registry = alias_beside(alias, names.ALIAS_PREVIOUS), Registry.connect()
    if not dry_run:
        settle_moves(registry, name)
    now = registry.version_at(name, alias)
    former = _former_version(registry, now, alias, previous)
    if now.number == former.number:
        raise TrackingError(f"{alias!r} and {previous!r} of {name!r} are the same version")
    if dry_run:
        outcome = (
            f"dry run, nothing written: {alias} of {name} would be version {former.number} again, "
            f"version {now.number} would be {previous}"
        )
        return PromotionResult(name, alias, None, now.number, former.run_id, outcome)
    before = {alias: now.number, previous: former.number}
    after = {alias: former.number, previous: now.number}
    move_aliases(registry, name, before=before, after=after)
    registry.tag(former, {names.TAG_ROLLED_BACK_BY: acting_person()})
    outcome = (
        f"rolled back: {alias} of {name} is version {former.number} again, version {now.number} "
        f"is {previous}"
    )
    return PromotionResult(name, alias, former.number, now.number, former.run_id, outcome)


def _former_version(
    registry: Registry, now: RegisteredVersion, alias: str, previous: str
) -> RegisteredVersion:
    """Return the version that had the alias before the one that has it now."""
    state = registry.state(now.name)
    if state is not None and previous not in state.aliases:
        raise TrackingError(
            f"version {now.number} is the first {alias} of {now.name!r}: there is no earlier one "
            "to go back to"
        )
    return registry.version_at(now.name, previous)


def _check_metric(metric: str) -> None:
    """Refuse to promote by other metrics than those of the validation split.

    Raises:
        ConfigError: The metric cannot decide.
    """
    if metric and not metric.startswith("valid/"):
        own = metric.rpartition("/")[2]
        raise ConfigError(
            f"metric {quoted(metric)} cannot decide a promotion: the validation split decides, "
            f"test figures are only reported; give a metric such as valid/{own}"
        )


def _choose_run(request: PromotionRequest) -> tuple[RunRecord, int]:
    if bool(request.run_id) == bool(request.experiment):
        given = "both" if request.run_id else "neither"
        raise ConfigError(
            f"{given} of --run-id and --experiment given; give either the run, or the experiment "
            "whose best run is to be promoted"
        )
    if request.experiment:
        return find_best_run(request.experiment, request.metric)
    run = find_run(request.run_id)
    if request.metric and request.metric not in run.metrics:
        known = sorted(key for key in run.metrics if key.startswith("valid/"))
        raise TrackingError(
            f"run {run.run_id} has no metric {request.metric!r}; it has "
            f"{', '.join(known) or 'none'}"
        )
    return run, 1


def _end_dead_promotions(registry: Registry) -> None:
    """End the runs of promotions whose process died, and clean up what they left in the registry.

    A run that is FAILED without a decision died too, and `clew sync` ended it.
    """
    found = [
        run
        for status in ("RUNNING", "FAILED")
        for run in search_runs(RunQuery(kind=names.KIND_PROMOTE, status=status)).runs
        if names.TAG_DECISION not in run.tags
    ]
    for run in found:
        if run.status == "RUNNING":
            try:
                require_dead(run)
            except TrackingError:
                continue  # it is alive
        registry.abandon(run.run_id, run.tags.get(names.TAG_SOURCE_RUN, ""), CUT_OFF)
        # Tags that the dead process recorded are still in its spool, and replace these tags.
        tags = {names.TAG_DECISION: CUT_OFF}
        left = open_tracker(TrackingConfig(), kind=names.KIND_PROMOTE, run_id=run.run_id, tags=tags)
        left.finish("KILLED")
