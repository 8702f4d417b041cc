"""Files and folders are complete or missing, and libraries' errors are one line."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from clew.errors import DataError, described, of_the_system
from clew.files import replacing, working_folder, write_whole

PLATFORM = Path(__file__).parents[1] / "platform"


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "text"
    write_whole(path, "one")
    write_whole(path, "twö")
    assert path.read_text(encoding="utf-8") == "twö"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("first", "second"):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / name).touch()
    assert [file.name for file in path.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_fails_leaves_what_was_there(tmp_path: Path, make: object) -> None:
    path = tmp_path / "kept"
    write_whole(path, "before")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:  # noqa: PT012
        make(temporary)  # type: ignore[operator]
        assert path.read_text() == "before"
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (path / "precious").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_whole(path, "text")
    assert (path / "precious").is_dir()
    assert list(tmp_path.iterdir()) == [path]


class Person(BaseModel):
    name: str
    password: int = 0


def test_errors_of_libraries_are_one_line() -> None:
    assert described(OSError("no space\nleft")) == "no space"
    assert described(MemoryError()) == "MemoryError"
    downloading = "The following failures occurred:\n##### File MLmodel #####\n  connection reset"
    assert described(OSError(downloading)) == "##### File MLmodel ##### connection reset"
    assert len(described(ValueError("x" * 1000))) == 300
    with pytest.raises(ValidationError) as caught:
        Person.model_validate({"password": "secret"})
    assert described(caught.value) == "name: missing"
    with pytest.raises(ValidationError) as caught:
        Person(name="a", password="secret")  # type: ignore[arg-type]
    assert "secret" not in described(caught.value)


def test_a_working_folder_goes_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with working_folder("train") as folder:
        assert folder.name.startswith("clew-work-train-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
        with working_folder("train") as other:
            assert folder.is_dir(), "it is alive"
        assert not other.exists()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal
from clew.files import working_folder
with working_folder("train") as folder:
    (folder / "big").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_killed_processes_left_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign = tmp_path / "clew-work-of-somebody"
    foreign.mkdir()
    link = tmp_path / "clew-work-link"
    link.symlink_to(foreign)
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(PLATFORM)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (left,) = tmp_path.glob("clew-work-train-*")
    with working_folder("trace"):
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == [link, foreign]


def test_the_lock_of_a_working_folder_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it removes the folder leaves one that is swept later."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left: list[list[str]] = []
    rmtree = shutil.rmtree

    def note(path: Path, **options: bool) -> None:
        left.append(sorted(os.listdir(path)))
        rmtree(path, **options)

    with working_folder("train") as folder:
        (folder / "checkpoints").mkdir()
        (folder / "config.yaml").touch()
        monkeypatch.setattr(shutil, "rmtree", note)
    assert left == [[], [".lock"]]
    assert not folder.exists()


def test_an_error_does_not_name_a_working_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught, working_folder("model", holds="run 12") as folder:  # noqa: PT012
        path = folder / "best" / "model.safetensors"
        raise DataError(f"{path}: damaged, unlike {folder.parent}/other")
    assert str(caught.value).startswith("run 12: best/model.safetensors: damaged, unlike /")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (OSError(errno.ENOSPC, "", "/gone/for/good"), 3, "/: No space left on device; free"),
        (OSError(errno.EFBIG, "", "here/file"), 3, ".: File too large; raise the limit"),
        (OSError(errno.EROFS, "", "/a/b"), 2, "/a/b: Read-only file system; choose another"),
        (OSError(errno.ENAMETOOLONG, "", "x" * 5000), 2, "xx: File name too long; give"),
        (OSError(errno.ENOSPC, ""), 3, "No space left on device; free some"),
        (
            shutil.Error([("a", "/b", "[Errno 28] No space left on device: 'a'")]),
            3,
            "/: No space left on device",
        ),
    ],
)
def test_a_failed_file_operation_is_one_line_with_advice(
    error: OSError, code: int, says: str
) -> None:
    found = of_the_system(error)
    assert found is not None
    assert found.exit_code == code
    assert says in str(found)
    assert len(str(found).splitlines()) == 1
    assert len(str(found)) < 600


def test_other_errors_of_the_system_stay_what_they_are() -> None:
    assert of_the_system(ConnectionResetError(errno.ECONNRESET, "reset")) is None
    assert of_the_system(OSError("without a number")) is None
    assert of_the_system(shutil.Error("same file")) is None
