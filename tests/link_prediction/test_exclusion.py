"""Facts that are left out of training: which facts, of which data, and refused lists."""

from pathlib import Path

import numpy as np
import pytest

from clew.config.data import TripleData
from clew.config.load import load
from clew.errors import DataError
from clew.link_prediction.sources import leave_out, load_graph
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.reading.disagreements import exclusion_list, wrong_facts_tsv
from clew.runs.reading.reviews import DataOrigin, Fact, Review


def line(graph: KnowledgeGraph, triple: np.ndarray) -> str:
    head, relation, tail = triple.tolist()
    names = graph.entities.name(head), graph.relations.name(relation), graph.entities.name(tail)
    return "\t".join(names) + "\n"


def test_the_named_triples_go_and_all_others_stay(graph: KnowledgeGraph, write) -> None:
    """A slow reference compares each row with each named triple. Some rows occur twice."""
    wrong = graph.train[[3, 50, 50, 199]]
    left = leave_out(graph, write("wrong.tsv", "".join(line(graph, triple) for triple in wrong)))
    rows = {tuple(triple) for triple in wrong.tolist()}
    expected = [triple for triple in graph.train.tolist() if tuple(triple) not in rows]
    assert left.train.tolist() == expected
    assert len(expected) <= 197
    assert left.train.dtype == np.int32
    for part in ("name", "entities", "relations", "valid", "test"):
        assert getattr(left, part) is getattr(graph, part)
    assert left.fingerprint != graph.fingerprint


def test_the_list_of_the_dashboard_is_taken_for_its_own_data(tmp_path: Path) -> None:
    graph = load_graph(TripleData(name="umls"))
    fact = Fact(*line(graph, graph.train[7]).rstrip().split("\t"))
    reviews = [Review("run", fact, "implausible", who, wrong=(fact,)) for who in ("Ada", "Bo")]
    path = tmp_path / "wrong.tsv"
    path.write_text(wrong_facts_tsv(reviews, DataOrigin("umls", graph.fingerprint)), "utf-8")
    config = load("umls", {"data.exclude": str(path)})
    assert isinstance(config.data, TripleData)
    left = load_graph(config.data)
    assert left.train.tolist() == np.delete(graph.train, 7, axis=0).tolist()
    path.write_text(wrong_facts_tsv(reviews, DataOrigin("umls", "0" * 16)), "utf-8")
    with pytest.raises(DataError, match=r"from umls with fingerprint 0{16}, but umls here has"):
        load_graph(config.data)


def test_nasty_names_are_left_out_by_the_list_that_names_them(tmp_path: Path, write) -> None:
    """Two names differ only in an apostrophe, as disarmed names do."""
    facts = [("=a", "-r", "'=a"), ("'=a", "-r", "=a"), ("b", "-r", "=a"), ("b", "r", "''=a")]
    lines = "".join("\t".join(fact) + "\n" for fact in facts)
    graph = load_graph(TripleData(train=str(write("train.txt", lines))))
    for number, fact in enumerate(facts):
        text = exclusion_list(DataOrigin(graph.name, graph.fingerprint), [fact])
        left = leave_out(graph, write("wrong.tsv", text))
        assert left.train.tolist() == np.delete(graph.train, number, axis=0).tolist()


def test_another_graph_does_not_keep_the_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {name: umls, exclude: wrong.tsv}\n", encoding="utf-8")
    for other in ({"data.name": "other"}, {"data.train": "train.txt"}):
        data = load(path, other).data
        assert isinstance(data, TripleData)
        assert data.exclude is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "contains no triple"),
        ("# data set: random\n", "contains no triple"),
        ("e01\tlikes\n", r"line 1: .* has 2 tab-separated columns"),
        ("# data set: random\n\n", r"line 2: '' has 1 tab-separated columns"),
        ("e1\tlikes\te02\n", r"line 1: unknown entity 'e1'.*did you mean"),
        ("e01\tlike\te02\n", r"line 1: unknown relation 'like'.*did you mean 'likes'"),
        ("e19\tlikes\te19\n", r"line 1: .* is not a training triple of random; only these can"),
    ],
)
def test_what_is_refused(graph: KnowledgeGraph, write, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        leave_out(graph, write("wrong.tsv", content))
    assert len(str(caught.value).splitlines()) == 1


def test_the_first_unknown_triple_is_named_by_its_line(graph: KnowledgeGraph, write) -> None:
    known, unknown = line(graph, graph.train[0]), "e19\tlikes\te19\n"
    path = write("wrong.tsv", known + unknown + known + "e18\tlikes\te19\n")
    with pytest.raises(
        DataError, match=r"wrong\.tsv, line 2: 'e19\\tlikes\\te19' is not a training"
    ):
        leave_out(graph, path)


def test_something_must_be_left(graph: KnowledgeGraph, write, tmp_path: Path) -> None:
    path = write("wrong.tsv", "".join(line(graph, triple) for triple in graph.train))
    with pytest.raises(DataError, match="none would be left"):
        leave_out(graph, path)
    with pytest.raises(DataError, match="no such file; check the path"):
        leave_out(graph, tmp_path / "nothing.tsv")
