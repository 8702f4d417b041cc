"""Columns that `--columns` does not choose keep what their names say, and nothing goes unsaid."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from clew.config.data import ImportSettings
from clew.errors import DataError
from clew.link_prediction.imports import Imported, import_graph

FACTS = [(f"e{i % 7}", f"r{i % 3}", f"e{7 + i % 11}") for i in range(24)]
HEADER = ("drug", "relation", "disease")


def read(
    place: Path, rows: Sequence[tuple[str, ...]], columns: str, *, qualifiers: bool = False
) -> Imported:
    place.write_text("".join("\t".join(row) + "\n" for row in rows))
    return import_graph("g", [place], ImportSettings(columns=columns, qualifiers=qualifiers))


def test_a_column_of_relations_that_is_not_chosen_is_one(tmp_path: Path) -> None:
    ends = "head=drug,tail=disease"
    found = read(tmp_path / "kg.tsv", [HEADER, *FACTS], ends)
    assert list(found.graph.relations) == ["r0", "r1", "r2"]
    found = read(tmp_path / "kg.tsv", [HEADER, *FACTS], f"{ends},unused=relation")
    assert list(found.graph.relations) == ["kg"]


def test_one_that_may_deny_is_asked_for(tmp_path: Path) -> None:
    header = ("drug", "label", "disease")
    rows = [header, *((h, str(i % 2), t) for i, (h, _, t) in enumerate(FACTS))]
    with pytest.raises(DataError, match="stated=label"):
        read(tmp_path / "kg.tsv", rows, "head=drug,tail=disease")


def test_columns_without_names_that_are_not_used_are_named(tmp_path: Path) -> None:
    found = read(tmp_path / "kg.tsv", [(h, t, r) for h, r, t in FACTS], "head,tail")
    assert list(found.graph.relations) == ["kg"]
    assert "column 3 (24)" in found.notes["other columns"]


def test_an_unused_qualifier_is_no_part_of_the_relation(tmp_path: Path) -> None:
    rows = [("head", "relation", "tail", "a_qualifier"), *((*row, "x") for row in FACTS)]
    for columns, count in (("", 0), ("unused=a_qualifier", 3)):
        found = read(tmp_path / "kg.tsv", rows, columns, qualifiers=True)
        assert len({"r0", "r1", "r2"} & {*found.graph.relations}) == count


def test_a_role_is_chosen_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="head"):
        read(tmp_path / "kg.tsv", FACTS, "head=1,head=2,tail=3")


@pytest.mark.parametrize("names", ["startNode relationType endNode", "From-ID Edge.Type To-ID"])
def test_names_are_compared_by_letters_and_digits(tmp_path: Path, names: str) -> None:
    graph = read(tmp_path / "kg.tsv", [tuple(names.split()), *FACTS], "").graph
    assert list(graph.relations) == ["r0", "r1", "r2"]
