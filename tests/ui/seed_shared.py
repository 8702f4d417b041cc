"""Fills a PostgreSQL store with the runs that real commands recorded, and thousands of copies.

Clew opens the empty database first, so that MLflow creates its tables as it always does.
"""

from typing import cast

from sqlalchemy import Connection, create_engine, insert, select, text

from clew.runs.mlflow_store import preload_databases
from clew.runs.store import connect
from tests.recorded import Recorded
from tests.ui.seed_many import Cursor, copy_runs, varied

COUNTED = ("runs", "params", "tags", "metrics")


def shared_store(recorded: Recorded, uri: str, num_runs: int) -> dict[str, int]:
    """Copy the recorded runs into an empty database, add copies, and return the row counts.

    The runs' files are not copied.
    """
    connect(uri)
    old, new = create_engine(recorded.uri), create_engine(uri)
    with old.connect() as source, new.begin() as target:
        # The recorded stores have checked the foreign keys; checking them again takes minutes.
        target.execute(text("SET LOCAL session_replication_role = replica"))
        _move(source, target)
        (present,) = target.execute(text("SELECT count(*) FROM runs")).one()
        cursor = cast(Cursor, target.connection.cursor())
        copy_runs(cursor, varied(recorded.runs, num_runs - present), mark="%s")
    with new.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
        alone.execute(text("VACUUM ANALYZE"))  # the server does this by itself later
        found = {
            table: int(alone.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
            for table in COUNTED
        }
    old.dispose()
    new.dispose()
    return found


def _move(source: Connection, target: Connection) -> None:
    """Replace the rows of all tables by those of another store of the same MLflow version."""
    from mlflow.store.db.base_sql_model import Base

    preload_databases()
    for table in Base.metadata.sorted_tables:
        target.execute(table.delete())
        if rows := [dict(row._mapping) for row in source.execute(select(table))]:
            target.execute(insert(table), rows)
    place = "pg_get_serial_sequence('experiments', 'experiment_id')"
    target.execute(text(f"SELECT setval({place}, max(experiment_id)) FROM experiments"))
