"""Packed triples equal the triples of the files, and a file is complete or does not exist."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clew.__main__ import run as run_command
from clew.config.load import load
from clew.errors import ConfigError, DataError
from clew.link_prediction import tables, triple_files, triples
from clew.link_prediction.plausibility import report
from clew.link_prediction.sources import BUNDLED, files_of_folder, pack_graph, read_packed
from clew.link_prediction.sources import PACKED_KEY as KEY
from clew.link_prediction.tables import TRIPLE, _coded_blocks, read_coded
from clew.link_prediction.triple_files import GraphFiles, read_graph
from clew.link_prediction.triples import SPLITS, FilterIndex

UMLS = files_of_folder(BUNDLED / "umls")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split a small graph into many blocks, which are merged two at a time."""
    monkeypatch.setattr(triples, "BLOCK_ROWS", 700)
    monkeypatch.setattr(tables, "MERGED_BLOCKS", 2)
    monkeypatch.setattr(triple_files, "read_coded", partial(read_coded, block_bytes=9_000))


def test_streamed_codes_are_those_of_one_reading(tmp_path: Path) -> None:
    paths = [UMLS.train, UMLS.test or UMLS.train]
    assert len(list(_coded_blocks(paths, TRIPLE, 999))) > 100
    streamed, values = read_coded(paths, TRIPLE, on_disk=tmp_path, block_bytes=999)
    tables_of_values, expected = read_coded(paths, TRIPLE)
    for found, table in zip(streamed, tables_of_values, strict=True):
        assert isinstance(found, np.memmap)
        assert values.take(found.reshape(-1)).equals(expected.take(table.reshape(-1)))


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
    assert list(tmp_path.iterdir()) == [tmp_path / "umls"]
    assert report(found) == report(graph)


def test_kinds_and_synonyms_are_packed_too(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\tlikes\tb\n")
    (tmp_path / "names.tsv").write_text("a\tAda\tPerson\tLovelace|Byron\nb\tBob\t\t\n")
    files = GraphFiles(tmp_path / "train.txt", entity_labels=tmp_path / "names.tsv")
    found = pack_graph("g", files, tmp_path / "packed").entities
    assert [found.label(id) for id in range(2)] == ["Ada", "Bob"]
    assert found.category_array.to_pylist() == ["Person", None]
    assert found.synonym_array.to_pylist() == ["Lovelace|Byron", None]


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


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a packed file again after a change."""
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    changed = change(table)
    path.unlink()  # it is mapped
    with pa.ipc.new_file(str(path), changed.schema) as writer:
        writer.write_table(changed)


def said(**values: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        content = json.loads(table.schema.metadata[KEY]) | values
        return table.replace_schema_metadata({KEY: json.dumps(content)})

    return change


def no_relations(table: pa.Table) -> pa.Table:
    empty = pa.array([[]], table.schema.field("relations").type)
    return table.set_column(4, table.schema.field("relations"), empty)


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_text("{"),
    lambda path: os.truncate(path, 9_000),
    lambda path: path.unlink(),
    lambda path: rewritten(path, said(format=3)),
    lambda path: rewritten(path, said(format="x")),
    lambda path: rewritten(path, said(fingerprint="0" * 16)),
    lambda path: rewritten(path, no_relations),
    lambda path: rewritten(path, lambda table: table.drop_columns(["test"])),
    lambda path: rewritten(path, lambda table: table.replace_schema_metadata(None)),
    lambda path: rewritten(path, lambda table: table.slice(0, 0)),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path = tmp_path / "umls"
    pack_graph("umls", UMLS, path)
    damage(path)
    with pytest.raises(DataError) as error:
        read_packed(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from clew.link_prediction import sources as packed
from clew.link_prediction.sources import BUNDLED, files_of_folder

def write(path, graph):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

packed._write = write
packed.pack_graph("umls", files_of_folder(BUNDLED / "umls"), Path(sys.argv[1]))
"""


def test_a_packing_that_was_killed_leaves_no_file_and_the_next_one_clears_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "umls"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [found.name[:6] for found in tmp_path.iterdir()] == [".umls."], "beside it"
    pack_graph("umls", UMLS, path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_packs_and_refuses_what_it_cannot_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("packed graph.arrow")
    assert run_command(["data", "--name=umls", f"--pack={folder}"]) == 0
    out = capsys.readouterr().out
    assert "triples of train       5,216" in out
    assert f"train on it: clew train data.packed='{tmp_path / folder}'" in out
    assert run_command(["data", "--name=umls", f"--pack={folder}"]) == 2
    assert "already exists" in capsys.readouterr().err
    config = load("link_prediction/umls", {"data.packed": str(folder)})
    assert (config.data.name, config.data.packed) == (None, str(folder))  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"data\.test is given, but data\.packed"):
        load("link_prediction/umls", {"data.packed": str(folder), "data.test": "test.txt"})
    with pytest.raises(ConfigError, match=r"data\.name and data\.packed given"):
        load("link_prediction/umls", {"data.packed": str(folder), "data.name": "umls"})


def test_denied_facts_are_not_packed(tmp_path: Path) -> None:
    train = tmp_path / "train.txt"
    train.write_text("a\tr\tb\nc\tNOT|r\td\n", encoding="utf-8")
    with pytest.raises(DataError):
        pack_graph("denied", GraphFiles(train), tmp_path / "packed")
    assert list(tmp_path.iterdir()) == [train]
