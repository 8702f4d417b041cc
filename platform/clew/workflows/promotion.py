"""The registry's side of a promotion: register, check, and move the aliases or say why not."""

import dataclasses
import json
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import PromotionRefused
from clew.runs.alias_moves import move_aliases, settle_dead_claims
from clew.runs.base import Tracker
from clew.runs.mlflow_store import open_tracker
from clew.runs.registry import ModelState, Registry, Version
from clew.workflows.promotion_gate import Check, Gate
from clew.workflows.registration import check_served, register, weights_digest

NO_MODEL = ModelState({}, {})

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


@dataclass(frozen=True)
class Promotion:
    """The registry's side of one promotion; `state` is what its decision is based on."""

    registry: Registry
    request: PromotionRequest
    name: str
    alias: str
    state: ModelState

    @classmethod
    def begin(
        cls, registry: Registry, request: PromotionRequest, name: str, alias: str
    ) -> "Promotion":
        """Read what the decision will be based on."""
        if not request.dry_run:
            settle_dead_claims(registry, name)
        return cls(registry, request, name, alias, registry.state(name) or NO_MODEL)

    def holder(self) -> Version | None:
        """Return the version that has the alias."""
        number = self.state.aliases.get(self.alias)
        return self.registry.version(self.name, number) if number else None

    def run(self, gate: Gate, report: Report) -> PromotionResult:
        """Check, register, check again, and move the aliases if nothing speaks against it."""
        champion, digest = gate.champion, weights_digest(gate.candidate)
        if champion is not None and champion.tags.get(names.TAG_WEIGHTS) == digest:
            outcome = f"nothing to do: version {champion.number} of {self.name} is {self.alias}"
            return self._result(gate, champion.number, (), f"{outcome} with these very weights")
        if self.request.dry_run:
            checks = _run_checks(gate, report)
            return self._dry_run_result(gate, checks)
        tracker = open_tracker(
            TrackingConfig(experiment=gate.candidate.config.tracking.experiment),
            kind=names.KIND_PROMOTE,
            run_name=f"promote {self.name}",
            tags={names.TAG_SOURCE_RUN: gate.candidate.run_id or ""},
        )
        with tracker:
            checks = _run_checks(gate, report)
            result = self._decide(gate, checks, report, tracker)
            _record(tracker, gate, result)
        return result

    def _decide(
        self, gate: Gate, checks: list[Check], report: Report, tracker: Tracker
    ) -> PromotionResult:
        if (final := _final(checks)) is not None:
            outcome = f"run {gate.candidate.run_id} is not promoted and not registered: {final}"
            return self._result(gate, None, checks, outcome, refused=True)
        challenger = challenger_of(self.alias)
        version = register(
            self.registry,
            self.name,
            gate,
            promote_run=tracker.run_id,
            in_use=[n for alias, n in self.state.aliases.items() if alias != challenger],
        )
        served = check_served(self.registry, version, gate)
        checks.append(served)
        report(served)
        failed = [check for check in checks if not check.passed]
        if failed and (not self.request.force or not served.passed):
            return self._refuse(gate, version, checks, _reasons(failed))
        verdict = {names.TAG_VALIDATION: names.VALIDATION_PASSED}
        if failed:
            verdict = {
                names.TAG_VALIDATION: names.VALIDATION_FORCED,
                names.TAG_FORCED_BECAUSE: self.request.force,
                names.TAG_REFUSED_BECAUSE: _reasons(failed),
            }
            tracker.tags({names.TAG_FORCED_BECAUSE: self.request.force})
        self.registry.tag(version, verdict)
        try:
            self._move(version)
        except PromotionRefused as error:
            return self._refuse(gate, version, checks, str(error))
        former = self.state.aliases.get(self.alias)
        outcome = f"{'forced' if failed else 'promoted'}: version {version.number} of {self.name} "
        outcome += f"is {self.alias}"
        outcome += f", version {former} is {previous_of(self.alias)}" if former else ""
        return self._result(gate, version.number, checks, outcome)

    def _move(self, version: Version) -> None:
        """Move the aliases; `previous` first, so that until the last write nothing has changed."""
        holder = self.state.aliases.get(self.alias)
        before: dict[str, str | None] = {}
        after: dict[str, str | None] = {}
        if holder is not None:
            before[previous_of(self.alias)] = self.state.aliases.get(previous_of(self.alias))
            after[previous_of(self.alias)] = holder
        if self.state.aliases.get(challenger_of(self.alias)) == version.number:
            before[challenger_of(self.alias)] = version.number
            after[challenger_of(self.alias)] = None
        before[self.alias], after[self.alias] = holder, version.number
        move_aliases(self.registry, self.name, before=before, after=after)

    def _refuse(
        self, gate: Gate, version: Version, checks: list[Check], reason: str
    ) -> PromotionResult:
        """Keep the version as challenger, with the reason."""
        verdict = {
            names.TAG_VALIDATION: names.VALIDATION_FAILED,
            names.TAG_REFUSED_BECAUSE: reason,
        }
        self.registry.tag(version, verdict)
        self.registry.set_alias(self.name, challenger_of(self.alias), version.number)
        outcome = (
            f"run {gate.candidate.run_id} is not promoted: {reason} (kept as version "
            f"{version.number} of {self.name}, alias {challenger_of(self.alias)})"
        )
        return self._result(gate, version.number, checks, outcome, refused=True)

    def _dry_run_result(self, gate: Gate, checks: list[Check]) -> PromotionResult:
        failed = [check for check in checks if not check.passed]
        refused = bool(failed) and (not self.request.force or _final(checks) is not None)
        outcome = f"dry run, nothing written: run {gate.candidate.run_id} would "
        outcome += f"not be promoted: {_reasons(failed)}" if refused else f"become {self.alias}"
        return self._result(gate, None, checks, outcome, refused=refused)

    def _result(
        self,
        gate: Gate,
        number: str | None,
        checks: Sequence[Check],
        outcome: str,
        *,
        refused: bool = False,
    ) -> PromotionResult:
        return PromotionResult(
            name=self.name,
            alias=self.alias,
            number=number,
            former=self.state.aliases.get(self.alias),
            run_id=gate.candidate.run_id or "",
            outcome=outcome,
            refused=refused,
            checks=tuple(checks),
        )


