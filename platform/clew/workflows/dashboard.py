"""Serves the dashboard in a child process that uses the same tracking store."""

import os
import socket
import sys
from importlib.util import find_spec

from clew.errors import UsageError, described
from clew.processes import PARENT_VARIABLE, run_child
from clew.runs.store import tracking_uri


def serve_dashboard(*, port: int, address: str, base_path: str = "") -> int:
    """Run Streamlit until it is stopped; return its exit code."""
    if find_spec("streamlit") is None:
        raise UsageError(
            "the package streamlit is not installed; install it with pip install 'clew[ui]'"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"--port {port} at {address} cannot be used ({described(error)}); if a dashboard "
                "is already running there, open it, else give another --port"
            ) from None
    command = [sys.executable, "-m", "clew.ui.serve"]
    command += ["--server.port", str(port), "--server.address", address]
    command += ["--server.baseUrlPath", base_path] if base_path else []
    environment = {"MLFLOW_TRACKING_URI": tracking_uri(), PARENT_VARIABLE: str(os.getpid())}
    try:
        return run_child(command, environment=environment)[0]
    except KeyboardInterrupt:
        return 130
