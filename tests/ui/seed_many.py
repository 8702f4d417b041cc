"""Fills a store with thousands of runs in seconds, directly in the database.

Commands would need too long to record this many runs. Runs that real commands recorded are copied
under new ids inside the database, so the rows have the form that this version of Clew and MLflow
writes. The statements are the same for SQLite and PostgreSQL.
"""

import random
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.recorded import Recorded

MODELS = tuple(
    f"{variant} {seed}" for variant in ("fp32", "bf16", "fp32+ckpt", "bf16+ckpt") for seed in (0, 1)
)
QUARTER_HOUR_MS = 900_000
# Expressions for the changed columns of a copied row: `m` is the model's row, `c` the `Copy`.
CHANGED: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "artifact_uri": "replace(m.artifact_uri, m.run_uuid, c.run_id)",
        "status": "coalesce(c.status, m.status)",
        "start_time": "m.start_time - c.age_ms",
        "end_time": "m.end_time - c.age_ms",
    },
    "metrics": {"value": "m.value * c.factor", "timestamp": "m.timestamp - c.age_ms"},
    "latest_metrics": {"value": "m.value * c.factor", "timestamp": "m.timestamp - c.age_ms"},
    "params": {
        "value": "CASE WHEN m.key = 'cfg.training.seed' THEN coalesce(c.seed, m.value) "
        "ELSE m.value END"
    },
    "tags": {},
}


@dataclass(frozen=True)
class Copy:
    """A run to copy from another one, the model; values of None are not changed."""

    model: str
    run_id: str
    age_ms: int = 0
    """How much earlier than the model the copy ran."""
    factor: float = 1.0
    """The factor of all metric values."""
    status: str | None = None
    seed: str | None = None


class Cursor(Protocol):
    """The common methods of all database drivers."""

    def execute(self, statement: str, /) -> Any:
        """Run a statement."""

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]], /) -> Any:
        """Run a statement once for each row."""


def large_store(recorded: Recorded, folder: Path, num_runs: int = 2000) -> Recorded:
    """Return a store of `num_runs` training runs: the recorded ones in `MODELS`, and copies."""
    store = recorded.copy(folder).keep_only(*MODELS)
    with store.database() as base:
        copy_runs(base.cursor(), varied(store.runs, num_runs - len(MODELS)))
        base.execute("ANALYZE")
    return store


def varied(runs: Mapping[str, str], num_copies: int) -> list[Copy]:
    """Return copies with other start times, statuses and seeds, and slightly different values.

    Each copy started a quarter of an hour before the previous one.
    """
    copies = []
    for number in range(len(MODELS), len(MODELS) + num_copies):
        draw = random.Random(number)
        run_id = uuid.UUID(int=draw.getrandbits(128)).hex
        status = draw.choices(["FINISHED", "FAILED", "KILLED"], [95, 4, 1])[0]
        model, age_ms = runs[MODELS[number % len(MODELS)]], number * QUARTER_HOUR_MS
        copies.append(Copy(model, run_id, age_ms, draw.gauss(1, 0.02), status, str(number)))
    return copies


def copy_run(base: sqlite3.Connection, model: str, run_id: str, **changed: Any) -> None:
    """Copy one run of an sqlite store; `changed` as in `Copy`."""
    copy_runs(base.cursor(), [Copy(model, run_id, **changed)])


def copy_runs(cursor: Cursor, copies: Sequence[Copy], mark: str = "?") -> None:
    """Copy runs with all of their rows; `mark` is the driver's placeholder for a value."""
    from mlflow.store.tracking.dbmodels.models import Base

    cursor.execute(
        "CREATE TEMPORARY TABLE copies (model VARCHAR(32), run_id VARCHAR(32), age_ms BIGINT, "
        "factor FLOAT, status VARCHAR(20), seed VARCHAR(20))"
    )
    rows = [(c.model, c.run_id, c.age_ms, c.factor, c.status, c.seed) for c in copies]
    cursor.executemany(f"INSERT INTO copies VALUES ({', '.join([mark] * 6)})", rows)
    for table, changed in CHANGED.items():
        columns = [column.name for column in Base.metadata.tables[table].columns]
        values = {name: f"m.{name}" for name in columns} | {"run_uuid": "c.run_id"} | changed
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values.values())} "
            f"FROM copies c JOIN {table} m ON m.run_uuid = c.model"
        )
    cursor.execute("DROP TABLE copies")
