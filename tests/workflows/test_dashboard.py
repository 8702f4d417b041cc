"""The command that serves the dashboard, before the server starts."""

import socket

import pytest

from clew.__main__ import run


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
