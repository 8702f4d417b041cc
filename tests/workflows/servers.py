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


def refused(address: str, content: object, kind: str = "application/json") -> tuple[int, str]:
    """Send an invalid request, and return the status and the answer's only line."""
    status, answer = post(address, content, kind)
    assert answer.keys() == {"error_code", "message"}
    line = answer["message"]
    assert len(line.splitlines()) == 1
    assert len(line) <= 600
    assert not any(word in line for word in ("Traceback", 'File "', "site-packages"))
    return status, line


FORMLESS = {
    "deep": (b'{"dataframe_records": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
    "rather deep": (b'{"inputs": ' + b"[" * 300 + b"]" * 300 + b"}", "expected rows"),
    "no JSON": (b'{"dataframe_records": [', "not valid JSON (Expecting value"),
    "no text": (b"\xff\xfe", "not valid JSON"),
    "a list": ([{"x": 1}], "not a JSON object"),
    "no rows": ({"params": {}}, "none of dataframe_records"),
    "two kinds of rows": ({"inputs": [], "instances": []}, "inputs and instances"),
    "rows of another kind": ({"dataframe_records": 7}, "expected rows"),
    "numbers as rows": ({"dataframe_records": [1, None]}, "expected rows"),
    "ragged": ({"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}, "expected rows"),
    "params is a list": ({"dataframe_records": [{}], "params": [1]}, "params is not a JSON object"),
    "beside": ({"dataframe_records": [{}], "messages": 1}, "the request has 'messages'"),
    "no columns": ({"dataframe_records": [{}]}, "expected rows"),
    "unknown columns alone": ({"dataframe_records": [{"x": 1}]}, "expected rows"),
}
"""Invalid requests that every model refuses, and words of the answer."""


def check_formless(address: str) -> None:
    """Send malformed requests, and check that the server still answers after them."""
    for name, (content, said) in FORMLESS.items():
        status, line = refused(address, content)
        assert (name, status) == (name, 400), line
        assert said in line, name
    large = json.dumps({"dataframe_records": [{"x": "y" * 50_000_000}]}).encode()
    status, line = refused(address, large)
    assert (status, line) == (413, "the request is larger than 16 MiB; send fewer rows at once")
    for kind in ("text/csv", "application/vnd.apache.parquet", "text/html"):
        status, line = refused(address, {"inputs": []}, kind)
        assert (kind, status) == (kind, 415), line


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
