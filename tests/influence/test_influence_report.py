import csv
import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from clew.api.explanations import triple_table
from clew.influence.link_prediction import report as report_module
from clew.influence.link_prediction.paths import EntityPath
from clew.influence.link_prediction.report import (
    Findings,
    ReportSource,
    ScoredPaths,
    build_report,
    write_report,
)
from clew.influence.scores import Explanation, Scored
from clew.link_prediction.leakage import RelationPair
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_forms import CSV_COLUMNS
from clew.runs.influence_report import (
    CONVE_PARTS,
    PathRecord,
    PathStep,
    Term,
    TripleRecord,
    read_influence_json,
)
from clew.runs.reading.facts import answer, evidence, paths_of, untrained_sentence
from clew.runs.reading.reports import ReportFiles, read_facts, read_head
from clew.spreadsheets import restored
from clew.training.manifest import CheckpointRecord
from clew.workflows.explaining.result_files import Outcome, OutputFolder
from clew.workflows.explaining.tracin import TraceResult

NAMES = ["plain", "tab\there", "comma, here", 'quote " here', "=1+1", "-minus", "line\nbreak", "ü"]
LABELS = [None, "tab\tlabel", "a, b", '"quoted"', "=cmd()", "@label", "two\nlines", ""]


def graph() -> KnowledgeGraph:
    entities = Vocabulary.from_names("entity", NAMES).with_labels(pa.array(LABELS, pa.string()))
    relations = Vocabulary.from_names("relation", ["r", "+s"])
    train = np.array([[i, i % 2, (i + 1) % 8] for i in range(8)], np.int32)
    return KnowledgeGraph("g", entities, relations, train, no_triples(), no_triples())


def scored(train: np.ndarray, influence: np.ndarray, cosine: bool = True) -> Scored:
    parts = np.stack([influence * (i + 1) / 21 for i in range(6)]).astype(np.float32)
    return Scored(
        train,
        influence,
        np.stack([influence * 0.25, influence * 0.75]).astype(np.float32),
        parts,
        (influence / 10).astype(np.float32) if cosine else None,
    )


def findings(complete: bool) -> Findings:
    if complete:
        train = np.array([[3, 1, 0, 2], [5, 6, 7, -1]])
        values = np.array([[2.0, 0.5, -1e-9, -3.0], [0.25, -1.0, -2.0, 0.0]])
        lists = (scored(train, values),) * 2
    else:
        lists = (
            scored(np.array([[3, 1], [5, -1]]), np.array([[2.0, 0.5], [0.25, 0.0]])),
            scored(np.array([[2, 0], [7, 6]]), np.array([[-3.0, -1e-9], [-2.0, -1.0]])),
        )
    explanation = Explanation(*lists, complete, np.array([4.0, 5.0]), CONVE_PARTS)
    return Findings(
        tests=np.array([[0, 1, 4], [7, 0, 6]], np.int32),
        explanations=[explanation],
        scores=np.array([1.5, -2.5]),
        ranks=np.array([1.0, 2.5]),
        candidates=np.array([4 if complete else 8, 3 if complete else 8]),
        seconds=0.5,
    )


def source(tmp_path) -> ReportSource:
    records = [CheckpointRecord(10, 1, 0.1, tmp_path), CheckpointRecord(20, 2, 0.2, tmp_path)]
    return ReportSource(graph(), "link_prediction", "run", records, {"top_k": 2}, "cpu")


@pytest.mark.parametrize("complete", [True, False])
def test_three_files_say_the_same(tmp_path, complete):
    written = write_report(tmp_path, source(tmp_path), findings(complete))
    report = read_influence_json(tmp_path / "influence.json")
    assert report == written
    table = pq.read_table(tmp_path / "influence.parquet").to_pylist()
    text = (tmp_path / "influence.csv").read_bytes().decode()
    assert text.startswith(",".join(CSV_COLUMNS) + "\n")
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(lines) == len(table) == 7
    for line, row in zip(lines, table, strict=True):
        assert float(line["TracInScore"]) == row["tracin_score"]
        for column in CSV_COLUMNS[:-1]:
            snake = column.replace("Test", "test_").replace("Train", "train_").lower()
            assert restored(line[column]) == row[snake]
        test = report.tests[row["test_index"]]
        entries = test.proponents if row["tracin_score"] > 0 else test.opponents
        (entry,) = [e for e in entries if e.train_index == row["train_index"]]
        assert entry.influence == row["tracin_score"]
        assert entry.train.head.id == row["train_head"] == NAMES[row["train_head_id"]]
        assert entry.by_part["dense"] == pytest.approx(row["part_dense"], rel=1e-6)
        assert entry.by_checkpoint[1] == pytest.approx(row["checkpoint_20"], rel=1e-6)
        assert entry.cosine == pytest.approx(row["cosine"], rel=1e-6)


