"""`clew value-facts` on a real store with trained runs."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
import torch
from mlflow import MlflowClient

import clew
from clew import names
from clew.__main__ import run as run_command
from clew.config.services import ValueRequest
from clew.errors import DataError
from clew.influence.link_prediction.unrolled import UnrolledTracer
from clew.influence.retraining import Retrainer
from clew.link_prediction.sources import BUNDLED, leave_out
from clew.runs.reading.search import RunQuery, search_runs
from clew.workflows.explaining.trace_source import open_trace_source, read_test_triples, usable
from clew.workflows.explaining.tracin import tracin
from clew.workflows.explaining.value_facts import (
    FactValues,
    read_weights,
    value_facts,
)
from clew.workflows.train import train
from tests.workflows.trained import TrainedStore, small_config, write_other_split

pytestmark = pytest.mark.slow

NUM_TESTS = 3
WEIGHTS = (2.0, -0.5, 1.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    lines = (BUNDLED / "umls" / "test.txt").read_text().splitlines(keepends=True)[:NUM_TESTS]
    path = tmp_path / "some tests.txt"
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize("score", ["tuned", "unrolled"])
def test_equals_the_weighted_sum_of_each_triples_scores(
    trained: TrainedStore, tests: Path, score: Literal["tuned", "unrolled"]
):
    settings = {"influence.score": score, "influence.top_k": 0, "influence.direction": "both"}
    expected = np.zeros(5216)
    explained = tracin(trained.strong, str(tests), settings).report.tests
    for weight, test in zip(WEIGHTS, explained, strict=True):
        for entry in (*test.proponents, *test.opponents):
            assert entry.train_index is not None
            expected[entry.train_index] += weight * entry.influence
    triples = [tuple(line.split("\t")) for line in tests.read_text().splitlines()]
    found = clew.value_facts(trained.strong, triples, weights=WEIGHTS, score=score)
    assert found["value"].is_monotonic_decreasing
    values = found.set_index("train_index")["value"].sort_index()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(values, expected, atol=1e-4 * scale)
    first = (BUNDLED / "umls" / "train.txt").read_text().split("\n")[found["train_index"][0]]
    assert list(found.loc[0, ["head_id", "relation_id", "tail_id"]]) == first.split("\t")


def test_the_run_is_open_while_the_values_are_computed(trained: TrainedStore, tests: Path):
    """Recorded time and memory are those of the computation, without writing the files."""
    query = RunQuery(kind=names.KIND_VALUE, status="RUNNING")
    open_runs: list[int] = []

    def look(done: int, total: int) -> None:
        if done == total:
            open_runs.append(len(search_runs(query).runs))

    value_facts(ValueRequest(model=trained.strong, test=str(tests)), progress=look)
    assert open_runs == [1]
    assert not search_runs(query).runs


def test_files_and_run(trained: TrainedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "values"
    arguments = ["value-facts", "--model", trained.strong, "--worst", "7"]
    assert run_command([*arguments, "--output-dir", str(output)]) == 0
    said = capsys.readouterr().out
    run_id = said.split()[1]
    run = MlflowClient(trained.uri).get_run(run_id)
    assert run.data.tags["clew.kind"] == "value"
    assert run.data.tags["clew.source_run"] == trained.strong
    assert run.data.params["cfg.value.num_tests"] == "652"
    (recorded,) = MlflowClient(trained.uri).list_artifacts(run_id)
    assert recorded.path == "fact_values"

    table = pyarrow.csv.read_csv(output / "fact_values.csv").to_pandas()
    assert list(table) == [
        *("TrainIndex", "TrainHead", "TrainHead_label", "TrainRel", "TrainRel_label"),
        *("TrainTail", "TrainTail_label", "Value"),
    ]
    assert sorted(table["TrainIndex"]) == list(range(5216))
    assert table["Value"].is_monotonic_decreasing
    worst = table.tail(7).iloc[::-1]
    listed = (output / "worst_facts.tsv").read_text().splitlines()
    assert listed[0].startswith("# data set: umls")
    assert [line.split("\t") for line in listed[2:]] == [
        [fact.TrainHead, fact.TrainRel, fact.TrainTail] for fact in worst.itertuples()
    ]
    with open_trace_source(trained.strong, {}) as source:
        graph = source.task.graph
        left = leave_out(graph, output / "worst_facts.tsv")
        assert len(left.train) == len(graph.train) - 7
        kept = graph.train[np.sort(table["TrainIndex"].head(5209).to_numpy())]
        np.testing.assert_array_equal(left.train, kept)


def test_an_artifact_at_an_end_of_the_list_is_marked(
    trained: TrainedStore, tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = np.zeros(5216)
    monkeypatch.setattr(UnrolledTracer, "values", lambda *_, **__: given)
    one, other = 7, 11
    given[one], given[other] = 20.0, -20.0

    output = tmp_path / "values"
    request = ValueRequest(
        model=trained.strong, test=str(tests), confirm=2, score="unrolled", output_dir=output
    )
    artifacts = value_facts(request)
    listed = pd.read_csv(output / "fact_values.csv")["Confirmed"]
    assert listed.isna().sum() == 5216 - 4, "no word on a fact that was not left out"
    assert not listed.dropna().astype(bool).any()
    assert not artifacts.confirmed.any()
    assert not len(artifacts.worst)
    ends = np.flatnonzero(np.isfinite(artifacts.without))
    asked = ValueRequest(model=trained.strong, test=str(tests), weights=tests, direction="tail")
    unknown = np.full(5216, np.nan)
    untried = replace(artifacts, request=asked, without=unknown, together=())
    following = untried.table().split("\n")
    assert {f"test={tests}", f"weights={tests}", "direction=tail"} < set(shlex.split(following[-1]))
    typed = replace(untried, request=asked.model_copy(update={"weights": (1.0, 2.0)}))
    assert "clew value-facts" not in typed.table(), "no command has these weights"
    high, low = (end.tolist() for end in artifacts.ends)
    assert (high[0], low[0]) == (one, other)
    expected = _effects(trained.strong, tests, [*ends[:, None], sorted(high), sorted(low)])
    measured = [*artifacts.without[ends], *artifacts.together]
    np.testing.assert_allclose(measured, expected, rtol=1e-3, atol=1e-5)
    recorded = MlflowClient().get_run(artifacts.run_id or "").data.metrics
    assert [recorded[name] for name in names.VALUE_TOGETHER] == list(artifacts.together)


def test_values_of_about_the_size_of_the_effect_are_confirmed(trained: TrainedStore):
    values = np.array([4.0, 1.0, -1.0, -2.0, -3.0, 0.0])
    without = np.array([np.nan, 0.4, -1.9, -1.1, 3.0, 0.0])
    request = ValueRequest(model=trained.strong, worst=1, confirm=2, score="unrolled")
    with open_trace_source(trained.strong, {}) as source:
        graph = source.task.graph
    graph = replace(graph, train=graph.train[: len(values)])
    found = FactValues(graph, values, 1, without, request, None)
    assert found.confirmed.tolist() == [False, False, True, True, False, False]
    assert found.worst.tolist() == [3]
    assert replace(found, request=ValueRequest(model=trained.strong, worst=1)).worst.tolist() == [4]


def test_the_size_of_tuned_values_is_fitted_to_what_was_tried(trained: TrainedStore):
    """By the median, so that an artifact neither sets it nor is confirmed by it."""
    values = np.array([8.0, 1.0, 2.0, -1.0, -2.0, 3.0])
    without = np.array([0.01, 2.5, 5.0, -2.5, -5.0, np.nan])
    request = ValueRequest(model=trained.strong, confirm=2)
    with open_trace_source(trained.strong, {}) as source:
        graph = source.task.graph
    graph = replace(graph, train=graph.train[: len(values)])
    found = FactValues(graph, values, 1, without, request, None)
    assert (found.request.score, found.scale) == ("tuned", 2.5)
    assert found.confirmed.tolist() == [False, True, True, True, True, False]
    unrolled = request.model_copy(update={"score": "unrolled"})
    assert replace(found, request=unrolled).scale == 1.0
    against = replace(found, without=-without)
    assert (against.scale, against.confirmed.any()) == (0.0, False)


def test_copies_of_a_fact_have_the_value_of_all(
    trained: TrainedStore, tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = write_other_split(tmp_path / "split")
    lines = Path(files["data__train"]).read_text().splitlines(keepends=True)
    Path(files["data__train"]).write_text("".join(lines[:1] * 3 + lines[1:]))
    config = small_config(training__num_epochs=1, data__name=None, **files)
    model = train(config).run_id or ""
    given = np.zeros(len(lines) + 2)
    given[:4] = [1.0, 2.0, 3.0, 4.0]
    monkeypatch.setattr(UnrolledTracer, "values", lambda *_, **__: given)
    found = value_facts(ValueRequest(model=model, test=str(tests)))
    assert found.values[:5].tolist() == [6.0, 6.0, 6.0, 4.0, 0.0]
    assert found.order[:2].tolist() == [0, 3], "each fact is listed once"


def _effects(run: str, tests: Path, sets: Sequence[Sequence[int] | np.ndarray]) -> list[float]:
    """Return the rise of the mean smoothed loss of both ends, by training without each set."""
    losses = []
    with open_trace_source(run, {}) as source:
        graph, config = source.task.graph, source.model.config
        again = Retrainer(graph, config, source.model.manifest, source.tracer.device)
        triples = usable(read_test_triples(str(tests), graph), "")
        head, relation, tail = torch.from_numpy(graph.with_inverses(triples)).long().T
        smoothing = config.loss.label_smoothing
        dropped = [np.array(some, int) for some in ((), *sets)]
        for model in again.train(config.training.seed, dropped):
            with torch.no_grad():
                log = model.scores(model.queries(head, relation)).double().log_softmax(1)
            own = (1 - smoothing) * log.gather(1, tail[:, None])[:, 0] + smoothing * log.mean(1)
            losses.append(-2 * float(own.mean()))
    return [loss - losses[0] for loss in losses[1:]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\n2\n", r": \D*3\D+2$"),
        ("1\nx\n2\n", "line 2: 'x'"),
        ("1\n2\ninf\n", "line 3: 'inf'"),
        ("", r": \D*3\D+1$"),
    ],
)
def test_wrong_weights_are_one_line(tmp_path: Path, content: str, message: str):
    weights = tmp_path / "weights"
    weights.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_weights(weights, NUM_TESTS)
    assert "\n" not in str(caught.value)


def test_unreadable_weights_end_the_command(
    trained: TrainedStore, tests: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = ["--test", str(tests), "--weights", str(tmp_path / "missing")]
    assert run_command(["value-facts", "--model", trained.strong, *given]) == 2
    assert "missing: no such file; check the path" in capsys.readouterr().err
