"""Measures the dashboard in a browser: cold start, page changes and large explanations.

Times are measured in headless Chromium on the same machine. They start with the server, which
`clew ui` starts after 0.4 s, or with a click. They end when the page is drawn and the server is
idle again. The store has 3,000 runs with 43 metrics and 20 epochs, copies of eight runs of
`clew train`. One explanation has 100 tests x 1,000 facts, another one test x 100,000 facts.
Questions go to the ConvE of `umls.yaml` after five epochs, with a checkpoint for each. It has not
answered a question before, so the data that all its reasons share is prepared from the first
question on.

    python -m experiments.benchmarks.dashboard_speed
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from playwright.sync_api import Page

from clew.files import cache_folder
from clew.runs import store
from experiments.benchmarks.harness import median, print_table, write_results
from tests.browser.dashboard import Dashboard, chromium, serving, wait_for

NUM_RUNS = 3000
NUM_EPOCHS = 20
REPEATS, PAGE_REPEATS = 5, 10
PAGES = ("Compare", "Influence", "Reviews", "Models", "Studies", "Ask", "Overview")
IDLE = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
HEADING = "document.querySelector('h1')?.innerText"
TABLE = "document.querySelector('[data-testid=stDataFrame] canvas') !== null"
GRAPH = "document.querySelector('.clew-graph svg') !== null"
TEXT = "(document.querySelector('[data-testid=stMain]')?.innerText ?? '')"
WHY = "[...document.querySelectorAll('button')].some(each => each.innerText.startsWith('Why '))"
CARD = "(document.querySelector('.clew-card')?.innerText ?? '')"
LIMITS = {"cold start": 4.0, "page": 1.0, "explanation": 1.5, "why": 3.0}
ASKED = ("acquired_abnormality", "virus", "bacterium", "enzyme", "hormone", "cell")
"""Heads of the questions `(head, affects, ?)`."""
READING_SECONDS = 2.0


def wait_until(page: Page, condition: str) -> None:
    """Wait until the page fulfils the condition and the server is idle."""
    page.wait_for_function(f"() => ({condition}) && ({IDLE})", timeout=60_000)


def timed(action: Callable[[], object], page: Page, condition: str) -> float:
    """Return the seconds from an action until the page that it opens is drawn."""
    start = time.perf_counter()
    action()
    wait_until(page, condition)
    return time.perf_counter() - start


def seed(folder: Path) -> str:
    """Fill a store and return its address; its newest runs are the two trace runs."""
    from tests.recorded import record
    from tests.ui.seed_influence import trace_run
    from tests.ui.seed_many import large_store

    recorded = record(folder / "recorded", num_epochs=NUM_EPOCHS)
    large = large_store(recorded, folder / "store", NUM_RUNS)
    trace_run(large, num_tests=100, num_pairs=1000, top_k=500)
    trace_run(large, num_tests=1, num_pairs=100_000, top_k=100_000)
    return large.uri


def cold_starts(uri: str, page: Page) -> list[float]:
    """Return the seconds from the start of a new server to its first page, several times."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        with serving(uri, wait=False) as address:
            wait_for(address)
            page.goto(address)
            wait_until(page, f"{HEADING} === 'Overview' && {TABLE}")
            seconds.append(time.perf_counter() - start)
    return seconds


