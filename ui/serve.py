"""Serve the dashboard: `python -m clew.ui.serve`, followed by any options of Streamlit.

This is `streamlit run` with a faster start: the modules of the first page are imported, and the
store is queried for the first time, while the browser is still fetching the front end.
"""

import gc
import logging
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

from clew.errors import ClewError, ConfigError
from clew.processes import collect_garbage_rarely, end_with_parent
from clew.ui import access

APP = Path(__file__).parent / "guarded.py"
GATEWAY = "mlflow.gateway"
# Imported before the second thread starts: two threads that import modules of the same package
# can see it half initialized.
SERVER = ("streamlit.web.bootstrap", "streamlit.web.server")


def warm_up() -> None:
    """Import the first page and connect to the store; the page itself reports any error."""
    with suppress(ImportError, ClewError):
        import_module("clew.ui.views.overview")
        import_module("clew.ui.components.runs").experiments()  # the first query takes longest
    gc.freeze()  # imported modules are never garbage
    gc.enable()


def skip_what_pages_do_not_need() -> None:
    """Skip start-up work of Streamlit and MLflow that the pages do not need: a fifth of the time.

    Streamlit reads the metadata of each installed package to find custom components; the pages use
    none of a package. It also checks whether a page is run without a server, to warn about that.
    MLflow reads a constant in its gateway package, which first imports a web framework, and it
    searches all installed packages for each of ten kinds of plugins.
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
    """Serve until stopped; do not start with secrets that would let the wrong people in."""
    end_with_parent()
    try:
        access.must_sign_in = access.is_configured()
    except ConfigError as error:
        logging.getLogger(__name__).error("clew: error: %s", error)
        sys.exit(error.exit_code)
    collect_garbage_rarely()
    gc.disable()  # until everything is imported: saves a twelfth of that time
    skip_what_pages_do_not_need()
    for name in SERVER:
        import_module(name)
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    cli.main(["run", str(APP), *sys.argv[1:]], prog_name="streamlit")


if __name__ == "__main__":
    main()
