"""Measures how much memory the dashboard's server gains while twenty people use it.

    python -m experiments.benchmarks.dashboard_memory [clicks]

Twenty pages in headless Chromium, each with a session of its own, click 200 times each on the links
to the dashboard's pages, in turns and each beginning at another page. The store has 3,000 runs. The
memory is that of the server and all its processes. The caches fill during the first twenty clicks,
so the growth is counted from there.
"""

import sys
import tempfile
from pathlib import Path

import psutil

from experiments.benchmarks.dashboard_speed import HEADING, PAGES, seed, wait_until
from experiments.benchmarks.harness import print_table, write_results
from tests.browser.dashboard import Dashboard, chromium, serving

NAME = "dashboard_memory"
BROWSERS, CLICKS, WARM_UP, EVERY = 20, 200, 20, 20
LIMIT_MIB = 50


def server_mib() -> float:
    """Return the memory that only the server and its processes use, in MiB."""
    servers = [
        process
        for process in psutil.Process().children()
        if "clew.ui.serve" in " ".join(process.cmdline())
    ]
    every = [child for server in servers for child in (server, *server.children(recursive=True))]
    return sum(process.memory_full_info().uss for process in every) / 2**20


def main(clicks: int) -> None:
    """Click, and print and write the server's memory."""
    rows: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory(prefix="clew-memory-") as folder,
        chromium() as browser,
        serving(seed(Path(folder))) as address,
    ):
        contexts = [browser.new_context() for _ in range(BROWSERS)]
        people = [Dashboard(context.new_page(), address).open("/") for context in contexts]
        found = {}
        for click in range(1, clicks + 1):
            for person, dashboard in enumerate(people):
                name = PAGES[(click + person) % len(PAGES)]
                dashboard.page.get_by_role("link", name=name, exact=True).first.click()
                wait_until(dashboard.page, f"{HEADING} === '{name}'")
            if click % EVERY == 0:
                found[click] = server_mib()
                rows.append({"clicks of each": click, "MiB": found[click]})
                print(rows[-1], flush=True)
    grown = found[max(found)] - found[WARM_UP]
    print_table(rows)
    print(f"{grown:.0f} MiB more; at most {LIMIT_MIB} wanted")
    write_results(NAME, {"grown_mib": grown, "memory": rows}, packages=("streamlit", "mlflow"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else CLICKS)
