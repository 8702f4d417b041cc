"""Graphs in other formats: KGX folders to convert, and packed triples."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.data import ImportSettings
from clew.link_prediction.sources import PACKED_SCHEMA as SCHEMA
from clew.link_prediction.sources import pack_graph, read_packed
from clew.link_prediction.triple_files import GraphFiles
from clew.workflows.data import import_data
from tests.attack.cases import attempt, fuzz, replaced
from tests.attack.damage import as_json, damaged_bytes, damaged_json, texts
from tests.attack.material import Material

pytestmark = pytest.mark.slow

NODES: list[dict[str, Any]] = [
    {"id": "CHEBI:1", "name": "aspirin", "category": ["biolink:Drug"], "synonym": ["ASA", "a|b"]},
    {"id": "MONDO:1", "name": "pain", "category": ["biolink:Disease"]},
    {"id": "HP:1", "name": None, "category": []},
]
EDGES: list[dict[str, Any]] = [
    {"subject": "CHEBI:1", "predicate": "biolink:treats", "object": "MONDO:1"},
    {"subject": "CHEBI:1", "predicate": "biolink:affects", "object": "HP:1",
     "object_aspect_qualifier": "activity", "qualified_predicate": "biolink:causes"},
    {"subject": "HP:1", "predicate": "biolink:related_to", "object": "MONDO:1"},
]  # fmt: skip


def lines(draw: DrawFn, records: list[dict[str, Any]]) -> bytes:
    """Return JSON Lines with one damaged line."""
    place = draw(st.integers(0, len(records) - 1))
    written = [
        draw(damaged_json(record)) if number == place else as_json(record)
        for number, record in enumerate(records)
    ]
    return b"\n".join(written) + b"\n"


def table(draw: DrawFn, records: list[dict[str, Any]]) -> bytes:
    """Return a table with damage to its bytes, or with other values."""
    if is_other := draw(st.booleans()):
        others = st.dictionaries(st.sampled_from([*EDGES[1], *NODES[0]]), texts, max_size=2)
        records = [record | draw(others) for record in records]
    columns = list(dict.fromkeys(key for record in records for key in record))
    rows = [columns, *([_cell(record.get(column)) for column in columns] for record in records)]
    content = "".join("\t".join(row) + "\n" for row in rows).encode("utf-8", "surrogatepass")
    return content if is_other else draw(damaged_bytes(content))


def _cell(value: object) -> str:
    return "|".join(map(str, value)) if isinstance(value, list) else str(value or "")


@pytest.mark.parametrize(("form", "write"), [("jsonl", lines), ("tsv", table)])
def test_kgx_folders(form: str, write: Callable[..., bytes], place: Path) -> None:
    source, converted = place / "kgx", place / "converted"

    def case(draw: DrawFn) -> None:
        for folder in (source, converted):
            shutil.rmtree(folder, ignore_errors=True)
        source.mkdir()
        suffix = draw(st.sampled_from(["", ".gz"]))
        for name, records in (("nodes", NODES), ("edges", EDGES)):
            content = write(draw, records)
            packed = gzip.compress(content, 1) if suffix else content
            (source / f"{name}.{form}{suffix}").write_bytes(packed)
        settings = ImportSettings(
            qualifiers=draw(st.booleans()), clean=draw(st.booleans()), valid_fraction=0.4
        )
        if attempt(lambda: import_data([source], settings, converted)):
            assert not converted.exists()

    fuzz(0.02, case)


@pytest.fixture(scope="module")
def packed(material: Material, place: Path) -> Path:
    files = {split: material.graph / f"{split}.txt" for split in ("train", "valid", "test")}
    pack_graph("attacked", GraphFiles(**files), place / "packed")
    return place / "packed"


def test_packed_triples(packed: Path) -> None:
    """Bytes that were damaged, and columns that were changed, in a file that is otherwise whole."""
    whole = packed.read_bytes()
    table = pa.ipc.open_file(pa.BufferReader(whole)).read_all()
    lists = SCHEMA.field("train").type

    def changed(draw: DrawFn) -> bytes:
        columns = [
            pa.array([[[0, 0, 1], [1, 0, 2]]], lists), pa.array([[[0, 0, 2**30]]], lists),
            pa.array([[[0, -1, 1]]], lists), pa.array([[[0, 0, 1], None]], lists),
            pa.array([[[0, None, 1]]], lists), pa.array([None], lists), pa.array([[]], lists),
            pa.array([[[0, 0]]], pa.large_list(pa.list_(pa.int32()))), pa.array([1]),
            pa.array(["a"]),
        ]  # fmt: skip
        column = draw(st.sampled_from(columns))
        place = draw(st.integers(0, table.num_columns - 1))
        name = draw(st.sampled_from([table.schema.names[place], "other"]))
        other = table.set_column(place, name, column)
        written = pa.BufferOutputStream()
        with pa.ipc.new_file(written, other.schema) as writer:
            for _ in range(draw(st.integers(0, 2))):
                writer.write_table(other)
        return bytes(written.getvalue().to_pybytes())

    def case(draw: DrawFn) -> None:
        damaged = draw(damaged_bytes(whole, most=2)) if draw(st.booleans()) else changed(draw)
        with replaced(packed, damaged):
            attempt(lambda: read_packed(packed))

    fuzz(0.02, case)
