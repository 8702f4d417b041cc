"""Promote: the best checkpoint of a run becomes a registered model that can be asked and served.

Order of things, so that nothing is ever half moved: everything is checked on local files first;
then the servable model is uploaded and becomes a version, which nobody uses by itself; then it is
loaded again from the registry and asked; only then do aliases move (`clew.runs.registry`).
A candidate that the gate refuses is kept as a version under the alias `challenger`, with the reason
as a tag; one that cannot even be loaded is not registered. A command that was cut off may simply
be run again: it uses the version that it finds, and ends the run that was left behind.
"""

import dataclasses
import hashlib
import json
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew import __version__, names
from clew.config.directions import maximizes
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, PromotionRefused, TrackingError
from clew.runs.base import Tracker
from clew.runs.hardware import git_commit
from clew.runs.mlflow_store import open_tracker
from clew.runs.packaging import save_servable
from clew.runs.reading.best_run import best_of_runs, find_best_run
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.registry import (
    Registry,
    Version,
    check_alias,
    check_name,
    move_aliases,
    settle_moves,
)
from clew.training.checkpoints import MODEL_FILE
from clew.workflows.gate import Check, Gate
from clew.workflows.model_source import ModelSource, open_run_best
from clew.workflows.resume import require_dead
from clew.workflows.servables import SERVABLE_TASKS

DEFAULT_METRIC = "valid/mrr"
CUT_OFF = "the promotion's process ended before a decision was recorded"

# What a promotion's run says of itself in the words of the training run.
TRAINING_TAGS = (
    names.TAG_TASK,
    names.TAG_DATASET,
    names.TAG_DATA_FINGERPRINT,
    names.TAG_CONFIG_HASH,
    names.TAG_VARIANT,
)

Report = Callable[[Check], None]


