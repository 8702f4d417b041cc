"""Fills a store with thousands of runs straight through the database, in seconds.

MLflow's client would take many minutes. A few runs are written through it and then copied row by
row under new ids, so the rows have the form that this version of MLflow writes.
"""

import random
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

from clew import names
from clew.runs.store import database_path
from tests.ui.seed import COSTS, HOUR_MS, START_MS, Seeder, empty_store

TABLES = ("metrics", "latest_metrics", "params", "tags")
NUM_EXTRA_METRICS = 28


def large_store(folder: Path, num_runs: int = 2000) -> str:
    """Create a store with `num_runs` runs of about 40 metrics and 20 epochs each."""
    uri = empty_store(folder)
    seeder = Seeder(uri)
    models = [seeder.train(variant, seed=0) for variant in COSTS]
    for run_id in models:
        for number in range(NUM_EXTRA_METRICS):
            seeder.client.log_metric(run_id, f"system/sensor_{number}", number * 1.5, step=1)
    path = database_path(uri)
    assert path is not None
    with closing(sqlite3.connect(path)) as base:
        for number in range(len(models), num_runs):
            _copy(base, models[number % len(models)], number)
        base.commit()
        base.execute("ANALYZE")
    return uri


def _copy(base: sqlite3.Connection, model: str, number: int) -> None:
    """Copy a run under a new id, with another start, status, seed and slightly other values."""
    draw = random.Random(number)
    run_id = uuid.UUID(int=draw.getrandbits(128)).hex
    status = draw.choices(["FINISHED", "FAILED", "KILLED"], [95, 4, 1])[0]
    start = START_MS + number * HOUR_MS // 4
    columns = _columns(base, "runs", {"run_uuid", "start_time", "status", "artifact_uri"})
    base.execute(
        f"INSERT INTO runs ({columns}, run_uuid, start_time, status, artifact_uri) "
        f"SELECT {columns}, ?, ?, ?, replace(artifact_uri, run_uuid, ?) FROM runs "
        "WHERE run_uuid = ?",
        (run_id, start, status, run_id, model),
    )
    factor = draw.gauss(1, 0.02)
    for table in TABLES:
        changed = {"run_uuid", "value"} if "metrics" in table else {"run_uuid"}
        columns = _columns(base, table, changed)
        extra, values = ("value, ", "value * ?, ") if "metrics" in table else ("", "")
        base.execute(
            f"INSERT INTO {table} ({columns}, {extra}run_uuid) "
            f"SELECT {columns}, {values}? FROM {table} WHERE run_uuid = ?",
            ((factor,) if values else ()) + (run_id, model),
        )
    seed = f"{names.PARAMETER_PREFIX}training.seed"
    base.execute(
        "UPDATE params SET value = ? WHERE run_uuid = ? AND key = ?", (number, run_id, seed)
    )


def _columns(base: sqlite3.Connection, table: str, without: set[str]) -> str:
    rows = base.execute(f"PRAGMA table_info({table})")
    return ", ".join(f'"{row[1]}"' for row in rows if row[1] not in without)
