"""Directions, forms and ensembles of `tracin` end to end, on a real store with trained runs."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from clew import names
from clew.errors import ConfigError
from clew.link_prediction.sources import BUNDLED
from clew.runs.influence_forms import ENSEMBLE_CSV_COLUMNS
from clew.runs.influence_report import read_influence_json
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.explaining.tracin import SHOWN_PROPONENTS, tracin
from clew.workflows.train import train
from tests.workflows.trained import TrainedStore, small_config

pytestmark = pytest.mark.slow

LINES = (BUNDLED / "umls" / "test.txt").read_text().splitlines()
TEST = LINES[0].replace("\t", ",")


@pytest.fixture(scope="module")
def twin_of_strong() -> list[str]:
    """Return a list for the run that differs from `strong` only in its seed, trained once."""
    return []


@pytest.fixture
def twin(trained: TrainedStore, twin_of_strong: list[str]) -> str:
    if not twin_of_strong:
        twin_of_strong.append(train(small_config(training__seed=5)).run_id or "")
    return twin_of_strong[0]


def test_ids_of_many_runs_are_no_path(trained: TrainedStore, twin: str):
    many = ",".join([trained.strong, twin] * 5)
    assert len(many) > 255  # no file system allows such a long name
    with pytest.raises(ConfigError, match=r"training\.seed\b"):
        tracin(many, TEST, {})


@pytest.mark.parametrize("score", ["deflated", "kronecker"])
def test_forms_and_directions_are_recorded(trained: TrainedStore, tmp_path: Path, score: str):
    settings = {"influence.score": score, "influence.direction": "head"}
    result = tracin(trained.strong, TEST, settings, output=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "influence.json").read_text())
    assert content["schema_version"] == 2
    kept = {key: content["settings"][key] for key in ("score", "direction", "test_loss")}
    assert kept == {"score": score, "direction": "head", "test_loss": "trained"}
    assert content["settings"]["moments"] == {"rows": 2048, "seed": 0, "damping": 0.1, "rank": 32}
    assert "runs" not in content["model"]
    (test,) = result.report.tests
    assert {"convolution"}.isdisjoint(test.proponents[0].by_part)
    tags = MlflowClient(trained.uri).get_run(result.run_id or "").data.tags
    assert tags[names.TAG_VARIANT] == f"fp32+{score}"
    with pytest.raises(ConfigError, match=r"\(direction\b.*'head'.*'tail'"):
        tracin(trained.strong, TEST, {"influence.score": score}, output=tmp_path / "out")


def test_an_ensemble_averages_runs(trained: TrainedStore, twin: str, tmp_path: Path):
    every = {"influence.top_k": 0}
    a, b = (tracin(run, TEST, every).report.tests[0] for run in (trained.strong, twin))
    both = f"{trained.strong}, {twin}"
    result = tracin(both, TEST, every, output=tmp_path / "out")
    report = read_influence_json(tmp_path / "out" / "influence.json")
    assert report == result.report
    assert report.model.runs == (trained.strong, twin)
    scores = [
        {entry.train_index: entry.influence for entry in test.proponents + test.opponents}
        for test in (a, b)
    ]
    (test,) = report.tests
    assert test.rank == (a.rank + b.rank) / 2
    for entry in test.proponents + test.opponents:
        alone = [found[entry.train_index] for found in scores]
        assert entry.influence == pytest.approx(sum(alone) / 2, rel=1e-6)
        agreeing = sum((value > 0) == (entry.influence > 0) for value in alone)
        assert entry.runs_agreeing == agreeing
        assert entry.spread == pytest.approx(abs(alone[0] - alone[1]) / 2**0.5, rel=1e-3)
    header = (tmp_path / "out" / "influence.csv").read_text().splitlines()[0]
    assert header == ",".join(ENSEMBLE_CSV_COLUMNS)
    table = result.table(grey=lambda line: f"grey {line}")
    assert "2 of 2 runs agree" in table
    shown = (*test.proponents[:SHOWN_PROPONENTS], *test.opponents[:SHOWN_PROPONENTS])
    assert f" of the {len(shown)} facts" in table, "the others are not in the table"
    disputed = [entry for entry in shown if entry.runs_agreeing == 1]
    assert table.count("\ngrey ") == table.count("1 of 2 runs agree") == len(disputed)
    assert test.paths is not None
    facts = {entry.train_index: entry for entry in test.proponents + test.opponents}
    on_paths = [fact for path in test.paths.paths for step in path.steps for fact in step]
    assert on_paths
    for fact in on_paths:
        assert fact.runs_agreeing == facts[fact.train_index].runs_agreeing
    recorded = MlflowClient(trained.uri).get_run(result.run_id or "").data
    assert recorded.tags[names.TAG_VARIANT] == "fp32+2runs"
    with pytest.raises(ConfigError, match=r"\(runs\b"):
        tracin(trained.strong, TEST, every, output=tmp_path / "out")


def test_many_triples_by_an_ensemble(trained: TrainedStore, twin: str, tmp_path: Path):
    path = tmp_path / "triples.txt"
    path.write_text("\n".join(LINES[:3]) + "\n")
    request = BatchRequest(
        model=f"{trained.strong},{twin}",
        test_triples=str(path),
        output_dir=tmp_path / "b",
        overrides={"influence.n_hops": 1, "influence.top_k": 3, "influence.score": "deflated"},
    )
    assert batch_tracin(request).count("done") == 3
    folder = tmp_path / "b" / "influence"
    assert read_influence_json(folder / "influence.json").model.runs == (trained.strong, twin)
    assert set(pq.read_table(folder / "influence.parquet")["runs_agreeing"].to_pylist()) <= {1, 2}
    lines = (folder / "influence.csv").read_text().splitlines()
    assert lines[0] == ",".join(ENSEMBLE_CSV_COLUMNS)
    assert len(lines) == 19


def test_only_runs_of_one_configuration_are_averaged(trained: TrainedStore):
    refused = {
        f"{trained.strong},{trained.weak}": r"training\.num_epochs is 1 in .* and 4 in ",
        f"{trained.strong},{trained.other}": "was trained on data",
        f"{trained.strong},{trained.strong}": r"training\.seed is 0 in .* runs with different",
        f"{trained.strong},": "no model given",
    }
    for model, message in refused.items():
        with pytest.raises(ConfigError, match=message) as caught:
            tracin(model, TEST, {})
        assert "\n" not in str(caught.value)
