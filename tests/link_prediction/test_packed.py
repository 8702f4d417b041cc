"""Packed triples equal the triples of the files, and a folder is complete or does not exist."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.__main__ import run as run_command
from clew.config.load import load
from clew.errors import ConfigError, DataError
from clew.link_prediction import fields, packed, triples
from clew.link_prediction.fields import read_coded, stream_coded
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.packed import MANIFEST, pack_graph, read_packed
from clew.link_prediction.sources import BUNDLED, files_of_folder
from clew.link_prediction.triple_files import TRIPLE, GraphFiles, read_graph
from clew.link_prediction.triples import SPLITS

UMLS = files_of_folder(BUNDLED / "umls")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split a small graph into many blocks, which are merged two at a time."""
    monkeypatch.setattr(triples, "BLOCK_ROWS", 700)
    monkeypatch.setattr(fields, "MERGED_BLOCKS", 2)
    monkeypatch.setattr(
        packed,
        "stream_coded",
        lambda paths, layout, write: stream_coded(paths, layout, write, block_bytes=9_000),
    )


def test_streamed_codes_are_those_of_one_reading(tmp_path: Path) -> None:
    paths = [UMLS.train, UMLS.test or UMLS.train]
    parts: list[list[np.ndarray]] = [[], []]
    values = stream_coded(paths, TRIPLE, lambda n, codes: parts[n].append(codes), block_bytes=999)
    tables, expected = read_coded(paths, TRIPLE)
    assert len(parts[0]) > 100
    for found, table in zip(parts, tables, strict=True):
        decoded = values.take(np.concatenate(found).reshape(-1))
        assert decoded.equals(expected.take(table.reshape(-1)))


def test_a_packed_graph_is_that_of_its_files(tmp_path: Path) -> None:
    graph = read_graph("umls", UMLS)
    pack_graph("umls", UMLS, tmp_path / "umls")
    found = read_packed(tmp_path / "umls")
    assert found.fingerprint == graph.fingerprint
    assert (found.name, list(found.entities), list(found.relations)) == (
        graph.name,
        list(graph.entities),
        list(graph.relations),
    )
    assert [found.entities.label(i) for i in range(5)] == [
        graph.entities.label(i) for i in range(5)
    ]
    for split in SPLITS:
        np.testing.assert_array_equal(found.split(split), graph.split(split))
        assert not found.split(split).flags.owndata, "they lie on the disk"
    assert sorted(path.name for path in (tmp_path / "umls").iterdir()) == [
        "entities.parquet",
        MANIFEST,
        "relations.parquet",
        "test.arrow",
        "train.arrow",
        "valid.arrow",
    ]


def test_dictionaries_and_a_missing_split(tmp_path: Path) -> None:
    graph = read_graph("umls", UMLS)
    for vocabulary in (graph.entities, graph.relations):
        lines = (f"{name}\t{i}\n" for i, name in enumerate(reversed(list(vocabulary))))
        (tmp_path / f"{vocabulary.kind}.txt").write_text("".join(lines))
    files = GraphFiles(
        UMLS.train,
        test=UMLS.test,
        entity_to_id=tmp_path / "entity.txt",
        relation_to_id=tmp_path / "relation.txt",
    )
    found = pack_graph("other", files, tmp_path / "packed")
    assert found.fingerprint == read_graph("other", files).fingerprint != graph.fingerprint
    assert len(found.valid) == 0
    (tmp_path / "few.txt").write_text("a\t0\n")
    short = GraphFiles(UMLS.train, entity_to_id=tmp_path / "few.txt")
    with pytest.raises(DataError, match=r"train.txt, line 1: unknown entity 'acquired_abnorm"):
        pack_graph("short", short, tmp_path / "short")
    assert not list(tmp_path.glob("*short*")), "nothing half written"
    with pytest.raises(DataError) as plain:
        read_graph("short", short)
    with pytest.raises(DataError) as streamed:
        pack_graph("short", short, tmp_path / "short")
    assert str(streamed.value) == str(plain.value)


def test_known_answers_of_questions_are_those_of_all(tmp_path: Path) -> None:
    graph = pack_graph("umls", UMLS, tmp_path / "umls")
    whole, few = FilterIndex.from_graph(graph), FilterIndex.of_questions(graph, graph.test)
    both = graph.with_inverses(graph.test)
    for expected, found in zip(
        whole.lookup(both[:, 0], both[:, 1]), few.lookup(both[:, 0], both[:, 1]), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert len(few) < len(whole)
    nothing = FilterIndex.of_questions(graph, graph.test[:0])
    assert len(nothing.lookup(both[:1, 0], both[:1, 1])[0]) == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda folder: (folder / MANIFEST).unlink(),
            "no packed.json; expected a folder written by",
        ),
        (lambda folder: (folder / MANIFEST).write_text("{"), "not written by clew data --pack"),
        (lambda folder: edit(folder, format=2), "format 2, expected 1; pack the data set again"),
        (lambda folder: edit(folder, fingerprint="0" * 16), "was changed since it was packed"),
        (lambda folder: os.truncate(folder / "train.arrow", 900), "cannot be read"),
        (lambda folder: (folder / "test.arrow").unlink(), "cannot be read"),
        (lambda folder: (folder / "relations.parquet").unlink(), "no such file"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, change: Any, complaint: str) -> None:
    folder = tmp_path / "umls"
    pack_graph("umls", UMLS, folder)
    change(folder)
    with pytest.raises(DataError, match=complaint) as error:
        read_packed(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def edit(folder: Path, **values: object) -> None:
    content = json.loads((folder / MANIFEST).read_text()) | values
    (folder / MANIFEST).write_text(json.dumps(content))


KILLED = """
import os, signal, sys
from pathlib import Path
from clew.link_prediction import packed
from clew.link_prediction.sources import BUNDLED, files_of_folder

def write(path, triples):
    if path.name == "test.arrow":
        os.kill(os.getpid(), signal.SIGKILL)
    original(path, triples)

original, packed._write_triples = packed._write_triples, write
packed.pack_graph("umls", files_of_folder(BUNDLED / "umls"), Path(sys.argv[1]))
"""


def test_a_packing_that_was_killed_leaves_no_folder_and_the_next_one_clears_up(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "umls"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.name[:6] for path in tmp_path.iterdir()] == [".umls."], "beside it"
    with pytest.raises(DataError, match=r"no packed\.json"):
        read_packed(folder)
    pack_graph("umls", UMLS, folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_the_command_packs_and_refuses_what_it_cannot_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("packed graph")
    assert run_command(["data", "--name=umls", f"--pack={folder}"]) == 0
    out = capsys.readouterr().out
    assert "triples of train       5,216" in out
    assert f"train on it: clew train data.packed='{tmp_path / folder}'" in out
    assert run_command(["data", "--name=umls", f"--pack={folder}"]) == 2
    assert "already exists; give a new folder, or remove it" in capsys.readouterr().err
    config = load("link_prediction/umls", {"data.packed": str(folder)})
    assert (config.data.name, config.data.packed) == (None, str(folder))  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"data\.test and data\.packed given"):
        load("link_prediction/umls", {"data.packed": str(folder), "data.test": "test.txt"})
    with pytest.raises(ConfigError, match=r"data\.name and data\.packed given"):
        load("link_prediction/umls", {"data.packed": str(folder), "data.name": "umls"})
