"""Serves the dashboard: `python -m clew.ui.serve`, with Streamlit's options behind it.

It is `streamlit run` with a head start: what the first page needs is imported, and the store is
asked for the first time, while the browser is still fetching the front end.
"""

import gc
import sys
import threading
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from streamlit import delta_generator
from streamlit.components.v2 import manifest_scanner
from streamlit.web import cli

from clew.errors import ClewError
from clew.processes import collect_garbage_rarely

APP = Path(__file__).parent / "guarded.py"
# All of the server is there before the second thread begins: two threads that import one package
# from different ends may find it half made.
GATEWAY = "mlflow.gateway"
SERVER = ("streamlit.web.bootstrap", "streamlit.web.server")


def warm_up() -> None:
    """Import the first page and connect to the store; what fails here, the page itself says."""
    with suppress(ImportError, ClewError):
        import_module("clew.ui.views.overview")
        import_module("clew.ui.data.runs").connect()
    gc.freeze()  # nothing that was imported is garbage
    gc.enable()


def skip_what_pages_do_not_need() -> None:
    """Spare what Streamlit and MLflow do at their start for nobody here, a fifth of it.

    Streamlit reads what each installed package says of itself, to find components for pages; the
    pages here have none. It finds out whether a page is run without a server, to warn of it. MLflow
    reads a constant in its gateway, whose package imports a web framework first, and it looks
    through all installed packages for each of ten kinds of plugins.
    """
    manifest_scanner.scan_component_manifests = lambda max_workers=None: []
    delta_generator._use_warning_has_been_displayed = True
    installed = metadata.entry_points()
    metadata.entry_points = installed.select
    gateway = ModuleType(GATEWAY)
    mlflow = find_spec(GATEWAY.partition(".")[0])
    assert mlflow is not None
    gateway.__path__ = [f"{place}/gateway" for place in mlflow.submodule_search_locations or ()]
    sys.modules.setdefault(GATEWAY, gateway)


def main() -> None:
    """Serve until stopped."""
    collect_garbage_rarely()
    gc.disable()  # until all is imported: a twelfth of that time
    skip_what_pages_do_not_need()
    for name in SERVER:
        import_module(name)
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    cli.main(["run", str(APP), *sys.argv[1:]], prog_name="streamlit")


if __name__ == "__main__":
    main()