@dataclass(frozen=True)
class PromotionRequest:
    """What a person asks for; what is empty has a default.

    `force` is a reason: with it, checks that are not final are overruled, and it is recorded.
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
    """What came of a promotion or a rollback."""

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
        """Address of whatever has the alias."""
        return f"models:/{self.name}@{self.alias}"

    def table(self) -> str:
        """Return the outcome for people."""
        if self.refused or self.number is None:
            return self.outcome
        serve = f"mlflow models serve -m {shlex.quote(self.uri)} --env-manager local"
        return f"{self.outcome}\n{self.uri}\nserve it with: {serve}"

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self) | {"uri": self.uri}


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
        if candidate.manifest.task not in SERVABLE_TASKS:
            raise ConfigError(
                f"run {run_id} is {candidate.manifest.task}; only "
                f"{', '.join(sorted(SERVABLE_TASKS))} models can be registered and served"
            )
        tags = find_run(run_id).tags
        name = request.name or names.default_model_name(tags.get(names.TAG_DATASET, "model"))
        if not request.dry_run:
            _end_dead_promotions(registry)
        state = registry.state(name) if request.dry_run else None
        before = dict(state.aliases if state else {})
        if not request.dry_run:
            before = dict(settle_moves(registry, name))
        champion = registry.version(name, before[alias]) if alias in before else None
        gate = Gate(candidate, champion, metric.rpartition("/")[2], maximize, Path(folder))
        result = _Promotion(registry, request, name, alias, before, gate, report).run(tags)
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
    previous, registry = _beside(alias, names.ALIAS_PREVIOUS), Registry.connect()
    if not dry_run:
        settle_moves(registry, name)
    now, former = registry.version_at(name, alias), registry.version_at(name, previous)
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
    outcome = (
        f"rolled back: {alias} of {name} is version {former.number} again, version {now.number} "
        f"is {previous}"
    )
    return PromotionResult(name, alias, former.number, now.number, former.run_id, outcome)


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


def _end_dead_promotions(registry: Registry) -> None:
    """End the runs of promotions whose process died, and what they left in the registry."""
    for run in search_runs(RunQuery(kind=names.KIND_PROMOTE, status="RUNNING")).runs:
        try:
            require_dead(run)
        except TrackingError:
            continue  # it is alive
        registry.abandon(run.run_id, run.tags[names.TAG_SOURCE_RUN], CUT_OFF)
        # What it recorded itself waits in its journal, and replaces these tags.
        tags = {names.TAG_DECISION: CUT_OFF}
        left = open_tracker(TrackingConfig(), kind=names.KIND_PROMOTE, run_id=run.run_id, tags=tags)
        left.finish("KILLED")


@dataclass(frozen=True)
class _Promotion:
    """One promotion; `before` are the aliases that its decision is based on."""

    registry: Registry
    request: PromotionRequest
    name: str
    alias: str
    before: Mapping[str, str]
    gate: Gate
    report: Report

    def run(self, training_tags: Mapping[str, str]) -> PromotionResult:
        """Check, register, check again, and move the aliases if nothing speaks against it."""
        candidate, champion = self.gate.candidate, self.gate.champion
        if champion and champion.tags.get(names.TAG_WEIGHTS) == _weights_digest(candidate):
            outcome = f"nothing to do: version {champion.number} of {self.name} is {self.alias}"
            return self._result(champion.number, (), f"{outcome} with these very weights")
        if self.request.dry_run:
            return self._dry_run()
        tags = {key: training_tags[key] for key in TRAINING_TAGS if key in training_tags}
        tracker = open_tracker(
            TrackingConfig(experiment=candidate.config.tracking.experiment),
            kind=names.KIND_PROMOTE,
            run_name=f"promote {self.name}",
            tags=tags | {names.TAG_SOURCE_RUN: candidate.run_id or ""},
        )
        with tracker:
            result = self._decide(tracker)
            self._record(tracker, result)
        return result

    def _decide(self, tracker: Tracker) -> PromotionResult:
        checks = self._checks()
        if (final := _final(checks)) is not None:
            outcome = f"run {self.run_id} is not promoted and not registered: {final}"
            return self._result(None, checks, outcome, refused=True)
        version = self._register(tracker.run_id)
        served = self.gate.served(self.registry, version)
        checks.append(served)
        self.report(served)
        failed = [check for check in checks if not check.passed]
        if failed and (not self.request.force or not served.passed):
            return self._refuse(version, checks, _reasons(failed))
        verdict = {names.TAG_VALIDATION: names.VALIDATION_PASSED}
        if failed:
            verdict = {
                names.TAG_VALIDATION: names.VALIDATION_FORCED,
                names.TAG_FORCED_BECAUSE: self.request.force,
                names.TAG_REFUSED_BECAUSE: _reasons(failed),
            }
            tracker.tags({names.TAG_FORCED_BECAUSE: self.request.force})
        self.registry.tag(version, verdict)
        former = self.before.get(self.alias)
        try:
            self._move(version, former)
        except PromotionRefused as error:
            return self._refuse(version, checks, str(error))
        outcome = f"{'forced' if failed else 'promoted'}: version {version.number} of {self.name} "
        outcome += f"is {self.alias}"
        outcome += f", version {former} is {self.previous}" if former else ""
        return self._result(version.number, checks, outcome)

    def _checks(self) -> list[Check]:
        checks = []
        for check in self.gate.checks():
            checks.append(check)
            self.report(check)
        return checks

    def _register(self, promote_run: str | None) -> Version:
        """Register the candidate as a pending version, or use one of the same weights."""
        tags, state = self._version_tags(promote_run), self.registry.state(self.name)
        aliases = state.aliases.items() if state else ()
        in_use = {number for alias, number in aliases if alias != self.challenger}
        same = (names.TAG_WEIGHTS, names.TAG_VERSION, names.TAG_PACKAGE_COMMIT)
        for version in self.registry.versions_of_run(self.name, self.run_id):
            is_same = all(version.tags.get(key) == tags[key] for key in same)
            if is_same and version.number not in in_use:
                self.registry.tag(version, tags)
                return version
        servable = self.gate.servable
        with tempfile.TemporaryDirectory(prefix="clew-register-") as folder:
            work = Path(folder)
            (work / "run").mkdir()
            model_folder = servable.write_folder(
                work / "model",
                checkpoint=self.gate.candidate.checkpoint,
                calibration=self.gate.calibration,
                work=work / "run",
            )
            package = save_servable(
                work / "servable",
                code=servable.serving_code,
                model_folder=model_folder,
                work=work / "copies",
                example=servable.example_rows()[0],
            )
            return self.registry.register(self.name, package, run_id=self.run_id, tags=tags)

    def _move(self, version: Version, former: str | None) -> None:
        """Move the alias, then what follows from it."""
        before: dict[str, str | None] = {self.alias: former}
        after: dict[str, str | None] = {self.alias: version.number}
        if former is not None:
            before[self.previous] = self.before.get(self.previous)
            after[self.previous] = former
        if self.before.get(self.challenger) == version.number:
            before[self.challenger], after[self.challenger] = version.number, None
        move_aliases(self.registry, self.name, before=before, after=after)

    def _refuse(self, version: Version, checks: list[Check], reason: str) -> PromotionResult:
        """Keep the version as challenger, with the reason."""
        state = self.registry.state(self.name)
        if state is not None and state.aliases.get(self.alias) == version.number:
            outcome = f"nothing to do: version {version.number} of {self.name} is {self.alias}"
            outcome += ", another process promoted it meanwhile"
            return self._result(version.number, checks, outcome)
        verdict = {
            names.TAG_VALIDATION: names.VALIDATION_FAILED,
            names.TAG_REFUSED_BECAUSE: reason,
        }
        self.registry.tag(version, verdict)
        self.registry.set_alias(self.name, self.challenger, version.number)
        outcome = (
            f"run {self.run_id} is not promoted: {reason} (kept as version "
            f"{version.number} of {self.name}, alias {self.challenger})"
        )
        return self._result(version.number, checks, outcome, refused=True)

    def _dry_run(self) -> PromotionResult:
        checks = self._checks()
        failed = [check for check in checks if not check.passed]
        refused = bool(failed) and (not self.request.force or _final(checks) is not None)
        outcome = f"dry run, nothing written: run {self.run_id} would "
        outcome += f"not be promoted: {_reasons(failed)}" if refused else f"become {self.alias}"
        return self._result(None, checks, outcome, refused=refused)

    def _record(self, tracker: Tracker, result: PromotionResult) -> None:
        """Record what was found and decided on the promotion's own run."""
        step = self.gate.candidate.manifest.step
        tracker.metrics(self.gate.metrics, step)
        tracker.metrics({f"champion/{k}": v for k, v in self.gate.champion_metrics.items()}, step)
        version = f"models:/{result.name}/{result.number}" if result.number else ""
        decision = {names.TAG_MODEL_VERSION: version, names.TAG_DECISION: result.outcome}
        tracker.tags({key: value for key, value in decision.items() if value})
        with tempfile.TemporaryDirectory(prefix="clew-promotion-") as folder:
            path = Path(folder) / names.ARTIFACT_PROMOTION
            path.write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
            tracker.artifact(path)

    def _version_tags(self, promote_run: str | None) -> dict[str, str]:
        """Return what a version says of itself."""
        manifest, task = self.gate.candidate.manifest, self.gate.model.task
        tags = {
            names.TAG_VALIDATION: names.VALIDATION_PENDING,
            names.TAG_SOURCE_RUN: self.run_id,
            names.TAG_TASK: task.kind,
            names.TAG_DATASET: task.dataset,
            names.TAG_DATA_FINGERPRINT: manifest.data_fingerprint,
            names.TAG_CONFIG_HASH: manifest.config_hash,
            names.TAG_COMMIT: manifest.commit,
            names.TAG_CHECKPOINT_STEP: str(manifest.step),
            names.TAG_WEIGHTS: _weights_digest(self.gate.candidate),
            names.TAG_VERSION: __version__,
            names.TAG_PACKAGE_COMMIT: git_commit() or "unknown",
        }
        if promote_run is not None:
            tags[names.TAG_PROMOTE_RUN] = promote_run
        if self.gate.calibration is not None:
            tags[names.TAG_TEMPERATURE] = f"{self.gate.calibration.temperature:.6g}"
        metrics = self.gate.metrics.items()
        return tags | {f"{names.TAG_METRIC_PREFIX}{k}": f"{v:.8g}" for k, v in metrics}

    @property
    def previous(self) -> str:
        """Alias of the version that had the alias before."""
        return _beside(self.alias, names.ALIAS_PREVIOUS)

    @property
    def challenger(self) -> str:
        """Alias of the version that was last refused the alias."""
        return _beside(self.alias, names.ALIAS_CHALLENGER)

    @property
    def run_id(self) -> str:
        """The training run whose checkpoint is promoted."""
        return self.gate.candidate.run_id or ""

    def _result(
        self, number: str | None, checks: Sequence[Check], outcome: str, *, refused: bool = False
    ) -> PromotionResult:
        return PromotionResult(
            self.name,
            self.alias,
            number,
            former=self.before.get(self.alias),
            run_id=self.run_id,
            outcome=outcome,
            refused=refused,
            checks=tuple(checks),
        )


def _reasons(failed: Sequence[Check]) -> str:
    return "; ".join(check.detail for check in failed)


def _final(checks: Sequence[Check]) -> str | None:
    """Return why nobody could overrule the gate, if so."""
    return next((c.detail for c in checks if c.final and not c.passed), None)


def _weights_digest(source: ModelSource) -> str:
    """Return sixteen hex digits over a checkpoint's weights."""
    with (source.checkpoint / MODEL_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _beside(alias: str, role: str) -> str:
    """Return the alias that keeps the `previous` or the `challenger` of an alias."""
    return role if alias == names.ALIAS_CHAMPION else f"{alias}-{role}"
