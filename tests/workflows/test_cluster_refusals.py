"""An unusable cluster is refused in one line before any work starts."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from clew.__main__ import run as run_command
from clew.config.services import ClusterRequest
from tests.ports import free_port

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
    port = free_port()
    line = refusal(capsys, "tune", "--trials=1", f"--cluster=127.0.0.1:{port}")
    assert f"127.0.0.1:{port} cannot be reached" in line
    for wrong in ("head", "head:", "ray://head:port"):
        line = refusal(capsys, "tune", "--trials=1", f"--cluster={wrong}")
        assert f"--cluster is '{wrong}'; expected HOST:PORT, auto or local" in line


def test_a_unit_takes_a_gpu_where_there_are_some() -> None:
    small, large = {"CPU": 4.0, "memory": 8.0 * 2**30}, {"CPU": 16.0, "GPU": 4.0}
    nodes = [{"Resources": small}, {"Resources": large}]
    assert ClusterRequest(cluster="a:1").needs(nodes[:1]) == {"CPU": 1.0}
    assert ClusterRequest(cluster="a:1", cpus_per_task=2).needs(nodes) == {"CPU": 2, "GPU": 1}
    needs = ClusterRequest(
        cluster="a:1", cpus_per_task=2, gpus_per_task=0, memory_gib_per_task=3
    ).needs(nodes)
    assert needs == {"CPU": 2, "memory": 3 * 2**30}
