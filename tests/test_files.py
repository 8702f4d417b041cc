"""Files and folders that are whole or not there, and errors of libraries in one line."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from clew.errors import described
from clew.files import replacing, write_whole


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
    assert len(described(ValueError("x" * 1000))) == 300
    with pytest.raises(ValidationError) as caught:
        Person.model_validate({"password": "secret"})
    assert described(caught.value) == "name: Field required"
    with pytest.raises(ValidationError) as caught:
        Person(name="a", password="secret")  # type: ignore[arg-type]
    assert "secret" not in described(caught.value)
