"""Tests whether the dashboard draws its pages in 1.5 s while many processes write to its store.

The store is a PostgreSQL server with default settings. It contains the runs that
`tests/recorded.py` records, including training runs of 20 epochs, and copies of eight of them. Each
writer opens a run with Clew's tracker and logs one training step every second. Pages are timed as
in `dashboard_speed`, from the click until the page is drawn and the server is idle. Before each
click the reader pauses for 5 s, so that most searches are repeated. There are two rounds, each with
a new dashboard: one without writers and one with them. In the end the store must have every value
of every writer exactly once, and each writer's run must be finished.

    python -m experiments.benchmarks.shared_store [runs] [writers]
"""

import gc
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

from playwright.sync_api import Browser
from sqlalchemy import create_engine, text

from clew import names
from clew.config.services import TrackingConfig
from clew.runs import store
from experiments.benchmarks.dashboard_speed import (
    HEADING,
    NUM_EPOCHS,
    PAGES,
    REPEATS,
    TABLE,
    comparison,
    page_changes,
    timed,
)
from experiments.benchmarks.harness import median, print_table, write_results
from tests.browser.dashboard import CHROMIUM, Dashboard, chromium, serving
from tests.postgresql import missing, postgresql
from tests.recorded import Recorded, record

NUM_RUNS, NUM_WRITERS = 10_000, 16
STEP_SECONDS, PAUSE_SECONDS, LIMIT_SECONDS = 1.0, 5.0, 1.5
PATIENCE_SECONDS = 180.0
"""The longest time for a writer to open its run, or to send the last values and finish it."""
READ = "fp32 0"
"""The run whose page is opened."""
KEYS = (
    names.TRAIN_LOSS,
    names.TRAIN_EPOCH,
    names.TRAIN_LEARNING_RATE,
    names.TRAIN_GRAD_NORM,
    "throughput/examples_per_second",
    "time/step_milliseconds",
    names.metric("valid", names.MRR),
)


def values_at(step: int, writer: int) -> dict[str, float]:
    """Return the values that a writer logs at a step; each value occurs only once."""
    return {key: writer + (place + 1) / (10 * (step + 2)) for place, key in enumerate(KEYS)}


def write(writer: int, said: Connection, end: Event) -> None:
    """Run a writer: wait for the start, send the run's id, and at the end the number of steps."""
    from clew.runs.mlflow_store import open_tracker

    said.recv()
    tracker = open_tracker(
        TrackingConfig(log_system_metrics=False),
        kind=names.KIND_TRAIN,
        run_name=f"writer {writer}",
        tags={names.TAG_TASK: names.TASK_LINK_PREDICTION, names.TAG_VARIANT: "fp32"},
    )
    said.send(tracker.run_id)
    num_steps = 0
    while not end.wait(STEP_SECONDS):
        tracker.metrics(values_at(num_steps, writer), num_steps)
        num_steps += 1
    tracker.finish("FINISHED")
    said.send(num_steps)


class Writers:
    """Writer processes that share this process's imports, so that many fit into memory."""

    def __init__(self, number: int) -> None:
        from clew.runs.mlflow_store import preload_databases

        preload_databases()
        gc.freeze()  # a garbage collection in a writer would copy shared pages
        context = multiprocessing.get_context("fork")
        self._end = context.Event()
        self._said: list[Connection] = []
        for writer in range(number):
            ours, theirs = context.Pipe()
            self._said.append(ours)
            context.Process(target=write, args=(writer, theirs, self._end), daemon=True).start()
        self._run_ids: list[str] = []

    def begin(self) -> None:
        """Start all writers at the same time, and return when each of them has a run."""
        for said in self._said:
            said.send("begin")
        self._run_ids = [str(answer) for answer in self._answers()]

    def finish(self) -> dict[str, Counter[tuple[str, int, float]]]:
        """Stop all writers, and return the counts of the values that each run should have."""
        self._end.set()
        return {
            run_id: Counter(
                (key, step, value)
                for step in range(int(str(num_steps)))
                for key, value in values_at(step, writer).items()
            )
            for writer, (run_id, num_steps) in enumerate(
                zip(self._run_ids, self._answers(), strict=True)
            )
        }

    def _answers(self) -> Iterator[object]:
        for writer, said in enumerate(self._said):
            if not said.poll(PATIENCE_SECONDS):
                raise RuntimeError(f"no message from writer {writer} in {PATIENCE_SECONDS:g} s")
            yield said.recv()


