"""Promote: register the best checkpoint of a run as a model that can be queried and served.

The order of steps ensures that no promotion is left half done, and that a command that was
interrupted can be repeated:

1. All checks run on local files.
2. The servable model is written, uploaded and registered as a new version without an alias.
3. The written model answers as on a server; the version's files must be those that were written.
4. The aliases move: `previous` first, then the alias that decides, which is read back.

A candidate that the gate refuses is kept as a version with the alias `challenger`, and the reason
is a tag of the version. A candidate that fails a final check before step 2, for example because it
cannot be loaded, is not registered.
"""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, PromotionRefused, TrackingError, quoted
from clew.files import working_folder, write_json
from clew.runs.base import DataSet, RegisteredVersion, Tracker
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.metrics import find_best_run, own_metric
from clew.runs.reading.runs import RunRecord, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.registry import Registry, check_alias, check_name
from clew.runs.store import acting_person
from clew.workflows.gate import Check, Gate
from clew.workflows.model_source import model_of
from clew.workflows.open_run import OpenedRun
from clew.workflows.resume import require_dead
from clew.workflows.training_run import open_other_run

Report = Callable[[Check], None]

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


@dataclass(frozen=True)
class PromotionResult:
    """The outcome of a promotion or a rollback."""

    name: str
    alias: str
    number: str | None
    former: str | None
    run_id: str
    outcome: str
    refused: bool = False
    checks: tuple[Check, ...] = ()

    @property
    def uri(self) -> str:
        return f"models:/{self.name}@{self.alias}"

    def table(self) -> str:
        """Return the outcome as text, with the command to serve the model if there is a version."""
        if self.refused or self.number is None:
            tried = self.checks and not self.refused
            return self.outcome + (f"\nnext: clew promote {self.run_id}" if tried else "")
        uri = shlex.quote(self.uri)
        serve = f"next: mlflow models serve -m {uri} --env-manager local"
        return "\n".join([self.outcome, self.uri, serve, f"next: clew evaluate --model {uri}"])

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"uri": self.uri}


def promote(request: PromotionRequest, report: Report = lambda check: None) -> PromotionResult:
    """Check a run's best checkpoint, register it, and give it the alias, by default champion.

    Raises:
        UsageError: The run, the metric, the name or the registry cannot be used.
        PromotionRefused: A check failed, or another process moved the aliases in the meantime.
    """
    alias = request.alias or names.ALIAS_CHAMPION
    check_alias(alias, reserved=frozenset({names.ALIAS_PREVIOUS, names.ALIAS_CHALLENGER}))
    if request.name:
        check_name(request.name)
    if request.metric and not request.metric.startswith("valid/"):
        raise ConfigError(
            f"metric {quoted(request.metric)} cannot decide a promotion: the validation split "
            "decides, test figures are only reported; give a metric such as valid/mrr"
        )
    registry = Registry()
    run, tries = _choose_run(request)
    metric = request.metric or own_metric([run])
    maximize = names.maximizes(metric)
    with working_folder("promote", holds=f"run {run.run_id}") as folder:
        candidate = model_of(OpenedRun(run.run_id, folder, run.run_id))
        name = request.name or names.default_model_name(run.tags.get(names.TAG_DATASET, "model"))
        if not request.dry_run:
            _end_dead_promotions(registry)
        number = registry.aliases(name).get(alias)
        champion = registry.version(name, number) if number else None
        gate = Gate(candidate, champion, metric, maximize, folder, tries)
        challenge = Challenge(registry, name, alias, gate, report, request.force)
        tags = {key: run.tags[key] for key in TRAINING_TAGS if key in run.tags}
        result = challenge.run(tags, dry_run=request.dry_run)
    if result.refused:
        raise PromotionRefused(result.outcome)
    return result


