"""A process's cores, from its affinity and its control groups' quotas, and waiting threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clew.runs import hardware as processor

ROOT = Path(__file__).parents[2]
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))


def place_in_groups(
    folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]
) -> None:
    """Put the process into control groups, with these `files` under `/sys/fs/cgroup`."""
    for name, content in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "own").write_text(own)
    monkeypatch.setattr(processor, "OWN_CGROUPS", folder / "own")
    monkeypatch.setattr(processor, "CGROUPS", folder / "groups")


VERSION_1 = "12:memory:/job\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/x\n0::/job\n"
CASES = {
    "no limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
    "no files": ("0::/a/b\n", {}, 8),
    "version 2, half a core more": ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
    "version 2, less than a core": ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
    "version 2, more than there are": ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
    "version 2, a group above": (
        "0::/user.slice/job.scope\n",
        {"user.slice/cpu.max": "400000 100000\n", "user.slice/job.scope/cpu.max": "max 100000\n"},
        4,
    ),
    "version 1, the host's path in a container": (
        VERSION_1,
        {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "50000\n"},
        3,
    ),
    "version 1, no limit": (
        VERSION_1,
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        8,
    ),
    "version 1, its own group": (
        VERSION_1,
        {
            "cpu/docker/abc/cpu.cfs_quota_us": "200000\n",
            "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
}


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("case", CASES)
def test_cores_are_those_of_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    own, files, cores = CASES[case]
    place_in_groups(tmp_path, monkeypatch, own, files)
    assert processor.num_cores() == cores
    environment: dict[str, str] = {}
    processor.prepare_threads(environment)
    assert environment.get("OMP_NUM_THREADS") == (None if cores == 8 else str(cores))
    given = {"OMP_NUM_THREADS": "5"}
    processor.prepare_threads(given)
    assert given["OMP_NUM_THREADS"] == "5"


def test_a_system_without_control_groups_has_its_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "OWN_CGROUPS", tmp_path / "nothing")
    assert processor.num_cores() == len(os.sched_getaffinity(0))


PROGRAM = """
import json, os, sys
from clew import __main__ as command

def report(arguments):
    assert "torch" not in sys.modules, "OpenMP has read its environment"
    if len(sys.argv) > 1:
        import torch
    names = {names!r}
    child = "import json, os; print(json.dumps({{n: os.environ.get(n) for n in {names!r}}}))"
    os.execv(sys.executable, [sys.executable, "-c", child])

command.run = report
command.main()
"""


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "2000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
    ids=["nothing set", "a count", "a policy"],
)
def test_the_command_prepares_before_torch_and_its_children_inherit_it(
    given: dict[str, str], spins: str | None
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(names=VARIABLES), *(() if given else ("torch",))],
        env=inherited | given | {"PYTHONPATH": str(ROOT / "platform")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["GOMP_SPINCOUNT"] == spins
    assert found["OMP_WAIT_POLICY"] == given.get("OMP_WAIT_POLICY")
