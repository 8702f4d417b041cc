"""Graphs from files: ids, order, fingerprints, and refused files."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clew.errors import DataError
from clew.link_prediction.leakage import find_leakage
from clew.link_prediction.sources import describe
from clew.link_prediction.triple_files import GraphFiles, read_graph, read_triples
from clew.link_prediction.triples import KnowledgeGraph, add_inverses

TRAIN = "b\tlikes\ta\na\tknows\tc\nb\tlikes\tc\n"
TEST = "a\tlikes\tz\n"
ENTITIES = "z\t0\nc\t1\nb\t2\na\t3\nunused\t4\n"
RELATIONS = "likes\t0\nknows\t1\n"


@pytest.fixture
def files(write) -> GraphFiles:
    return GraphFiles(write("train.txt", TRAIN), test=write("test.txt", TEST))


@pytest.fixture
def with_dictionaries(write, files: GraphFiles) -> GraphFiles:
    return GraphFiles(
        files.train,
        test=files.test,
        entity_to_id=write("entities.txt", ENTITIES),
        relation_to_id=write("relations.txt", RELATIONS),
    )


def as_names(graph: KnowledgeGraph, triples: np.ndarray) -> list[tuple[str, str, str]]:
    e, r = graph.entities, graph.relations
    return [(e.name(head), r.name(relation), e.name(tail)) for head, relation, tail in triples]


def test_ids_are_places_of_sorted_names(files: GraphFiles) -> None:
    graph = read_graph("small", files)
    assert list(graph.entities) == ["a", "b", "c", "z"]
    assert list(graph.relations) == ["knows", "likes"]
    assert graph.train.tolist() == [[1, 1, 0], [0, 0, 2], [1, 1, 2]]
    assert graph.test.tolist() == [[0, 1, 3]]
    assert graph.valid.shape == (0, 3)
    assert {t.dtype for t in (graph.train, graph.valid, graph.test)} == {np.dtype(np.int32)}
    assert (graph.num_entities, graph.num_relations) == (4, 2)
    assert describe(graph)["num_unseen_entities"] == 1


def test_what_is_held_out_and_never_trained_is_counted(files: GraphFiles, write) -> None:
    valid = write("valid.txt", "a\tmeets\tb\nb\tmeets\tz\nb\tknows\ta\n")
    summary = describe(read_graph("small", replace(files, valid=valid)))
    assert (summary["num_unseen_entities"], summary["num_unseen_relations"]) == (1, 1)
    assert summary["num_untrained"] == 3
    assert summary["num_unused_entities"] == 0


def test_dictionaries_give_the_ids(with_dictionaries: GraphFiles) -> None:
    graph = read_graph("small", with_dictionaries)
    assert list(graph.entities) == ["z", "c", "b", "a", "unused"]
    assert graph.train.tolist() == [[2, 0, 3], [3, 1, 1], [2, 0, 1]]
    assert describe(graph)["num_unseen_entities"] == 1


def test_names_and_ids_with_dictionaries_are_the_same_graph(
    with_dictionaries: GraphFiles, write
) -> None:
    numbered = GraphFiles(
        write("n_train.txt", "2\t0\t3\n3\t1\t1\n2\t0\t1\n"),
        test=write("n_test.txt", "3\t0\t0\n"),
        entity_to_id=with_dictionaries.entity_to_id,
        relation_to_id=with_dictionaries.relation_to_id,
    )
    by_name, by_id = read_graph("a", with_dictionaries), read_graph("b", numbered)
    assert by_id.fingerprint == by_name.fingerprint
    assert np.array_equal(by_id.train, by_name.train)


field = st.text(st.characters(blacklist_categories=["C", "Z"]), min_size=1, max_size=3)
rows = st.lists(st.tuples(field, field, field), min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(train=rows, test=rows)
@example(train=[("0", "0", "0")], test=[("0", "00", "0")])
def test_names_come_back_in_the_order_of_the_lines(tmp_path: Path, train: list, test: list) -> None:
    paths = {"train": tmp_path / "train.txt", "test": tmp_path / "test.txt"}
    for (_, path), triples in zip(paths.items(), (train, test), strict=True):
        path.write_text("".join("\t".join(row) + "\n" for row in triples), encoding="utf-8")
    if train == test:
        with pytest.raises(DataError, match=r"test\.txt: .*train\.txt"):
            read_graph("random", GraphFiles(**paths))
        return
    graph = read_graph("random", GraphFiles(**paths))
    assert as_names(graph, graph.train) == train
    assert as_names(graph, graph.test) == test
    assert list(graph.entities) == sorted({e for h, _, t in train + test for e in (h, t)})
    assert list(graph.relations) == sorted({r for _, r, _ in train + test})
    assert find_leakage(graph).num_repeated == len(train + test) - len({*train, *test})


def test_fingerprint_is_of_the_content(files: GraphFiles, write) -> None:
    original = read_graph("small", files).fingerprint
    assert len(original) == 16
    assert set(original) <= set("0123456789abcdef")
    for name, content in {
        "crlf.txt": TRAIN.replace("\n", "\r\n").encode(),
        "train.txt.gz": gzip.compress(TRAIN.encode()),
        "train.txt.zst": zstandard.compress(TRAIN.encode()),
    }.items():
        same = GraphFiles(write(name, content), test=files.test)
        assert read_graph("other name", same).fingerprint == original
    lines = TRAIN.splitlines(keepends=True)
    for changed in ("".join(reversed(lines)), TRAIN + lines[0], TRAIN.replace("knows", "knew")):
        other = GraphFiles(write("changed.txt", changed), test=files.test)
        assert read_graph("small", other).fingerprint != original
    assert read_graph("small", GraphFiles(files.train, valid=files.test)).fingerprint != original


def test_labels_do_not_change_the_fingerprint(files: GraphFiles, write) -> None:
    labels = GraphFiles(
        files.train,
        test=files.test,
        entity_labels=write("names.tsv", "a\tAnna\tperson\nb\tBen\tperson\n"),
        relation_labels=write("edges.json", '{"likes": "is fond of"}'),
    )
    plain, labelled = read_graph("small", files), read_graph("small", labels)
    assert labelled.fingerprint == plain.fingerprint
    assert labelled.entities.label(0) == "Anna"
    assert [labelled.relations.label(r) for r in range(2)] == ["knows", "is fond of"]


def test_unknown_name_is_named_with_its_line_and_near_matches(write, with_dictionaries) -> None:
    graph = read_graph("small", with_dictionaries)
    path = write("more.txt", "a\tlikes\tb\na\tliks\tz\n")
    with pytest.raises(DataError) as caught:
        read_triples(path, graph.entities, graph.relations)
    assert str(caught.value) == (
        f"{path}, line 2: unknown relation 'liks'; it is not one of the 2 relations; did you mean "
        "'likes'?"
    )


def test_first_unknown_name_over_several_files_is_reported(write, with_dictionaries) -> None:
    bad = GraphFiles(
        with_dictionaries.train,
        test=write("bad.txt", TEST + "a\tlikes\tnobody\n"),
        entity_to_id=with_dictionaries.entity_to_id,
    )
    with pytest.raises(DataError, match=r"bad\.txt, line 2: .*'nobody'"):
        read_graph("small", bad)


def test_numbers_without_a_dictionary_are_names(write) -> None:
    graph = read_graph("numbers", GraphFiles(write("train.txt", "10\t0\t9\n9\t0\t8\n")))
    assert list(graph.entities) == ["10", "8", "9"]
    named = read_graph("small", GraphFiles(write("t.txt", TRAIN)))
    path = write("by_id.txt", "0\tlikes\t1\n")
    with pytest.raises(DataError, match=r"line 1: .*'0'.*dictionary"):
        read_triples(path, named.entities, named.relations)


def test_ids_beyond_the_dictionary_are_unknown(write, with_dictionaries: GraphFiles) -> None:
    graph = read_graph("small", with_dictionaries)
    with pytest.raises(DataError, match=r"line 1: .*'5'"):
        read_triples(write("t.txt", "5\t0\t1\n"), graph.entities, graph.relations)
    triples = read_triples(write("u.txt", "4\t0\ta\n"), graph.entities, graph.relations)
    assert triples.tolist() == [[4, 0, 3]]


@pytest.mark.parametrize("name", ["train.txt", "./train.txt", "link.txt"])
def test_one_file_for_two_splits_is_refused(files: GraphFiles, tmp_path: Path, name: str) -> None:
    (tmp_path / "link.txt").symlink_to(files.train)
    with pytest.raises(DataError, match=rf"{re.escape(Path(name).name)}: .*train\.txt"):
        read_graph("small", GraphFiles(files.train, test=tmp_path / name))


def test_one_content_for_two_splits_is_refused(files: GraphFiles, write) -> None:
    copy = write("copy.txt.gz", gzip.compress(TRAIN.encode()))
    with pytest.raises(DataError, match=r"copy\.txt\.gz: .*train\.txt"):
        read_graph("small", GraphFiles(files.train, valid=copy))


def test_inverses_follow_in_the_same_order(graph: KnowledgeGraph) -> None:
    rows = graph.with_inverses(graph.train)
    count = len(graph.train)
    assert (rows.dtype, rows.shape) == (np.int32, (2 * count, 3))
    assert np.array_equal(rows[:count], graph.train)
    for triple, (head, relation, tail) in zip(graph.train, rows[count:], strict=True):
        assert (tail, relation - graph.num_relations, head) == tuple(triple)
    assert add_inverses(graph.train[:0], 3).shape == (0, 3)