def test_an_end_that_no_training_fact_mentions_is_told(tmp_path):
    every = write_report(tmp_path, source(tmp_path), findings(complete=True))
    assert [test.untrained for test in every.tests] == [None, None]
    rest = graph().train[1:7]  # none of them has `plain`
    asked = replace(findings(complete=True), tests=np.array([[0, 1, 4], [6, 0, 0]], np.int32))
    fewer = replace(source(tmp_path), graph=replace(graph(), train=rest[:6]))
    facts = scored(np.array([[3, 1, 0, 2], [5, 4, 3, -1]]), np.array([[2.0, 1, 1, 1]] * 2))
    explanation = replace(asked.explanations[0], proponents=facts, opponents=facts)
    report = write_report(tmp_path, fewer, replace(asked, explanations=[explanation]))
    assert [test.untrained for test in report.tests] == [(NAMES[0],), (NAMES[0],)]
    assert read_influence_json(tmp_path / "influence.json") == report
    head = read_head(ReportFiles(tmp_path / "influence.json"))
    said = untrained_sentence([NAMES[0]])
    assert answer(head.tests.loc[1], head.settings).endswith(said)
    assert said in TraceResult(report, None, None).table()


def test_paths_are_kept_with_the_scores_of_their_facts(tmp_path):
    train = graph().train
    path = EntityPath((0, 1, 4), 2.0, ((3, 1), (2,)))
    every = replace(
        findings(complete=False),
        paths=[ScoredPaths([path], {3: 2.0, 1: 0.5}), ScoredPaths([], {})],
    )
    write_report(tmp_path, source(tmp_path), every)
    first, second = read_influence_json(tmp_path / "influence.json").tests
    assert second.paths is not None
    assert second.paths.paths == ()
    assert first.paths is not None
    (found,) = first.paths.paths
    assert [[step.train_index for step in facts] for facts in found.steps] == [[3, 1], [2]]
    assert [step.influence for step in found.steps[0]] == [2.0, 0.5]
    assert found.steps[1][0].influence is None
    assert found.steps[0][0].train.head.id == NAMES[train[3, 0]]
    assert [scored.paths for scored in every.only(1).paths] == [[]]
    unsearched = write_report(tmp_path, source(tmp_path), findings(complete=False))
    assert unsearched.tests[0].paths is None


@pytest.mark.parametrize("number", [10, 25])
def test_a_step_of_many_facts_keeps_the_strongest_and_their_number(tmp_path, number):
    """Facts 0, 1, ... between A and M have the scores 0, -1, 2, ...; then M-links-B has 0.5."""
    between = [(0, relation, 1) for relation in range(number)]
    relations = Vocabulary.from_names("relation", [*(f"rel{i}" for i in range(number)), "links"])
    train = np.array([*between, (1, number, 2)], np.int32)
    path = EntityPath((0, 1, 2), 2.0, (tuple(range(number)), (number,)))
    scores = {i: (-1.0) ** i * i for i in range(number)} | {number: 0.5}
    given = replace(findings(complete=False), paths=[ScoredPaths([path], scores)] * 2)
    of_graph = replace(source(tmp_path), graph=replace(graph(), relations=relations, train=train))
    write_report(tmp_path, of_graph, given)
    searched = read_influence_json(tmp_path / "influence.json").tests[0].paths
    (found,) = searched.paths
    kept = [step.train_index for step in found.steps[0]]
    assert kept == list(range(number - 1, max(number - 21, -1), -1))
    assert found.counts == (number, 1)
    assert found.chain(found.steps[0][0].train.head) == (
        f"{NAMES[0]} —rel{number - 1} (+{number - 1})→ {LABELS[1]} —links→ {LABELS[2]}"
    )
    assert f"→ {LABELS[1]} (" in found.chain(found.steps[0][0].train.head, {LABELS[1]})
    (told,) = paths_of(searched).found
    assert told.influence == sum(scores[fact] for fact in kept) + 0.5
    assert told.of == {10: "", 25: " of 21 of 26 facts"}[number]
    assert told.steps[0].endswith(f" and {number - 4} more")
    assert [told.steps[0].count(f"rel{number - place} ") for place in (1, 4, 5)] == [1, 1, 0]
    assert len(told.told) == 5


