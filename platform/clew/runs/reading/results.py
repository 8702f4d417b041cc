"""What commands found, as the store keeps it: searches, values of facts, studies, tests."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ValidationError

from clew import names
from clew.config.files import SHIPPED, STUDIES
from clew.config.services import InfluenceConfig
from clew.errors import DataError, TrackingError, described
from clew.runs import store
from clew.runs.influence_forms import VALUES_CSV_COLUMNS
from clew.runs.reading.runs import fetched
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.validation_record import ValidationRecord, ValidationSummary, read_validation
from clew.spreadsheets import changed, restored

TRIAL_COLUMNS = ("trial", "state", "value", "epoch", "seconds", "run_id")
"""What a row of the trials begins with; then come the settings, and `problem`."""


def read_trials(run_id: str) -> pd.DataFrame:
    path = f"{names.ARTIFACT_TUNE}/{names.TRIALS_CSV}"
    return _read_csv(run_id, path, TRIAL_COLUMNS, ("trial", "value", "epoch", "seconds"))


def read_best_configuration(run_id: str) -> str:
    """Return the configuration that a search found best, as YAML."""
    with fetched(run_id, f"{names.ARTIFACT_TUNE}/{names.BEST_YAML}") as path:
        return path.read_text(encoding="utf-8", errors="replace")


def read_fact_values(run_id: str) -> pd.DataFrame:
    path = f"{names.ARTIFACT_VALUES}/{names.VALUES_CSV}"
    return _read_csv(run_id, path, VALUES_CSV_COLUMNS, ("TrainIndex", "Value"))


def read_worst_facts(run_id: str) -> str:
    """Return the list of the facts with the lowest values, as `data.exclude` takes it."""
    with fetched(run_id, f"{names.ARTIFACT_VALUES}/{names.WORST_FACTS}") as path:
        return path.read_text(encoding="utf-8", errors="replace")


def _read_csv(
    run_id: str, path: str, columns: Sequence[str], numbers: Sequence[str]
) -> pd.DataFrame:
    with fetched(run_id, path) as file:
        try:
            cells = pd.read_csv(file, dtype=str, keep_default_na=False)
            found = cells.apply(lambda column: changed(pa.array(column), restored).to_pandas())
        except (OSError, ValueError) as error:
            raise TrackingError(f"run {run_id}: {path} is not a table ({error})") from None
    if missing := [column for column in columns if column not in found]:
        raise TrackingError(f"run {run_id}: {path} has no column {missing[0]}")
    table: pd.DataFrame = found.rename(columns=restored)
    converted = {name: pd.to_numeric(table[name], errors="coerce") for name in numbers}
    return table.assign(**converted)


STUDY_FILE = "study/study.json"


class StudyRatio(BaseModel):
    """A variant's ratio to the reference, with its 95 % interval over rounds."""

    value: float
    low: float | None
    """Lower end of the interval; None after a single round."""
    high: float | None


class StudyRow(BaseModel):
    """What one variant measured of one metric."""

    variant: str
    label: str
    median: float
    ratio: StudyRatio | None


class StudyResult(BaseModel):
    """The part of a study's report that is shown; reports of earlier versions also have claims."""

    study: str
    machine: str
    reference: str
    results: tuple[StudyRow, ...]


def read_study(run_id: str) -> StudyResult:
    """Return the result of a run of kind `compare`."""
    with fetched(run_id, STUDY_FILE) as path:
        try:
            return StudyResult.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise TrackingError(
                f"run {run_id}: {STUDY_FILE} is not a study's report ({described(error)})"
            ) from None


def shipped_studies() -> list[StudyResult]:
    files = sorted((SHIPPED / STUDIES / "results").glob("*.json"))
    return [StudyResult.model_validate_json(file.read_bytes()) for file in files]


logger = logging.getLogger(__name__)

NEWEST = 20
"""Number of newest tests that are read; a run can be tested alone and in several ensembles."""


def find_validation(
    source_run: str, settings: Mapping[str, Any], *, ensemble: Sequence[str] = ()
) -> ValidationSummary | None:
    """Return the newest test result for explanations of a run with the settings of a report.

    Return None if no test had this form of score, direction and loss. A result that cannot be read
    is skipped with a warning. For an ensemble, `source_run` is its first run.
    """
    if not source_run or store.is_missing(store.tracking_uri()):
        return None
    known = {key: settings[key] for key in ("score", "direction", "test_loss") if key in settings}
    try:
        asked = InfluenceConfig.model_validate(known)
    except ValidationError:  # a report of another version, whose settings no test can have
        return None
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=source_run, status="FINISHED")
    for run in search_runs(query, limit=NEWEST).runs:
        record = _read_validation(run.run_id)
        if record is None or set(record.ensemble) != set(ensemble):
            continue
        if (record.direction, record.test_loss) == (asked.direction, asked.test_loss):
            summary = record.summary(asked.score, run.run_id)
            if summary.sentence:
                return summary
    return None


def _read_validation(run_id: str) -> ValidationRecord | None:
    """Return a test result; if it cannot be read, log a warning and return None."""
    try:
        return read_result(run_id)
    except TrackingError as error:
        logger.warning("%s; it is left out", error)
        return None


def read_result(run_id: str) -> ValidationRecord:
    """Return the result of a run of kind `validate`."""
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    with fetched(run_id, path) as found:
        try:
            return read_validation(found)
        except DataError as error:
            reason = str(error).rpartition(f"{path}: ")[2]  # without the name of the copy
            raise TrackingError(f"run {run_id}: {path}: {reason}") from None
