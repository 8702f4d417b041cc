"""Finds what was measured of a model's explanations."""

import tempfile
from pathlib import Path

from clew import names
from clew.runs import store
from clew.runs.reading.runs import download_artifact
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import ValidationSummary, read_validation


def find_validation(
    source_run: str, form: str, *, uri: str | None = None
) -> ValidationSummary | None:
    """Return what the newest test of a run's explanations says of a form of score.

    None if the run was never tested, or not with that form.

    Raises:
        TrackingError: the store does not answer.
        DataError: the result cannot be read.
    """
    if not source_run or store.is_missing(uri or store.tracking_uri()):
        return None
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=source_run, status="FINISHED")
    found = search_runs(query, limit=1, uri=uri).runs
    if not found:
        return None
    run_id = found[0].run_id
    with tempfile.TemporaryDirectory(prefix="clew-validation-") as folder:
        path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
        record = read_validation(download_artifact(run_id, path, Path(folder), uri))
    summary = record.summary(form, run_id)
    return summary if summary.sentence else None