@pytest.mark.parametrize("counts", [(0, 1), (1,), (1, 1, 1)])
def test_counts_that_contradict_a_path_are_refused(counts):
    fact = PathStep(TripleRecord(Term("a", "a"), Term("r", "r"), Term("b", "b")), 0)
    PathRecord(1.0, ((fact,), (fact,)), (1, 2))
    with pytest.raises(ValidationError):
        PathRecord(1.0, ((fact,), (fact,)), counts)
    with pytest.raises(ValidationError):
        PathRecord(1.0, ((fact,), ()))


def test_between_an_entity_and_itself_no_path_is_searched(tmp_path):
    loop = np.array([[1, 0, 1], [0, 0, 2]], np.int32)
    none = [ScoredPaths([], {}), ScoredPaths([], {})]
    given = replace(findings(complete=False), tests=loop, paths=none)
    first, second = build_report(source(tmp_path), given).tests
    assert first.paths.sentence == "Paths are between two different entities, so none was searched."
    assert second.paths.sentence.startswith("No path of up to 4 training facts connects")


def test_inverses_and_duplicates_of_the_test_triple_are_marked_everywhere(tmp_path):
    pairs = [RelationPair("symmetric", 0, 0, 10, 1.0), RelationPair("duplicate", 0, 1, 10, 1.0)]
    found = replace(findings(complete=True), tests=np.array([[0, 1, 4], [7, 1, 6]], np.int32))
    facts = replace(
        graph(), train=np.array([*graph().train[:5], [7, 0, 6], [6, 0, 7], [6, 1, 7]], np.int32)
    )
    marked = {5: "duplicate"}  # 6 and 7 would need another pair
    explained = replace(source(tmp_path), graph=facts, pairs=pairs)
    report = write_report(tmp_path, explained, found)
    second = report.tests[1]
    entries = (*second.proponents, *second.opponents)
    assert {e.train_index: e.counterpart for e in entries if e.counterpart} == marked
    assert not any(e.counterpart for e in report.tests[0].proponents)
    for kind in ("parquet", "json"):
        rows = read_facts(ReportFiles(**{kind: tmp_path / f"influence.{kind}"}), 1)
        assert list(rows["counterpart"]) == ["duplicate", "", ""]
        test = read_head(ReportFiles(json=tmp_path / "influence.json")).tests.loc[1]
        assert "duplicate" in evidence(test, rows, paths_of(None))
    table = triple_table(report)
    assert list(table.loc[table["counterpart"] != "", "train_index"]) == [5]
    assert "duplicate" in TraceResult(report, None, None).table()
    lines = list(csv.DictReader((tmp_path / "influence.csv").read_text().splitlines()))
    assert list(lines[0])[-2:] == [CSV_COLUMNS[-1], "Counterpart"]

    # A batch joins a table that has the column to one that needs none.
    batch = OutputFolder(tmp_path / "batch")
    batch.prepare({})
    for index in range(2):
        batch.write(Outcome(index, "", "done"), explained, found.only(index))
    joined = batch.join(replace(report, tests=())) / "influence.parquet"
    for index in range(2):
        one, whole = (
            read_facts(ReportFiles(parquet=path), index)
            for path in (joined, tmp_path / "influence.parquet")
        )
        pd.testing.assert_frame_equal(one, whole)


