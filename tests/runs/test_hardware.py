"""The description of the machine, and the peak of the process's memory."""

import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import pytest

from clew.runs import hardware


def test_this_machine_is_described() -> None:
    machine = hardware.describe_machine()
    assert machine.cpu
    assert machine.num_cores >= 1
    assert machine.memory_gib > 0.5
    assert machine.torch == version("torch")
    assert machine.summary.startswith(machine.cpu)
    assert f"{machine.num_cores} cores" in machine.summary
    assert machine.as_dict()["gpus"] == tuple({**gpu.__dict__} for gpu in machine.gpus)


class NoDriver(Exception):
    pass


def fake_nvml(**functions: object) -> types.ModuleType:
    module = types.ModuleType("pynvml")
    module.NVMLError = NoDriver  # type: ignore[attr-defined]
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def test_gpus_are_named_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(total=141 * 2**30)
    module = fake_nvml(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlSystemGetDriverVersion=lambda: "570.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    machine = hardware.describe_machine()
    assert machine.gpus == (hardware.Gpu("NVIDIA H200", 141.0),)
    assert machine.driver == "570.1"
    assert machine.summary.endswith("NVIDIA H200 141 GiB")


def _fail(*_: object) -> None:
    raise NoDriver("driver not loaded")


@pytest.mark.parametrize(
    "module",
    [
        None,
        fake_nvml(nvmlInit=_fail),
        fake_nvml(nvmlInit=lambda: None, nvmlDeviceGetCount=_fail, nvmlShutdown=lambda: None),
    ],
    ids=["no library", "no driver", "driver does not answer"],
)
def test_without_a_gpu_there_is_none(
    monkeypatch: pytest.MonkeyPatch, module: types.ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert hardware.describe_machine().gpus == ()


PEAKS = """
import numpy
from clew.runs import hardware

if hardware.reset_process_peak():
    peaks = [hardware.process_peak_gib()]
    block = numpy.ones(2**28, dtype=numpy.uint8)  # 0.25 GiB
    peaks.append(hardware.process_peak_gib())
    del block
    peaks.append(hardware.process_peak_gib())
    hardware.reset_process_peak()
    peaks.append(hardware.process_peak_gib())
    print(*peaks)
"""


def test_the_peak_follows_memory_and_can_be_reset() -> None:
    """This runs in a separate process, because memory of earlier tests would count here."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    if not done.stdout:
        pytest.skip("this system does not let a process reset its peak")
    before, held, freed, reset = map(float, done.stdout.split())
    assert held - before > 0.2
    assert freed - before > 0.2, "a peak does not fall by itself"
    assert reset - before < 0.1


def test_without_proc_the_peak_counts_from_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hardware, "PROC", tmp_path)
    assert hardware.process_peak_gib() > 0.01
    assert hardware.reset_process_peak() is False


def test_a_container_limits_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(hardware, "CGROUP_MEMORY_LIMIT", limit)
    limit.write_text(f"{2**29}\n")
    assert hardware.memory_gib() == 0.5
    limit.write_text("max\n")
    assert hardware.memory_gib() > 0.5


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "hardware.py").write_text("first\n")
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "hardware.py"))
    return tmp_path


def commit() -> str | None:
    return hardware.git_commit.__wrapped__()


def test_the_commit_is_that_of_the_source(checkout: Path) -> None:
    assert commit() is None, "an environment inside a checkout is not the checkout"
    git(checkout, "add", "hardware.py")
    git(checkout, "commit", "-qm", "first")
    git(checkout, "tag", "-a", "v1", "-m", "v1")
    head = git(checkout, "rev-parse", "HEAD")
    assert commit() == head
    (checkout / "hardware.py").write_text("second\n")
    assert commit() == f"{head}-dirty"


def test_a_result_file_leaves_the_source_as_it_was(checkout: Path) -> None:
    result = checkout / "experiments/studies/results/loss.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    result.write_text("{1}\n")
    assert commit() == git(checkout, "rev-parse", "HEAD")
    (checkout / "experiments/studies/loss.yaml").write_text("name: loss\n")
    git(checkout, "add", ".")
    assert str(commit()).endswith("-dirty")


def test_a_program_that_git_does_not_know_is_a_change(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "own.py").write_text("a user's script\n")
    assert commit() == head
    benchmark = checkout / "experiments/benchmarks/new.py"
    benchmark.parent.mkdir(parents=True)
    benchmark.write_text("what a result would come from\n")
    assert commit() == f"{head}-dirty"


def test_only_a_commit_may_be_named_by_a_result() -> None:
    assert hardware.why_no_result_file("1" * 40) is None
    assert "uncommitted changes" in str(hardware.why_no_result_file("1" * 40 + "-dirty"))
    assert "not a git checkout" in str(hardware.why_no_result_file(None))


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert commit() is None


def test_outside_a_checkout_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "hardware.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
