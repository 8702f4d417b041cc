"""Serves the dashboard as a child process over the same tracking store."""

import sys
from importlib.util import find_spec

from clew.errors import UsageError
from clew.processes import run_child
from clew.runs.store import tracking_uri


def serve_dashboard(*, port: int, address: str) -> int:
    """Run Streamlit until it is stopped; return its exit code.

    Raises:
        UsageError: Streamlit is not there.
    """
    if find_spec("streamlit") is None:
        raise UsageError(
            "the package streamlit is not installed; install it with pip install 'clew[ui]'"
        )
    command = [sys.executable, "-m", "clew.ui.serve"]
    command += ["--server.port", str(port), "--server.address", address]
    try:
        return run_child(command, environment={"MLFLOW_TRACKING_URI": tracking_uri()})[0]
    except KeyboardInterrupt:
        return 130
