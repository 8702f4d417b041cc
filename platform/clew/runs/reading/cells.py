"""Finds the finished runs of a study's cells, so that an interrupted study goes on where it was."""

from clew import names
from clew.runs.reading.runs import RunRecord, client, record_of
from clew.runs.reading.search import list_experiments, quoted, reading


def find_cell(cell_id: str, uri: str | None = None) -> RunRecord | None:
    """Return the newest finished run of a cell, None if there is none.

    Raises:
        TrackingError: the store does not answer.
    """
    experiments = [experiment.experiment_id for experiment in list_experiments(uri)]
    condition = f"tags.`{names.TAG_CELL}` = {quoted(cell_id)} AND attributes.status = 'FINISHED'"
    with reading("runs of a study", uri):
        found = client(uri).search_runs(experiments, condition, max_results=1)
    return record_of(found[0]) if found else None
