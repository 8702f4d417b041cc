"""Where people sign in, a model's data are read only from the folders that the server shares."""

import os
from pathlib import Path

import pytest

from clew.config.data import ImageSequenceData, TokenData, TripleData, require_shared
from clew.errors import ConfigError


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder with a file and a link to a secret beside the folder."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "train.txt").write_text("a\tr\tb\n")
    (tmp_path / "secret.txt").write_text("hunter2")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setenv("CLEW_ONLY_DATA_IN", f"{os.pathsep}{folder}")
    return folder


@pytest.mark.parametrize(
    "given",
    ["secret.txt", "shared/../secret.txt", "shared/link.txt", ".", "a.zip/train.txt", "new/folder"],
)
def test_other_files_are_refused_by_whatever_name(shared: Path, given: str) -> None:
    path = str(shared.parent / given)
    own = str(shared / "train.txt")
    for data in (
        TripleData(train=path),
        TripleData(path=path),
        *(TripleData(train=own, **{key: path}) for key in ("valid", "exclude", "edge_map")),
        TokenData(name="stories", packed=path),
        TokenData(dataset=path),
        TokenData(dataset=own, tokenizer=path),
        ImageSequenceData(path=path),
    ):
        with pytest.raises(ConfigError) as refused:
            require_shared(data)
        assert path not in str(refused.value)


def test_shared_files_and_named_data_sets_are_read(shared: Path) -> None:
    own = str(shared / "train.txt")
    for data in (
        TripleData(train=own),
        TripleData(name="umls"),
        TokenData(dataset=own, tokenizer="bpe"),
        TokenData(dataset="somebody/stories"),
        TokenData(dataset=own, packed=str(shared / "packed")),
    ):
        require_shared(data)


def test_on_the_command_line_every_file_is_read(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEW_ONLY_DATA_IN")
    require_shared(TripleData(train=str(shared.parent / "secret.txt")))
