"""An unusable cluster is refused in one line before any work starts."""

import re
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from clew.__main__ import run as run_command
from clew.errors import ClusterError
from clew.workflows.cluster import ClusterRequest, needs_of, require_server, room

has_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed (pip install 'clew[cluster]')"
)
COMMANDS = {
    "tune": ["tune", "--trials=1"],
    "compare": ["compare", "--study=link_prediction_precision"],
}


def refusal(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert run_command([*command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_without_ray_a_command_says_how_to_get_it(
    tracking_store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refusal(capsys, "tune", "--trials=1", "--cluster=local")
    assert "Ray, which is not installed; install it with pip install 'clew[cluster]'" in line


@has_ray
def test_an_address_where_nothing_listens_is_refused(
    tracking_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    line = refusal(capsys, "tune", "--trials=1", f"--cluster=127.0.0.1:{port}")
    assert re.search(rf"the cluster 127.0.0.1:{port} cannot be reached \(.*refused\); start", line)
    for wrong in ("head", "head:", "ray://head:port"):
        line = refusal(capsys, "tune", "--trials=1", f"--cluster={wrong}")
        assert f"--cluster is '{wrong}'; expected HOST:PORT, auto or local" in line


def test_a_unit_takes_a_gpu_where_there_are_some_and_nodes_take_what_fits() -> None:
    small, large = {"CPU": 4.0, "memory": 8.0 * 2**30}, {"CPU": 16.0, "GPU": 4.0}
    nodes = [{"Resources": small}, {"Resources": large}]
    assert needs_of(ClusterRequest("a:1"), nodes[:1]) == {"CPU": 1.0}
    needs = needs_of(ClusterRequest("a:1", cpus=2), nodes)
    assert needs == {"CPU": 2, "GPU": 1}
    assert [room(node["Resources"], needs) for node in nodes] == [0, 4]
    on_processors = needs_of(ClusterRequest("a:1", cpus=2, gpus=0, memory_gib=3), nodes)
    assert [room(node["Resources"], on_processors) for node in nodes] == [2, 0]


def test_several_machines_need_a_tracking_server(
    tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_server("a:1", {"10.0.0.1"})
    with pytest.raises(ClusterError, match=r"2 machines, but the tracking store sqlite.* is "):
        require_server("a:1", {"10.0.0.1", "10.0.0.2"})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    require_server("a:1", {"10.0.0.1", "10.0.0.2"})
