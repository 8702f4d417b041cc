"""Takes the documentation's screenshot of every page of the dashboard, over the demo's store.

python -m tests.browser.pictures FOLDER    (`make pictures`, after `make demo`)
"""

import sys
from pathlib import Path

from clew.names import KIND_TRACE, KIND_TRAIN
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.store import prepare_client_environment, tracking_uri
from tests.browser.dashboard import Dashboard, chromium, serving

WINDOW = {"width": 1200, "height": 900}
SECONDS = 120.0
"""Time limit for a command that the dashboard starts."""


def newest(kind: str, most: int) -> list[str]:
    """Return the ids of the newest finished runs of a kind."""
    query = RunQuery(kind=kind, status="FINISHED")
    return [run.run_id for run in search_runs(query, limit=most).runs]


def addresses() -> dict[str, str]:
    """Return an address of each page with content to show."""
    trained, (explained,) = newest(KIND_TRAIN, 2), newest(KIND_TRACE, 1)
    return {
        "overview": "/",
        "run": f"/run?id={trained[0]}",
        "compare": f"/compare?runs={','.join(reversed(trained))}",
        "influence": f"/influence?run={explained}&fact=1",
        "reviews": "/reviews",
        "models": "/models",
        "studies": "/studies",
        "ask": "/ask",
    }


def ask(dashboard: Dashboard) -> None:
    """Ask the first example, and why its first answer."""
    dashboard.page.get_by_test_id("stMain").get_by_role("button", name="what?").first.click()
    dashboard.shows("Why ", seconds=SECONDS)
    dashboard.settle().page.get_by_role("button", name="Why ").click()
    dashboard.shows("Read the explanation", seconds=SECONDS)


def take(folder: Path) -> None:
    """Serve the current store, and write `PAGE.png` for each page."""
    prepare_client_environment()
    folder.mkdir(parents=True, exist_ok=True)
    with serving(tracking_uri()) as address, chromium() as browser:
        for name, path in addresses().items():
            page = browser.new_context(viewport=WINDOW).new_page()  # type: ignore[arg-type]
            dashboard = Dashboard(page, address).open(path)
            if name == "ask":
                ask(dashboard)
            dashboard.picture(folder / f"{name}.png")
            if dashboard.problems:
                raise RuntimeError(f"{name}: {'; '.join(dashboard.problems)}")
            page.context.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
