"""Reads the results of studies from the tracking store: claims, measurements and the machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.config.files import SHIPPED, STUDIES
from clew.errors import TrackingError, described
from clew.runs.reading.runs import fetched

STUDY_FILE = "study/study.json"


@dataclass(frozen=True)
class ClaimResult:
    """One claim and its measurement."""

    study: str
    machine: str
    claim: str
    about: str
    """What was measured: `ratio`, `difference` or `value`; empty in older reports."""
    bounds: str
    """The claimed bounds, such as `at least 1.5`; empty in older reports."""
    measured: float | None
    """A ratio to the reference, a difference or a value, see `about`; None if not measured."""
    low: float | None
    """Lower end of its 95 % interval; None after a single round."""
    high: float | None
    verdict: str
    source: str
    """The text that contains the claim."""


@dataclass(frozen=True)
class StudyResult:
    """The result of one run of a study."""

    run_id: str
    """Id of the run; empty for a result that ships with Clew."""
    study: str
    machine: str
    commit: str
    claims: tuple[ClaimResult, ...]


def read_study(run_id: str) -> StudyResult:
    """Return the result of a run of kind `compare`.

    Raises:
        TrackingError: The run has no report, or the report is not readable.
    """
    with fetched(run_id, STUDY_FILE) as path:
        try:
            return _read(path, run_id)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TrackingError(
                f"run {run_id}: {STUDY_FILE} is not a study's report ({described(error)})"
            ) from None


def shipped_studies() -> list[StudyResult]:
    """Return the results of the project's own studies, which ship with Clew."""
    return [_read(path) for path in sorted((SHIPPED / STUDIES / "results").glob("*.json"))]


def _read(path: Path, run_id: str = "") -> StudyResult:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    study, machine, commit = (str(content[key]) for key in ("study", "machine", "commit"))
    claims = tuple(_claim(study, machine, claim) for claim in content["claims"])
    return StudyResult(run_id, study, machine, commit, claims)


def _claim(study: str, machine: str, claim: dict[str, Any]) -> ClaimResult:
    """Return a claim of a report; without a measurement, its numbers are None."""
    measured = claim["measured"] or {"value": None, "low": None, "high": None}
    value, low, high = (
        None if measured[key] is None else float(measured[key]) for key in ("value", "low", "high")
    )
    said = [
        f"{key.replace('_', ' ')} {float(claim[key]):.4g}"
        for key in ("at_least", "at_most")
        if claim.get(key) is not None
    ]
    return ClaimResult(
        study,
        machine,
        str(claim["claim"]),
        str(claim.get("about", "")),
        ", ".join(said),
        value,
        low,
        high,
        str(claim["verdict"]),
        str(claim["source"]),
    )
