"""What a database answers at once, where MLflow's client would ask it many times.

MLflow's client has no call that counts, none that lists the values of a tag, and one for each curve
of each run. Where the store is a database, it is asked through MLflow's own tables; a tracking
server is not, and its callers ask the client.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage


def database_of(connected: MlflowClient) -> Any | None:
    """Return MLflow's store in a database, None for any other store."""
    tracking = connected._tracking_client.store
    return tracking if hasattr(tracking, "ManagedSessionMaker") else None


def count_by_status(base: Any, experiment_ids: Sequence[str]) -> dict[str, int]:
    """Return how many runs of experiments have each of MLflow's statuses; none is left out."""
    from mlflow.store.tracking.dbmodels.models import SqlRun
    from sqlalchemy import func

    with base.ManagedSessionMaker() as session:
        rows = (
            session.query(SqlRun.status, func.count())
            .filter(
                SqlRun.experiment_id.in_(map(int, experiment_ids)),
                SqlRun.lifecycle_stage == LifecycleStage.ACTIVE,
            )
            .group_by(SqlRun.status)
        )
        return {status: count for status, count in rows}


def tag_values(base: Any, experiment_ids: Sequence[str], key: str) -> set[str]:
    """Return the values that a tag has among the runs of experiments."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

    with base.ManagedSessionMaker() as session:
        rows = (
            session.query(SqlTag.value)
            .join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
            .filter(
                SqlTag.key == key,
                SqlRun.experiment_id.in_(map(int, experiment_ids)),
                SqlRun.lifecycle_stage == LifecycleStage.ACTIVE,
            )
            .distinct()
        )
        return {value for (value,) in rows}


def metric_values(
    base: Any, run_ids: Sequence[str], key: str
) -> Iterator[tuple[str, int, int, float]]:
    """Yield each value of a metric of runs: its run, step, time in milliseconds, and itself."""
    for found in base.get_metric_history_bulk(run_ids, key, sys.maxsize):
        yield found.run_id, found.step, found.timestamp, found.value