def rollback(name: str, alias: str = "", *, dry_run: bool = False) -> PromotionResult:
    """Give an alias back to the version that had it before; a second rollback undoes the first.

    Raises:
        ConfigError: No name is given, or it is not valid.
        TrackingError: There is no such model or no former version.
        PromotionRefused: Another process moved the aliases in the meantime.
    """
    alias = alias or names.ALIAS_CHAMPION
    if not name:
        raise ConfigError("rollback needs --name, the registered model whose alias goes back")
    check_name(name)
    previous, registry = alias_beside(alias, names.ALIAS_PREVIOUS), Registry()
    now = registry.version_at(name, alias)
    number = registry.aliases(name).get(previous)
    if number == now.number:  # a process died in `hand_over`
        number = now.tags.get(f"{names.TAG_FORMER}.{alias}")
    if number is None:
        raise TrackingError(
            f"version {now.number} is the first {alias} of {name!r}: there is no earlier one to go "
            "back to"
        )
    former = registry.version(name, number)
    if not dry_run:
        hand_over(registry, former, alias, now)
        registry.tag(former, {names.TAG_ROLLED_BACK_BY: acting_person()})
    done, becomes = ("dry run, nothing written", "would be") if dry_run else ("rolled back", "is")
    outcome = (
        f"{done}: {alias} of {name} {becomes} version {former.number} again, version {now.number} "
        f"{becomes} {previous}"
    )
    number = None if dry_run else former.number
    return PromotionResult(name, alias, number, now.number, former.run_id, outcome)


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
    # Tags that the dead process recorded are still in its spool, and replace these tags.
    tags, kind = {names.TAG_DECISION: CUT_OFF}, names.KIND_PROMOTE
    for run in found:
        with suppress(TrackingError):  # it is alive, or of somebody else and may not be changed
            if run.status == "RUNNING":
                require_dead(run)
            registry.abandon(run.run_id, CUT_OFF)
            open_tracker(TrackingConfig(), kind=kind, run_id=run.run_id, tags=tags).finish("KILLED")


def hand_over(
    registry: Registry, version: RegisteredVersion, alias: str, former: RegisteredVersion | None
) -> None:
    """Give a version an alias; the version that had it becomes `previous`.

    A process that dies between the two leaves `former` with both aliases, so a tag of `former` says
    which version was `previous` until then.
    """
    if former is not None:
        registry.require_alias(version.name, alias, former.number)
        previous = alias_beside(alias, names.ALIAS_PREVIOUS)
        before = registry.aliases(version.name).get(previous, former.number)
        if before != former.number:
            registry.tag(former, {f"{names.TAG_FORMER}.{alias}": before})
        registry.set_alias(version.name, previous, former.number)
    expected = former.number if former else None
    registry.move_alias(version.name, alias, version.number, expected=expected)


def alias_beside(alias: str, role: str) -> str:
    return role if alias == names.ALIAS_CHAMPION else f"{alias}-{role}"


