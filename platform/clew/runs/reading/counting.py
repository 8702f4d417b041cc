"""How many runs there are, and which values a tag has: from a database at once.

MLflow's client cannot be asked either: a database is, through MLflow's own tables. Of a tracking
server, the number of runs is found by asking which offsets are past the end, first near the number
that it was before.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mlflow.entities import LifecycleStage, ViewType

from clew.runs import store
from clew.runs.reading.runs import client, database_of
from clew.runs.reading.search import RunQuery, experiment_ids_of, filter_string, page_token

MAX_COUNT = 1_000_000


def count_runs(query: RunQuery, *, near: int = 0) -> int:
    """Return how many runs match.

    Where it cannot be asked, it is found by doubling and halving the offset of a page of one: from
    a good guess (`near`) by two searches, from none by about two for each power of two.
    """
    with store.using("the number of runs"):
        connected = client()
        ids, text = experiment_ids_of(connected, query), filter_string(query)
        base = database_of(connected)
        if base is not None and text == filter_string(RunQuery(status=query.status)):
            return _count(base, ids, query.status)

        def reaches(offset: int) -> bool:
            page = connected.search_runs(
                ids, text, ViewType.ACTIVE_ONLY, max_results=1, page_token=page_token(offset)
            )
            return len(page) > 0

        return first_unreached(reaches, near)


def _count(base: Any, experiment_ids: Sequence[str], status: str) -> int:
    """Count the active runs of experiments in a database; an empty status stands for each."""
    from mlflow.store.tracking.dbmodels.models import SqlRun
    from sqlalchemy import func

    with base.ManagedSessionMaker() as session:
        counted = session.query(func.count()).select_from(SqlRun).filter(*_active(experiment_ids))
        return int((counted.filter(SqlRun.status == status) if status else counted).scalar())


def _active(experiment_ids: Sequence[str]) -> tuple[Any, Any]:
    """Return the conditions on MLflow's table of runs for the active ones of experiments."""
    from mlflow.store.tracking.dbmodels.models import SqlRun

    is_active: Any = SqlRun.lifecycle_stage == LifecycleStage.ACTIVE
    return SqlRun.experiment_id.in_(map(int, experiment_ids)), is_active


def first_unreached(reaches: Callable[[int], bool], near: int = 0) -> int:
    """Return the smallest offset that `reaches` denies, given that it denies all after it.

    Steps away from the guess `near` double until they are past the end, or before it.
    """
    reached, beyond, step = near - 1, near, 1 if near else 64
    if near and not reaches(reached):
        reached, beyond = near - 2, near - 1
        while reached >= 0 and not reaches(reached):
            reached, beyond, step = max(reached - step, -1), reached, 2 * step
    else:
        while beyond < MAX_COUNT and reaches(beyond):
            reached, beyond, step = beyond, beyond + step, 2 * step
    while beyond - reached > 1:
        middle = (reached + beyond) // 2
        if reaches(middle):
            reached = middle
        else:
            beyond = middle
    return beyond


def values_of_tag(experiment_ids: tuple[str, ...], key: str) -> set[str] | None:
    """Return the values that a tag has among the runs of experiments, of all if none is named.

    None where the store is no database, and only reading all runs would tell.
    """
    with store.using(f"the values of {key}"):
        connected = client()
        base = database_of(connected)
        if base is None:
            return None
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

        ids = experiment_ids_of(connected, RunQuery(experiment_ids))
        with base.ManagedSessionMaker() as session:
            tags = session.query(SqlTag.value).join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
            rows = tags.filter(SqlTag.key == key, *_active(ids)).distinct()
            return {value for (value,) in rows}