def check_written(uri: str, written: Mapping[str, Counter[tuple[str, int, float]]]) -> None:
    """Check that the store has every value of every writer exactly once.

    Raises:
        RuntimeError: When a value is missing or repeated, or a run is not finished.
    """
    engine = create_engine(uri)
    with engine.connect() as base:
        for run_id, wanted in written.items():
            asked = {"run": run_id}
            status = "SELECT status FROM runs WHERE run_uuid = :run"
            values = "SELECT key, step, value FROM metrics WHERE run_uuid = :run"
            ended = base.execute(text(status), asked).scalar_one()
            found = Counter(tuple(row) for row in base.execute(text(values), asked))
            lost, surplus = (wanted - found).total(), (found - wanted).total()
            if ended != "FINISHED" or lost or surplus or not wanted:
                raise RuntimeError(
                    f"run {run_id} of a writer is {ended}; of its {wanted.total()} values, {lost} "
                    f"are not in the store, and the store has {surplus} unexpected values"
                )
    engine.dispose()


def run_page(dashboard: Dashboard, run_id: str) -> list[float]:
    """Return the seconds from a click on a run's link to the run's page with its table."""
    seconds = []
    for _ in range(REPEATS):
        dashboard.open(f"/?search={run_id}").tick(0, 0)
        link = dashboard.page.get_by_role("link", name="Open this run")
        dashboard.page.wait_for_timeout(1000 * PAUSE_SECONDS)
        drawn = f"{HEADING} === 'umls fp32' && {TABLE}"
        seconds.append(timed(link.click, dashboard.page, drawn))
    return seconds


def round_of_pages(
    uri: str, browser: Browser, run_id: str, num_writers: int
) -> list[dict[str, object]]:
    """Start a dashboard, time its pages, and return a row for each page."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    with serving(uri) as address:
        dashboard = Dashboard(page, address).open("/")
        changes = page_changes(dashboard, PAGES, PAUSE_SECONDS)
        found = {f"page {name}": seconds for name, seconds in changes.items()}
        found["preset of Compare"] = comparison(dashboard, PAUSE_SECONDS)
        found["page of a run"] = run_page(dashboard, run_id)
    page.close()
    return [
        {
            "what": what,
            "writers": num_writers,
            "first s": seconds[0],
            "median s": median(seconds),
            "worst s": max(seconds),
            "times": len(seconds),
            "limit s": LIMIT_SECONDS,
        }
        for what, seconds in found.items()
    ]


@contextmanager
def surroundings() -> Iterator[tuple[str, Recorded]]:
    """Start the server, and yield the store's address and the recorded runs to fill it with."""
    with tempfile.TemporaryDirectory(prefix="clew-shared-") as folder, postgresql() as uri:
        recorded = record(Path(folder) / "recorded", num_epochs=NUM_EPOCHS)
        os.environ |= {"MLFLOW_TRACKING_URI": uri, "CLEW_SPOOL": f"{folder}/spool"}
        os.environ[store.ARTIFACTS_VARIABLE] = str(recorded.folder / "mlartifacts")
        yield uri, recorded


def main(num_runs: int = NUM_RUNS, num_writers: int = NUM_WRITERS) -> None:
    """Measure both rounds, check the written values, and print and write the results."""
    store.prepare_client_environment()
    if lack := missing() or (None if CHROMIUM.exists() else f"no Chromium: {CHROMIUM} is missing"):
        sys.exit(f"shared_store: {lack}")
    from tests.ui.seed_shared import shared_store

    with surroundings() as (uri, recorded):
        writers = Writers(num_writers)  # forked first, so they inherit no connections and threads
        rows_in_store = shared_store(recorded, uri, num_runs)
        print(", ".join(f"{number:,} {table}" for table, number in rows_in_store.items()))
        with chromium() as browser:
            rows = round_of_pages(uri, browser, recorded.runs[READ], 0)
            writers.begin()
            rows += round_of_pages(uri, browser, recorded.runs[READ], num_writers)
        written = writers.finish()
        check_written(uri, written)
    num_values = sum(values.total() for values in written.values())
    print(f"{num_writers} writers: {num_values:,} values, each exactly once in the store")
    print_table(rows)
    results = {**rows_in_store, "values written meanwhile": num_values, "pages": rows}
    write_results("shared_store", results, packages=("streamlit", "mlflow", "psycopg2-binary"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
