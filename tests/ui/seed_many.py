"""Fills a store with thousands of runs straight through the database, in seconds.

No command records so many in the time of a test. Runs that real commands recorded are copied row
by row under new ids, so the rows have the form that this version of Clew and MLflow writes.
"""

import random
import sqlite3
import uuid
from pathlib import Path

from tests.recorded import Recorded

TABLES = ("metrics", "latest_metrics", "params", "tags")
MODELS = tuple(
    f"{variant} {seed}" for variant in ("fp32", "bf16", "fp32+ckpt", "bf16+ckpt") for seed in (0, 1)
)
FIRST_MS = 1_795_000_000_000
QUARTER_HOUR_MS = 900_000


def large_store(recorded: Recorded, folder: Path, num_runs: int = 2000) -> Recorded:
    """Return a store of `num_runs` training runs: the recorded ones of one setting, and copies."""
    store = recorded.copy(folder).keep_only(*MODELS)
    with store.database() as base:
        for number in range(len(MODELS), num_runs):
            _vary(base, store.runs[MODELS[number % len(MODELS)]], number)
        base.execute("ANALYZE")
    return store


def _vary(base: sqlite3.Connection, model: str, number: int) -> None:
    """Copy a run with another start, status and seed, and slightly other values."""
    draw = random.Random(number)
    run_id = uuid.UUID(int=draw.getrandbits(128)).hex
    status = draw.choices(["FINISHED", "FAILED", "KILLED"], [95, 4, 1])[0]
    start = FIRST_MS + number * QUARTER_HOUR_MS
    copy_run(base, model, run_id, factor=draw.gauss(1, 0.02), status=status, start_time=start)
    base.execute(
        "UPDATE params SET value = ? WHERE run_uuid = ? AND key = 'cfg.training.seed'",
        (number, run_id),
    )


def copy_run(
    base: sqlite3.Connection,
    model: str,
    run_id: str,
    *,
    factor: float = 1.0,
    **changed: str | int,
) -> None:
    """Copy a run's rows under a new id: with other columns, and metrics times a factor."""
    columns = _columns(base, "runs", {"run_uuid", "artifact_uri", *changed})
    marks = ", ".join("?" * len(changed))
    base.execute(
        f"INSERT INTO runs ({columns}, run_uuid, artifact_uri{''.join(f', {c}' for c in changed)}) "
        f"SELECT {columns}, ?, replace(artifact_uri, run_uuid, ?){', ' if marks else ''}{marks} "
        "FROM runs WHERE run_uuid = ?",
        (run_id, run_id, *changed.values(), model),
    )
    for table in TABLES:
        scaled = {"value"} if "metrics" in table else set()
        columns = _columns(base, table, {"run_uuid"} | scaled)
        extra, values = ("value, ", "value * ?, ") if scaled else ("", "")
        base.execute(
            f"INSERT INTO {table} ({columns}, {extra}run_uuid) "
            f"SELECT {columns}, {values}? FROM {table} WHERE run_uuid = ?",
            ((factor,) if scaled else ()) + (run_id, model),
        )


def _columns(base: sqlite3.Connection, table: str, without: set[str]) -> str:
    rows = base.execute(f"PRAGMA table_info({table})")
    return ", ".join(f'"{row[1]}"' for row in rows if row[1] not in without)