def page_changes(
    dashboard: Dashboard, names: Sequence[str] = PAGES, pause_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Return the seconds of each change to a page by its link, including the first visit.

    Before each change the reader pauses, so that the dashboard's caches become older.
    """
    page = dashboard.page
    seconds: dict[str, list[float]] = {}
    for _ in range(PAGE_REPEATS):
        for name in names:
            page.wait_for_timeout(1000 * pause_seconds)
            link = page.get_by_role("link", name=name, exact=True).first
            drawn = f"{HEADING} === '{name}'"
            if name == "Overview":
                drawn += f" && {TABLE}"
            seconds.setdefault(name, []).append(timed(link.click, page, drawn))
    return seconds


def comparison(dashboard: Dashboard, pause_seconds: float = 0.0) -> list[float]:
    """Return the seconds from a click on the preset's button to its table and charts."""
    seconds = []
    for _ in range(REPEATS):
        dashboard.page.wait_for_timeout(1000 * pause_seconds)
        dashboard.open("/compare")
        preset = dashboard.button("FP32 / FP16 / checkpointing").first
        drawn = "document.querySelectorAll('[data-testid=stVegaLiteChart]').length >= 3"
        seconds.append(timed(preset.click, dashboard.page, drawn))
    return seconds


def explanation(dashboard: Dashboard, row: int, *, another: bool) -> dict[str, float]:
    """Return the seconds to open a report from the overview, and to select another test triple.

    `row` is the position of the run among the trace runs, the newest first.
    """
    page = dashboard.page
    seconds: list[float] = []
    for _ in range(REPEATS):
        dashboard.open("/?search=kind:trace").tick(0, row)
        link = page.get_by_role("link", name="Read explanations")
        drawn = f"{HEADING} === 'Influence' && {CARD}.includes('Metformin') && {GRAPH}"
        seconds.append(timed(link.click, page, drawn))
    found = {"first open": seconds[0], "opened again": median(seconds[1:])}
    if another:
        page.get_by_text("Explained triples:").click()
        dashboard.settle()
        table = page.get_by_test_id("stDataFrame").first.bounding_box()
        assert table is not None
        x, y = table["x"] + 18, table["y"] + 35 * 2.5
        found["another test"] = timed(
            lambda: page.mouse.click(x, y), page, f"{CARD}.includes('Aspirin')"
        )
    return found


def promote_umls() -> None:
    """Make the shipped ConvE, trained for five epochs, the champion of the bundled graph."""
    options = ("training.num_epochs=5", "training.checkpoint_frequency=1")
    commands = (
        ["train", *options],
        ["promote", "--run-id=newest", "--name=clew-umls", "--force=measured here"],
    )
    for command in commands:
        subprocess.run([sys.executable, "-m", "clew", *command], check=True, capture_output=True)


def questions(dashboard: Dashboard) -> dict[str, list[float]]:
    """Return the seconds to an answer and to its first reason, for one head after another.

    A question is asked when its relation is chosen. The reader waits for `READING_SECONDS` before
    clicking *Why* beside the first answer. The cache for reasons is removed before the first
    question, so the first *Why* finds only what was prepared in the meantime.
    """
    page = dashboard.page
    seconds: dict[str, list[float]] = {}
    shutil.rmtree(cache_folder("moments"), ignore_errors=True)
    for number, head in enumerate(ASKED):
        dashboard.open("/ask?model=clew-umls").choose("Head", head)
        relation = page.get_by_role("combobox", name="Relation")
        relation.click()
        relation.fill("affects")
        ask = page.get_by_role("option", name="affects", exact=True).first
        found = timed(ask.click, page, f"{WHY} && {TABLE}")
        seconds.setdefault("answer, warm" if number else "answer, first of all", []).append(found)
        page.wait_for_timeout(1000 * READING_SECONDS)
        because = f"/(First|Whole) answer/.test({TEXT})"
        found = timed(page.get_by_role("button", name="Why ").first.click, page, because)
        seconds.setdefault("why" if number else "why, first of a model", []).append(found)
        dashboard.shows("Read the explanation", seconds=60)
    return seconds


def main() -> None:
    """Measure everything, and print and write the results."""
    store.prepare_client_environment()
    # A server that cannot write .pyc files would compile all modules again at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="clew-speed-") as folder, chromium() as browser:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        uri = os.environ["MLFLOW_TRACKING_URI"] = seed(Path(folder))
        promote_umls()
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        cold = cold_starts(uri, page)
        with serving(uri) as address:
            dashboard = Dashboard(page, address).open("/")
            changes = page_changes(dashboard)
            preset = comparison(dashboard)
            explained = explanation(dashboard, 1, another=True)
            large = explanation(dashboard, 0, another=False)
        with serving(uri) as address:
            asked = questions(Dashboard(page, address).open("/"))
    rows: list[dict[str, object]] = [_row("cold start", cold, LIMITS["cold start"])]
    rows += [_row(f"page {name}", found, LIMITS["page"]) for name, found in changes.items()]
    rows.append(_row("preset of Compare", preset, LIMITS["page"]))
    limit = LIMITS["explanation"]
    rows += [_row(f"100 x 1,000 facts, {n}", [s], limit) for n, s in explained.items()]
    rows += [_row(f"1 x 100,000 facts, {n}", [s], limit) for n, s in large.items()]
    for name, found in asked.items():
        rows.append(
            _row(f"Ask, {name}", found, LIMITS["why" if name.startswith("why") else "page"])
        )
    print_table(rows)
    write_results("dashboard_speed", rows, packages=("streamlit", "mlflow"))


def _row(what: str, seconds: list[float], limit: float) -> dict[str, object]:
    return {
        "what": what,
        "median s": median(seconds),
        "95 % s": float(np.percentile(seconds, 95)),
        "worst s": max(seconds),
        "times": len(seconds),
        "limit s": limit,
    }


if __name__ == "__main__":
    main()
