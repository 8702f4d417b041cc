"""Finds the results of tests of a model's explanations."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from clew import names
from clew.config.services import InfluenceConfig
from clew.errors import DataError, TrackingError
from clew.runs import store
from clew.runs.reading.runs import fetched
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import ValidationRecord, ValidationSummary, read_validation

logger = logging.getLogger(__name__)

NEWEST = 20
"""Number of newest tests that are read; a run can be tested alone and in several ensembles."""


def find_validation(
    source_run: str,
    settings: InfluenceConfig,
    *,
    ensemble: Sequence[str] = (),
) -> ValidationSummary | None:
    """Return the newest test result for explanations of a run with these settings.

    Return None if no test had this form of score, direction and loss. A result that cannot be read
    is skipped with a warning.

    Args:
        source_run: The explained run; for an ensemble, its first run.
        settings: Settings of the explanation.
        ensemble: The runs whose scores are averaged; empty for a single run.

    Raises:
        TrackingError: The store does not respond.
    """
    if not source_run or store.is_missing(store.tracking_uri()):
        return None
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=source_run, status="FINISHED")
    asked = (settings.direction, settings.test_loss)
    for run in search_runs(query, limit=NEWEST).runs:
        record = _read(run.run_id)
        if record is None:
            continue
        explains = (record.direction, record.test_loss)
        if set(record.ensemble) == set(ensemble) and explains == asked:
            summary = record.summary(settings.score, run.run_id)
            if summary.sentence:
                return summary
    return None


def find_validation_of_report(
    source_run: str,
    settings: Mapping[str, Any],
    *,
    ensemble: Sequence[str] = (),
) -> ValidationSummary | None:
    """Return the newest test result for explanations with the settings of a report.

    Return None if there is no such result, as `find_validation` does.

    Args:
        source_run: The explained run.
        settings: Settings in the report.
        ensemble: The runs whose scores were averaged; empty for a single run.

    Raises:
        TrackingError: The store does not respond.
    """
    known = {key: settings[key] for key in ("score", "direction", "test_loss") if key in settings}
    try:
        asked = InfluenceConfig.model_validate(known)
    except ValidationError:  # a report of another version, whose settings no test can have
        return None
    return find_validation(source_run, asked, ensemble=ensemble)


def _read(run_id: str) -> ValidationRecord | None:
    """Return a test result; if it cannot be read, log a warning and return None."""
    try:
        return read_result(run_id)
    except TrackingError as error:
        logger.warning("%s; it is left out", error)
        return None


def read_result(run_id: str) -> ValidationRecord:
    """Return the result of a run of kind `validate`.

    Raises:
        TrackingError: If the run has no result, or the result cannot be read.
    """
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    with fetched(run_id, path) as found:
        try:
            return read_validation(found)
        except DataError as error:
            reason = str(error).rpartition(f"{path}: ")[2]  # without the name of the copy
            raise TrackingError(f"run {run_id}: {path}: {reason}") from None