def _run_checks(gate: Gate, report: Report) -> list[Check]:
    checks = []
    for check in gate.checks():
        checks.append(check)
        report(check)
    return checks


def _reasons(failed: Sequence[Check]) -> str:
    return "; ".join(check.detail for check in failed)


def _final(checks: Sequence[Check]) -> str | None:
    """Return why nobody could overrule the gate, if so."""
    return next((c.detail for c in checks if c.final and not c.passed), None)


def _record(tracker: Tracker, gate: Gate, result: PromotionResult) -> None:
    """Record what was found and decided on the promotion's own run."""
    tracker.metrics(gate.metrics, gate.candidate.manifest.step)
    theirs = {f"champion/{k}": v for k, v in gate.champion_metrics.items()}
    tracker.metrics(theirs, gate.candidate.manifest.step)
    version = f"models:/{result.name}/{result.number}" if result.number else ""
    decision = {names.TAG_MODEL_VERSION: version, names.TAG_DECISION: result.outcome}
    tracker.tags({key: value for key, value in decision.items() if value})
    with tempfile.TemporaryDirectory(prefix="clew-promotion-") as folder:
        path = Path(folder) / names.ARTIFACT_PROMOTION
        path.write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
        tracker.artifact(path)


def previous_of(alias: str) -> str:
    """Return the alias of the version that had an alias before."""
    champion = alias == names.ALIAS_CHAMPION
    return names.ALIAS_PREVIOUS if champion else f"{alias}-{names.ALIAS_PREVIOUS}"


def challenger_of(alias: str) -> str:
    """Return the alias of the version that was last refused an alias."""
    champion = alias == names.ALIAS_CHAMPION
    return names.ALIAS_CHALLENGER if champion else f"{alias}-{names.ALIAS_CHALLENGER}"
