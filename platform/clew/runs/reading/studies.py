"""Studies as the tracking store keeps them: claims, measurements, and the machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import TrackingError
from clew.runs.reading.runs import download_artifact

STUDY_FILE = "study/study.json"


@dataclass(frozen=True)
class ClaimResult:
    """One claim beside its measurement."""

    study: str
    machine: str
    claim: str
    measured: float | None
    """A ratio to the reference, or a value, as the claim says; None: not measured here."""
    verdict: str


@dataclass(frozen=True)
class StudyResult:
    """What one run of a study found."""

    run_id: str
    study: str
    machine: str
    commit: str
    num_seeds: int
    claims: tuple[ClaimResult, ...]


def read_study(run_id: str, folder: Path, uri: str | None = None) -> StudyResult:
    """Return what a run of kind `compare` found, its report downloaded into `folder`.

    Raises:
        TrackingError: the run has no report, or one that is not readable.
    """
    path = download_artifact(run_id, STUDY_FILE, folder, uri)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        claims = tuple(
            ClaimResult(
                str(content["study"]),
                str(content["machine"]),
                str(claim["claim"]),
                None if claim["ratio"] is None else float(claim["ratio"]),
                str(claim["verdict"]),
            )
            for claim in content["claims"]
        )
        return StudyResult(
            run_id,
            str(content["study"]),
            str(content["machine"]),
            str(content["commit"]),
            int(content["num_seeds"]),
            claims,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrackingError(
            f"run {run_id}: {STUDY_FILE} is not a study's report ({error})"
        ) from None
