"""Finds what was measured of a model's explanations."""

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
"""Tests that are looked at: a run may have been tested alone and in ensembles."""


def find_validation(
    source_run: str,
    settings: InfluenceConfig,
    *,
    ensemble: Sequence[str] = (),
) -> ValidationSummary | None:
    """Return what the newest test of such explanations of a run says.

    None if no test was about that form of score, direction and loss. A result
    that cannot be read is left out with a warning.

    Args:
        source_run: The run; of an ensemble the first one.
        settings: Those of the explanation.
        ensemble: The runs whose scores are averaged; none: one run's own scores are meant.

    Raises:
        TrackingError: the store does not answer.
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
    """Return what is known by now of explanations like those of a report, as `find_validation`.

    Args:
        source_run: The explained run.
        settings: Those that the report names.
        ensemble: The runs whose scores were averaged.

    Raises:
        TrackingError: the store does not answer.
    """
    known = {key: settings[key] for key in ("score", "direction", "test_loss") if key in settings}
    try:
        asked = InfluenceConfig.model_validate(known)
    except ValidationError:  # a report of another version: nothing was tested in its words
        return None
    return find_validation(source_run, asked, ensemble=ensemble)


def _read(run_id: str) -> ValidationRecord | None:
    """Return a test's result, None with a warning if it cannot be read."""
    try:
        return read_result(run_id)
    except TrackingError as error:
        logger.warning("%s; it is left out", error)
        return None


def read_result(run_id: str) -> ValidationRecord:
    """Return what a run of kind `validate` found.

    Raises:
        TrackingError: the run has no result, or one that is not readable.
    """
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    with fetched(run_id, path) as found:
        try:
            return read_validation(found)
        except DataError as error:
            reason = str(error).rpartition(f"{path}: ")[2]  # without the name of the copy
            raise TrackingError(f"run {run_id}: {path}: {reason}") from None
