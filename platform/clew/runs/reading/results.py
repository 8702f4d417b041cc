"""What commands that search or value facts found, as the tracking store keeps it."""

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from clew import names
from clew.errors import TrackingError
from clew.runs.influence_columns import VALUES_CSV_COLUMNS
from clew.runs.reading.runs import fetched
from clew.spreadsheets import changed, restored

TRIAL_COLUMNS = ("trial", "state", "value", "epoch", "seconds", "run_id")
"""What a row of the trials begins with; then come the settings, and `problem`."""


def read_trials(run_id: str) -> pd.DataFrame:
    """Return the trials of a search, a row each, in the order in which they began.

    Raises:
        TrackingError: the run has none, or a table that is not readable.
    """
    path = f"{names.ARTIFACT_TUNE}/{names.TRIALS_CSV}"
    return _read_csv(run_id, path, TRIAL_COLUMNS, ("trial", "value", "epoch", "seconds"))


def read_best_configuration(run_id: str) -> str:
    """Return the configuration that a search found best, as YAML.

    Raises:
        TrackingError: the run has none.
    """
    with fetched(run_id, f"{names.ARTIFACT_TUNE}/{names.BEST_YAML}") as path:
        return path.read_text(encoding="utf-8", errors="replace")


def read_fact_values(run_id: str) -> pd.DataFrame:
    """Return every training fact with its value, the largest first.

    Raises:
        TrackingError: the run has none, or a table that is not readable.
    """
    path = f"{names.ARTIFACT_VALUES}/{names.VALUES_CSV}"
    return _read_csv(run_id, path, VALUES_CSV_COLUMNS, ("TrainIndex", "Value"))


def read_worst_facts(run_id: str) -> str:
    """Return the list of the facts with the lowest values, as `data.exclude` takes it.

    Raises:
        TrackingError: the run has none.
    """
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
