"""Finds what was measured of a model's explanations."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from clew import names
from clew.config.services import InfluenceConfig
from clew.runs import store
from clew.runs.reading.runs import download_artifact
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import ValidationSummary, read_validation

NEWEST = 20
"""Tests that are looked at: a run may have been tested alone and in ensembles."""


def find_validation(
    source_run: str,
    settings: InfluenceConfig,
    *,
    ensemble: Sequence[str] = (),
    uri: str | None = None,
) -> ValidationSummary | None:
    """Return what the newest test of a run's explanations says of such explanations.

    None if the run was never tested, or not with that form of score, direction and loss.

    Args:
        source_run: The run; of an ensemble the first one.
        settings: Those of the explanation.
        ensemble: The runs whose scores are averaged; none: one run's own scores are meant.
        uri: Tracking store.

    Raises:
        TrackingError: the store does not answer.
        DataError: the result cannot be read.
    """
    if not source_run or store.is_missing(uri or store.tracking_uri()):
        return None
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=source_run, status="FINISHED")
    asked = (settings.direction, settings.test_loss)
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    for run in search_runs(query, limit=NEWEST, uri=uri).runs:
        with tempfile.TemporaryDirectory(prefix="clew-validation-") as folder:
            record = read_validation(download_artifact(run.run_id, path, Path(folder), uri))
        explains = (record.direction, record.test_loss)
        if set(record.ensemble) == set(ensemble) and explains == asked:
            summary = record.summary(settings.score, run.run_id)
            return summary if summary.sentence else None
    return None