def test_order_ranks_and_truncation(tmp_path):
    report = write_report(tmp_path, source(tmp_path), findings(complete=False))
    first, second = report.tests
    assert [e.train_index for e in first.proponents] == [3, 1]
    assert [e.train_index for e in first.opponents] == [2, 0]
    assert [e.rank for e in first.opponents] == [1, 2]
    assert [len(second.proponents), len(second.opponents)] == [1, 2]
    assert first.truncated
    assert second.truncated
    table = pq.read_table(tmp_path / "influence.parquet")
    assert table["rank"].to_pylist() == [1, 2, 7, 8, 1, 7, 8]
    whole = build_report(source(tmp_path), findings(complete=True))
    assert not any(test.truncated for test in whole.tests)
    assert [e.train_index for e in whole.tests[0].opponents] == [2, 0]


def test_names_and_labels_that_look_like_formulas_are_disarmed_and_read_back(tmp_path):
    write_report(tmp_path, source(tmp_path), findings(complete=False))
    text = (tmp_path / "influence.csv").read_text()
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    assert lines[0]["TestTail"] == "'=1+1"
    assert lines[0]["TestTail_label"] == "'=cmd()"
    assert lines[0]["TestRel_label"] == "'+s"
    assert "tab\there" in {line["TrainHead"] for line in lines}
    exact = read_facts(ReportFiles(parquet=tmp_path / "influence.parquet"), 0)
    first = [line for line in lines if line["TestHead"] == lines[0]["TestHead"]]
    for written, column in (("TrainHead", "head_id"), ("TrainRel", "relation_id")):
        assert sorted(restored(line[written]) for line in first) == sorted(exact[column])
    assert restored(lines[0]["TestTail"]) == "=1+1"


def test_json_keeps_the_strongest_where_all_would_be_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(report_module, "JSON_ENTRIES", 4)
    report = build_report(source(tmp_path), findings(complete=True))
    assert [e.train_index for e in report.tests[0].proponents] == [3]
    assert [e.train_index for e in report.tests[0].opponents] == [2]
    assert all(test.truncated for test in report.tests)


def test_without_details_and_cosine(tmp_path):
    bare = Scored(
        np.array([[1, 2]]), np.array([[1.0, -1.0]]), np.empty((0, 1, 2)), np.empty((0, 1, 2)), None
    )
    explanation = Explanation(bare, bare, True, np.array([1.0]), CONVE_PARTS)
    one = Findings(
        np.array([[0, 0, 1]], np.int32),
        [explanation],
        np.zeros(1),
        np.ones(1),
        np.array([2]),
        0.1,
    )
    report = write_report(tmp_path, source(tmp_path), one)
    assert report.tests[0].proponents[0].by_part == {}
    assert report.tests[0].proponents[0].cosine is None
    assert "cosine" not in pq.read_schema(tmp_path / "influence.parquet").names


def test_thirty_thousand_scores_for_each_of_some_tests(tmp_path, monkeypatch):
    """The time is not checked, but building rows one by one in Python would take minutes."""
    monkeypatch.setattr(report_module, "JSON_ENTRIES", 1000)
    count, tests = 30_000, 10
    vocabulary = Vocabulary.from_names("entity", [f"entity, {i}" for i in range(1000)])
    generator = np.random.default_rng(0)
    train = generator.integers(0, 1000, (count, 3)).astype(np.int32)
    train[:, 1] = 0
    relations = Vocabulary.from_names("relation", ["r"])
    large = KnowledgeGraph("l", vocabulary, relations, train, no_triples(), no_triples())
    order = np.tile(np.arange(count), (tests, 1))
    values = np.sort(generator.normal(size=(tests, count)), axis=1)[:, ::-1].copy()
    lists = scored(order, values)
    explanation = Explanation(lists, lists, True, np.ones(tests), CONVE_PARTS)
    every = Findings(
        train[:tests], [explanation], np.zeros(tests), np.ones(tests), np.full(tests, count), 1.0
    )
    records = [CheckpointRecord(10, 1, 0.1, tmp_path), CheckpointRecord(20, 2, 0.2, tmp_path)]
    report = write_report(tmp_path, ReportSource(large, "t", "run", records, {}, "cpu"), every)
    assert (tmp_path / "influence.csv").read_bytes().count(b"\n") == tests * count + 1
    assert pq.read_metadata(tmp_path / "influence.parquet").num_rows == tests * count
    assert sum(len(t.proponents) + len(t.opponents) for t in report.tests) == 1000
