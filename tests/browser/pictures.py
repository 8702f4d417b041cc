"""Takes the documentation's screenshot of every page of the dashboard, over the demo's store.

python -m tests.browser.pictures FOLDER    (`make pictures`, after `make demo`)
"""

import sys
from pathlib import Path

from clew.names import ARTIFACT_INFLUENCE, INFLUENCE_JSON, KIND_TRACE, KIND_TRAIN
from clew.runs.influence_report import read_influence_outline
from clew.runs.reading.runs import fetched
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.store import prepare_client_environment, tracking_uri
from clew.runs.verification import Verification, names_of, read_kept
from tests.browser.dashboard import Dashboard, chromium, serving

WINDOW = {"width": 1200, "height": 900}
SECONDS = 120.0
"""Time limit for a command that the dashboard starts."""


def newest(kind: str, most: int) -> list[str]:
    """Return the ids of the newest finished runs of a kind."""
    query = RunQuery(kind=kind, status="FINISHED")
    return [run.run_id for run in search_runs(query, limit=most).runs]


def checked() -> str:
    """Return the address of an explanation that was checked, or of the newest one."""
    runs = newest(KIND_TRACE, 20)
    for run_id in runs:
        if kept := read_kept(Verification, run_id):
            with fetched(run_id, f"{ARTIFACT_INFLUENCE}/{INFLUENCE_JSON}") as path:
                tests = [names_of(test.test) for test in read_influence_outline(path).tests]
            place = tests.index(names_of(kept.tests[0].test))
            return f"/influence?run={run_id}&view=Paths&test={place}"
    return f"/influence?run={runs[0]}&view=Paths"


def addresses() -> dict[str, str]:
    """Return an address of each page with content to show."""
    trained, explained = newest(KIND_TRAIN, 2), checked()
    return {
        "overview": "/",
        "run": f"/run?id={trained[0]}",
        "compare": f"/compare?runs={','.join(reversed(trained))}",
        "influence": explained,
        "reviews": explained.replace("view=Paths", "view=Review"),
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