@dataclass(frozen=True)
class Challenge:
    """One candidate against the champion."""

    registry: Registry
    name: str
    alias: str
    gate: Gate
    report: Report
    force: str
    """Reason to overrule failed checks that are not final; empty: they are not overruled."""

    def run(self, tags: Mapping[str, str], *, dry_run: bool) -> PromotionResult:
        """Check and register the candidate, check it as served, and move the aliases."""
        candidate, champion = self.gate.candidate, self.gate.champion
        if champion and champion.tags.get(names.TAG_WEIGHTS) == self.gate.weights_digest:
            outcome = f"nothing to do: version {champion.number} of {self.name} is {self.alias}"
            return self._result(champion.number, (), f"{outcome} with the same weights")
        if dry_run:
            return self._dry_run()
        kind, own = names.KIND_PROMOTE, dict(tags) | {names.TAG_SOURCE_RUN: self.run_id}
        with open_other_run(candidate.config, kind, f"promote {self.name}", own) as tracker:
            data = tags.get(names.TAG_DATASET, ""), tags.get(names.TAG_DATA_FINGERPRINT, "")
            tracker.dataset(DataSet(*data, candidate.config.data.source, "promotion"))
            result = self._decide(tracker)
            self._record(tracker, result)
        return result

    def _decide(self, tracker: Tracker) -> PromotionResult:
        checks, gate, registry = self._checks(), self.gate, self.registry
        if (final := _final(checks)) is not None:
            outcome = f"run {self.run_id} is not promoted and not registered: {final}"
            return self._result(None, checks, outcome, refused=True)
        failed = [check for check in checks if not check.passed]
        tags = gate.describe_candidate()
        if failed and not self.force and (kept := self._kept(tags)):
            return self._refuse(kept, checks, _reasons(failed))
        tags |= {names.TAG_PROMOTE_RUN: tracker.run_id or ""}
        version = registry.register(self.name, gate.package, run_id=self.run_id, tags=tags)
        registry.describe(version, gate.card(version.uri))
        served = gate.served(registry, version)
        checks.append(served)
        self.report(served)
        if not served.passed:
            failed.append(served)
        if failed and (not self.force or not served.passed):
            return self._refuse(version, checks, _reasons(failed))
        verdict = {names.TAG_VALIDATION: names.VALIDATION_PASSED}
        if failed:
            verdict = {
                names.TAG_VALIDATION: names.VALIDATION_FORCED,
                names.TAG_FORCED_BECAUSE: self.force,
                names.TAG_REFUSED_BECAUSE: _reasons(failed),
            }
            tracker.tags({names.TAG_FORCED_BECAUSE: self.force})
        registry.tag(version, verdict | {names.TAG_PROMOTED_BY: acting_person()})
        try:
            hand_over(registry, version, self.alias, gate.champion)
        except PromotionRefused as error:
            return self._refuse(version, checks, str(error))
        outcome = f"{'forced' if failed else 'promoted'}: version {version.number} of {self.name} "
        outcome += f"is {self.alias}"
        if former := gate.champion:
            previous = alias_beside(self.alias, names.ALIAS_PREVIOUS)
            outcome += f", version {former.number} is {previous}"
        return self._result(version.number, checks, outcome)

    def _checks(self) -> list[Check]:
        checks = []
        for check in self.gate.checks():
            checks.append(check)
            self.report(check)
        return checks

    def _kept(self, tags: Mapping[str, str]) -> RegisteredVersion | None:
        """Return the version that was refused before, if all that is said of it is the same."""
        refused = dict(tags) | {names.TAG_VALIDATION: names.VALIDATION_FAILED}
        challenger = alias_beside(self.alias, names.ALIAS_CHALLENGER)
        number = self.registry.aliases(self.name).get(challenger)
        kept = self.registry.version(self.name, number) if number else None
        return kept if kept and refused.items() <= kept.tags.items() else None

    def _refuse(self, version: RegisteredVersion, checks: list[Check], why: str) -> PromotionResult:
        """Keep the refused version as challenger, with the reason."""
        verdict = {names.TAG_VALIDATION: names.VALIDATION_FAILED}
        self.registry.tag(version, verdict | {names.TAG_REFUSED_BECAUSE: why})
        challenger = alias_beside(self.alias, names.ALIAS_CHALLENGER)
        self.registry.set_alias(self.name, challenger, version.number)
        outcome = (
            f"run {self.run_id} is not promoted: {why} (kept as version "
            f"{version.number} of {self.name}, alias {challenger})"
        )
        return self._result(version.number, checks, outcome, refused=True)

    def _dry_run(self) -> PromotionResult:
        checks = self._checks()
        failed = [check for check in checks if not check.passed]
        refused = bool(failed) and (not self.force or _final(checks) is not None)
        outcome = f"dry run, nothing written: run {self.run_id} would "
        outcome += f"not be promoted: {_reasons(failed)}" if refused else f"become {self.alias}"
        return self._result(None, checks, outcome, refused=refused)

    def _record(self, tracker: Tracker, result: PromotionResult) -> None:
        step = self.gate.candidate.manifest.step
        tracker.metrics(self.gate.metrics, step)
        tracker.metrics({f"champion/{k}": v for k, v in self.gate.champion_metrics.items()}, step)
        version = f"models:/{result.name}/{result.number}" if result.number else ""
        decision = {names.TAG_MODEL_VERSION: version, names.TAG_DECISION: result.outcome}
        tracker.tags({key: value for key, value in decision.items() if value})
        with working_folder("promotion") as folder:
            path = folder / names.ARTIFACT_PROMOTION
            write_json(path, result.as_dict())
            tracker.artifact(path)

    @property
    def run_id(self) -> str:
        return self.gate.candidate.run_id or ""

    def _result(
        self, number: str | None, checks: Sequence[Check], outcome: str, *, refused: bool = False
    ) -> PromotionResult:
        former = self.gate.champion.number if self.gate.champion else None
        return PromotionResult(
            self.name, self.alias, number, former, self.run_id, outcome, refused, tuple(checks)
        )


def _reasons(failed: Sequence[Check]) -> str:
    return "; ".join(check.detail for check in failed)


def _final(checks: Sequence[Check]) -> str | None:
    """Return the detail of the failed final check, which cannot be overruled; None if none."""
    return next((c.detail for c in checks if c.final and not c.passed), None)
