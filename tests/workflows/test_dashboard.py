"""The command that serves the dashboard, before the server starts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from streamlit.web.server.starlette import starlette_websocket

from clew import processes
from clew.__main__ import run
from tests.browser.dashboard import wait_for
from tests.ports import free_port


def test_a_port_in_use_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert run(["ui", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"--port {port} at 127.0.0.1 cannot be used" in said
    assert "give another --port" in said


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ([], ["127.0.0.1", "localhost", "[::1]"]),
        (["--address=127.0.0.2"], ["127.0.0.2"]),
        (["--base-path=/clew", "--host=clew.example.org"], ["clew.example.org", "localhost"]),
    ],
)
def test_browsers_can_use_it_under_its_names(
    options: list[str], hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(
        processes, "run_child", lambda command, **_: (commands.append(command) or 0, "")
    )
    assert run(["ui", "--port", str(free_port()), *options]) == 0
    (words,) = commands
    places = [place + 1 for place, word in enumerate(words) if word == "--server.allowedHosts"]
    monkeypatch.setattr(
        starlette_websocket.config, "get_option", lambda name: [words[place] for place in places]
    )
    for host in hosts:
        assert starlette_websocket.is_host_allowed(f"{host}:8501")
    assert not starlette_websocket.is_host_allowed("evil.example.org:8501")


@pytest.mark.slow
def test_a_killed_command_leaves_no_server(tmp_path: Path) -> None:
    port = free_port()
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    command = [sys.executable, "-m", "clew", "ui", "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as started:
        wait_for(f"http://127.0.0.1:{port}")
        servers = psutil.Process(started.pid).children(recursive=True)
        started.kill()
    _, alive = psutil.wait_procs(servers, timeout=60)
    for server in alive:
        server.kill()
    assert servers
    assert not alive
