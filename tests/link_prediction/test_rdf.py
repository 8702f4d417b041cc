"""What OWL denies in RDF is no fact."""

from pathlib import Path

import pytest

from clew.config.data import ImportSettings
from clew.link_prediction.imports import Imported, import_graph

OWL = "http://www.w3.org/2002/07/owl#"
TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"


def statement(*names: str) -> str:
    return " ".join(n if n.startswith(("_:", '"')) else f"<{n}>" for n in names) + " .\n"


def denial(node: str, head: str, relation: str, tail: str) -> str:
    target = "targetValue" if tail.startswith('"') else "targetIndividual"
    return "".join(
        [
            statement(node, TYPE, f"{OWL}NegativePropertyAssertion"),
            statement(node, f"{OWL}{target}", tail),
            statement(node, f"{OWL}sourceIndividual", head),
            statement(node, f"{OWL}assertionProperty", relation),
        ]
    )


def read(path: Path, text: str, **settings: object) -> Imported:
    path.write_text(text)
    settings |= {"valid_fraction": 0, "test_fraction": 0}
    return import_graph("g", [path], ImportSettings(**settings))


FACT = statement("x:a", "x:p", "x:b")
DENIALS = denial("_:n", "x:a", "x:q", "x:c") + denial("x:m", "x:b", "x:p", "x:d")


@pytest.mark.parametrize("text", [FACT + DENIALS, DENIALS + FACT])
def test_what_is_denied_is_dropped_or_a_relation_of_its_own(tmp_path: Path, text: str) -> None:
    found = read(tmp_path / "a.nt", text)
    assert list(found.graph.entities) == ["x:a", "x:b"]
    assert list(found.graph.relations) == ["x:p"]
    assert found.counts["denied"] == 2
    graph = read(tmp_path / "a.nt", text, negated="relation").graph
    assert list(graph.entities) == ["x:a", "x:b", "x:c", "x:d"]
    assert list(graph.relations) == ["x:p", "x:p;negated=true", "x:q;negated=true"]
    assert len(graph.train) == 3


def test_a_denied_value_is_no_fact(tmp_path: Path) -> None:
    found = read(tmp_path / "a.nt", FACT + denial("_:n", "x:a", "x:age", '"7"'))
    assert list(found.graph.entities) == ["x:a", "x:b"]
    assert len(found.graph.train) == 1
