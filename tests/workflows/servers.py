"""Servers in separate processes, started as a person would start them, and requests to them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clew.runs import store
from tests.ports import free_port


@contextmanager
def process(command: list[str], log: Path, address: str, **environment: str) -> Iterator[None]:
    """Start a server, wait for its first answer, and end it with all its children."""
    variables = os.environ | environment | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=variables,
            cwd=log.parent,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while store.probe(address) is not None:
            if child.poll() is not None:
                raise RuntimeError(log.read_text(encoding="utf-8")[-3000:])
            time.sleep(0.2)
        yield
    finally:
        with suppress(ProcessLookupError):  # the server has ended by itself
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def post(address: str, content: object, kind: str = "application/json") -> tuple[int, Any]:
    """Send a request without MLflow; bytes are sent unchanged."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = urllib.request.Request(
        f"{address}/invocations", data=data, headers={"Content-Type": kind}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def refused(address: str, content: object) -> tuple[int, str]:
    """Send an invalid request, and return the status and what is said about the mistake."""
    status, answer = post(address, content)
    return status, answer.get("mistake") or answer["message"]


FORMLESS = {
    "no JSON": b'{"dataframe_records": [',
    "a list": [{"x": 1}],
    "no rows": {"params": {}},
    "rows of another kind": {"dataframe_records": 7},
    "ragged": {"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}},
    "no columns": {"dataframe_records": [{}]},
    "unknown columns alone": {"dataframe_records": [{"x": 1}]},
}
"""Invalid requests that every model refuses."""


def check_formless(address: str) -> None:
    """Send malformed requests; none is answered."""
    for name, content in FORMLESS.items():
        status, _ = post(address, content)
        assert (name, status) == (name, 400)


@contextmanager
def serving(uri: str, model: str, log: Path, **environment: str) -> Iterator[str]:
    """Serve a champion with the documented command, without the project on its path."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("mlflow")), "models", "serve"]
    command += ["-m", f"models:/{model}@champion", "--env-manager", "local", "-p", str(port)]
    address = f"http://127.0.0.1:{port}"
    variables = environment | {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "OMP_NUM_THREADS": "1",
    }
    with process(command, log, address, **variables):
        yield address
