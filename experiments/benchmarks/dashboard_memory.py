"""Measures how much memory the dashboard's server gains while twenty people use it.

    python -m experiments.benchmarks.dashboard_memory [clicks]

Twenty sessions go from page to page 200 times each, all at once, each beginning at another page.
They speak to the server as Streamlit's front end does, without a browser, so nothing is drawn. The
store has 3,000 runs. The memory is that of the server and all its processes. Caches fill first, so
the growth is counted from the twentieth click.
"""

import sys
import tempfile
from pathlib import Path

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from experiments.benchmarks.dashboard_speed import seed
from experiments.benchmarks.harness import print_table, write_results
from tests.browser.dashboard import serving

NAME = "dashboard_memory"
SESSIONS, CLICKS, WARM_UP, EVERY = 20, 200, 20, 20
LIMIT_MIB = 50
SECONDS = 120.0
"""The longest time for a message of the server."""


class Person:
    """A session of the dashboard."""

    def __init__(self, address: str) -> None:
        self._socket = connect(
            f"{address.replace('http', 'ws')}/_stcore/stream",
            origin=Origin(address),
            subprotocols=[Subprotocol("streamlit"), Subprotocol("PLACEHOLDER_AUTH_TOKEN")],
            max_size=None,
        )
        self.pages: list[str] = []
        self.click("")
        self.wait()

    def click(self, page: str) -> None:
        """Ask for a page by its hash; empty means the first page."""
        asked = BackMsg()
        asked.rerun_script.page_script_hash = page
        self._socket.send(asked.SerializeToString())

    def wait(self) -> None:
        """Read the page to its end."""
        while True:
            said = self._socket.recv(timeout=SECONDS)
            assert isinstance(said, bytes)
            message = ForwardMsg.FromString(said)
            kind = message.WhichOneof("type")
            if kind == "navigation":
                self.pages = [page.page_script_hash for page in message.navigation.app_pages]
            if kind == "script_finished":
                if message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                    return
                raise RuntimeError(ForwardMsg.ScriptFinishedStatus.Name(message.script_finished))


def server_mib() -> float:
    """Return the memory that only the server and its processes use, in MiB."""
    servers = [
        process
        for process in psutil.Process().children()
        if "clew.ui.serve" in " ".join(process.cmdline())
    ]
    every = [child for server in servers for child in (server, *server.children(recursive=True))]
    return float(sum(process.memory_full_info().uss for process in every) / 2**20)


def main(clicks: int) -> None:
    """Click, and print and write the server's memory."""
    found: dict[int, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="clew-memory-") as folder,
        serving(seed(Path(folder))) as address,
    ):
        people = [Person(address) for _ in range(SESSIONS)]
        for click in range(1, clicks + 1):
            for place, person in enumerate(people):
                person.click(person.pages[(click + place) % len(person.pages)])
            for person in people:
                person.wait()
            if click % EVERY == 0:
                found[click] = server_mib()
                print(f"{click} clicks of each: {found[click]:.0f} MiB", flush=True)
    grown = found[max(found)] - found[WARM_UP]
    rows = [{"clicks of each": click, "MiB": mib} for click, mib in found.items()]
    print_table(rows)
    print(f"{grown:.0f} MiB more; at most {LIMIT_MIB} wanted")
    results = {"pages": len(people[0].pages), "grown MiB": grown, "memory": rows}
    write_results(NAME, results, packages=("streamlit", "mlflow"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else CLICKS)
