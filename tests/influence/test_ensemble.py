"""The mean over runs equals that of the runs' own scores, for any tiles and checkpoints."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from clew.influence.link_prediction.report import Findings, ReportSource, write_report
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.scores import Scored
from clew.influence.summation import MeanOfRuns
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.influence_forms import ENSEMBLE_CSV_COLUMNS
from clew.runs.reading.reports import ReportFiles, read_facts, read_head
from clew.training.manifest import CheckpointRecord, list_checkpoints
from clew.workflows.explaining.trace_source import mean_checkpoints
from tests.oracles.test_influence_sum import CPU, DoubleTask, fixture_of, matrix, write_checkpoints


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return three runs of one configuration; the last one has only two of the checkpoints."""
    base = tmp_path_factory.mktemp("runs")
    small = fixture_of(base / "0", DoubleTask)
    records = [list_checkpoints(base / "0")]
    for number in (1, 2):
        folder = base / str(number)
        write_checkpoints(small.task, small.tracer().config, folder, seed=1 + number)
        records.append(list_checkpoints(folder)[: 4 - number])
    return small, records


def ensemble(small, records, **influence) -> Tracer:
    config = small.tracer().config
    settings = config.influence.model_copy(update={"top_k": 0} | influence)
    return Tracer(
        small.task,
        config,
        settings=settings,
        checkpoints=records[0],
        device=CPU,
        further_runs=records[1:],
    )


@pytest.mark.parametrize("score", ["raw", "cosine", "deflated", "kronecker"])
def test_scores_are_the_mean_of_the_runs_own(runs, score):
    small, records = runs
    alone = np.stack(
        [matrix(small.tracer(run, top_k=0, score=score).explain(small.tests)) for run in records]
    )
    assert np.abs(alone[0] - alone[1]).max() > 0.1 * np.abs(alone).max()
    (found,) = ensemble(small, records, score=score, batch_size=7).explain(small.tests)
    scored = found.proponents
    np.testing.assert_allclose(matrix([found]), alone.mean(0), rtol=1e-9, atol=1e-12)
    train = np.broadcast_to(scored.train, (len(records), *scored.train.shape))
    expected = np.take_along_axis(alone, train, 2)
    np.testing.assert_allclose(scored.by_run, expected, rtol=1e-5)
    np.testing.assert_allclose(scored.spread, expected.std(0, ddof=1), rtol=1e-4, atol=1e-9)
    same = np.sign(expected) == np.sign(expected.mean(0))
    np.testing.assert_array_equal(scored.agreeing, same.sum(0))
    np.testing.assert_allclose(scored.by_checkpoint.sum(0), scored.influence, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scored.by_part.sum(0), scored.influence, rtol=1e-4, atol=1e-6)


def test_strongest_of_the_mean_are_not_the_means_of_the_strongest(runs):
    small, records = runs
    every = ensemble(small, records)
    assert isinstance(every.summation(small.tests), MeanOfRuns)
    full = matrix(every.explain(small.tests))
    (found,) = ensemble(small, records, top_k=3, batch_size=11).explain(small.tests)
    best = np.argsort(-full, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(found.proponents.train, best)
    one = found.only(2).proponents
    assert one.by_run is not None
    assert one.by_run.shape == (3, 1, 3)


def test_score_and_rank_are_means_over_runs(runs):
    small, records = runs
    alone = [small.tracer(run).scores_and_ranks(small.tests) for run in records]
    found = ensemble(small, records).scores_and_ranks(small.tests)
    np.testing.assert_allclose(found, np.mean(alone, axis=0))


def test_checkpoints_are_merged_by_step(tmp_path):
    first = [CheckpointRecord(10, 1, 0.1, tmp_path), CheckpointRecord(20, 2, 0.3, tmp_path)]
    second = [CheckpointRecord(10, 1, 0.2, tmp_path)]
    merged = mean_checkpoints([first, second])
    assert [(r.step, r.epoch) for r in merged] == [(10, 1), (20, 2)]
    assert [r.learning_rate_weight for r in merged] == pytest.approx([0.15, 0.15])


def test_three_files_say_how_far_runs_agree(runs, tmp_path):
    small, records = runs
    tracer = ensemble(small, records, top_k=4)
    explanations = tracer.explain(small.tests)
    scores, ranks = tracer.scores_and_ranks(small.tests)
    graph: KnowledgeGraph = small.task.graph
    count = np.full(len(small.tests), len(graph.train))
    source = ReportSource(
        graph, "t", "a", mean_checkpoints(records), {}, "cpu", runs=("a", "b", "c")
    )
    folder = tmp_path / "report"
    write_report(folder, source, Findings(small.tests, explanations, scores, ranks, count, 1.0))
    header = (folder / "influence.csv").read_text().splitlines()[0]
    assert header == ",".join(ENSEMBLE_CSV_COLUMNS)
    table = pq.read_table(folder / "influence.parquet")
    assert set(table["runs_agreeing"].to_pylist()) <= {0, 1, 2, 3}
    files = {kind: folder / f"influence.{kind}" for kind in ("json", "parquet")}
    assert read_head(ReportFiles(json=files["json"])).model.runs == ("a", "b", "c")
    scored: Scored = explanations[0].proponents
    for kind, path in files.items():
        facts = read_facts(ReportFiles(**{kind: path}), 0)
        assert len(facts) >= 4
        np.testing.assert_allclose(facts["influence"][:4], scored.influence[0], rtol=1e-6)
        np.testing.assert_allclose(facts["spread"][:4], scored.spread[0], rtol=1e-5)
        np.testing.assert_array_equal(facts["runs_agreeing"][:4], scored.agreeing[0])
