"""A full disk with a real file system: one-line errors, no partial files, and resumption."""

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew import names
from clew.__main__ import run
from clew.errors import ProtectedStop
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.spool import list_spools
from clew.training.checkpoints import require_whole
from clew.training.manifest import list_checkpoints
from tests.attack.cases import require_one_line
from tests.attack.material import SPLITS, write_graph
from tests.workflows.trained import copy_store, dispose_of, use_store

pytestmark = pytest.mark.slow

KIB = 1024
DISK_KIB = 16 * KIB
TRAINING = (
    "--embedding-dim=16",
    "--output-channels=4",
    "--num-epochs=2",
    "training.device=cpu",
    "training.checkpoint_frequency=1",
    "tracking.log_mfu=false",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or _failed(mount):
        pytest.skip("this machine lets nobody mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def _failed(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


@contextlib.contextmanager
def only(disk: Path, kib: int) -> Iterator[None]:
    """Fill a disk, and leave this many bytes free."""
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - kib * KIB))
    try:
        yield
    finally:
        filler.unlink()


def clew(*arguments: object) -> tuple[int, str]:
    """Run a command, and return its exit code and its one-line error."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run([str(argument) for argument in arguments])
    lines = [line for line in errors.getvalue().splitlines() if line.startswith("clew: error")]
    assert len(lines) == (code != 0), errors.getvalue()
    for line in lines:
        require_one_line(line)
    return code, "".join(lines)


def statuses() -> list[str]:
    return [run.status for run in search_runs(RunQuery(kind=names.KIND_TRAIN)).runs]


@pytest.mark.parametrize("kib", [0, 40, 200, 700])
def test_checkpoints_on_a_full_disk(
    disk: Path, kib: int, store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = copy_store(store_template, tmp_path)
    use_store(monkeypatch, uri)
    write_graph(tmp_path / "graph")
    files = [f"--{split}={tmp_path}/graph/{split}.txt" for split in SPLITS]
    kept = disk / "kept"
    with only(disk, kib):
        code, line = clew("train", *files, *TRAINING, f"--checkpoint-dir={kept}")
    assert code in {0, 3}
    assert statuses() == ["FAILED" if code else "FINISHED"]
    if code:
        assert "No space left on device; free some space there" in line
    assert not list(disk.rglob(".*.tmp"))
    whole = list_checkpoints(kept / "checkpoints")
    for record in whole:
        require_whole(record.path)
    if code and whole:
        assert clew("train", "--resume", f"--checkpoint-dir={kept}")[0] == 0
    dispose_of(uri)


def test_everything_on_a_full_disk(
    disk: Path, store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store and journal are on the full disk too; the run ends when there is room again."""
    uri = copy_store(store_template, disk)
    use_store(monkeypatch, uri)
    write_graph(tmp_path / "graph")
    files = [f"--{split}={tmp_path}/graph/{split}.txt" for split in SPLITS]
    with only(disk, 100):
        code, _ = clew("train", *files, *TRAINING)
    assert code in {2, 3}
    assert clew("sync")[0] == 0
    assert "RUNNING" not in statuses()
    dispose_of(uri)


STORE_FAILS = """
import sys
from pathlib import Path
from clew.__main__ import main
from clew.runs.tracker import MlflowTracker
keep, database = MlflowTracker.checkpoint, Path(sys.argv.pop(1))
def fail(tracker, path, **named):
    tracker.flush()
    if database.name == "filler":
        try:
            database.write_bytes(bytes(2**25))
        except OSError:
            pass
    else:
        database.unlink()
    MlflowTracker.checkpoint = keep
    keep(tracker, path, **named)
MlflowTracker.checkpoint = fail
main()
"""


@pytest.mark.parametrize("lost", ["mlflow.db", "filler"])
def test_a_store_that_fails_in_mid_training(
    lost: str, disk: Path, store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is deleted, or has no room; the training goes on, and keeps its checkpoints."""
    uri = copy_store(store_template, disk)
    use_store(monkeypatch, uri)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    write_graph(tmp_path / "graph")
    files = [f"--{split}={tmp_path}/graph/{split}.txt" for split in SPLITS]
    command = [sys.executable, "-c", STORE_FAILS, disk / lost, "train", *files, *TRAINING]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == ProtectedStop.exit_code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("unsent records are kept in") == 1
    [folder] = list_spools(tmp_path / "spool")
    assert str(folder) in result.stderr
    kept = list(folder.glob("files/*/epoch-*"))
    assert {path.name for path in kept} == {"epoch-0001", "epoch-0002"}
    for path in kept:
        require_whole(path)
    if lost == "filler":
        (disk / lost).unlink()
        assert clew("sync")[0] == 0
        assert statuses() == ["FINISHED"]
    dispose_of(uri)
