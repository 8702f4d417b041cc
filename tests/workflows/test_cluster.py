"""Work on a Ray cluster: the same results, each once, even if a node dies in the middle."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient

from clew import names
from clew.__main__ import run as run_command
from clew.config.services import ClusterRequest
from clew.config.study import load_study
from clew.link_prediction.sources import BUNDLED
from clew.runs import store
from clew.runs.influence_report import read_influence_json
from clew.workflows import cluster as cluster_module
from clew.workflows.cluster import opened_cluster
from clew.workflows.compare import compare
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.train import train
from clew.workflows.tune import TuneRequest, tune
from tests.workflows.ray_cluster import FEW, die, kill_in_the_middle, raylet_of
from tests.workflows.trained import ROOT, small_config

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'clew[cluster]')")
pytestmark = [
    pytest.mark.slow,
    # Ray leaves the files and sockets of its processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NUM_TESTS = int(os.environ.get("CLEW_CLUSTER_TESTS", "24"))
"""Number of triples that two nodes explain; set the variable to test more."""
STUDY: dict[str, Any] = {
    "name": "smoothing",
    "base": str(ROOT / "experiments/link_prediction/umls.yaml"),
    "overrides": {
        "model.embedding_dim": 24,
        "model.output_channels": 6,
        "training.num_epochs": 1,
        "training.device": "cpu",
        "training.checkpoint_frequency": 0,
        "tracking.log_mfu": False,
    },
    "variants": {
        "plain": {"loss.label_smoothing": 0.0},
        "smoothed": {"loss.label_smoothing": 0.1},
    },
    "measures": [{"metric": "test/mrr", "label": "MRR"}],
}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Start a node with one core."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        # A dead node refuses the connection at once; only a slow one needs the time.
        patient = {"_system_config": {"health_check_timeout_ms": 60_000}}
        head = FEW | {"include_dashboard": False} | patient
        started = Cluster(initialize_head=True, head_node_args=head)
        yield started
        started.shutdown()


@pytest.fixture
def second(ray_cluster: Any) -> Iterator[str]:
    """Add a node with one core, and return its id."""
    node = ray_cluster.add_node(**FEW)
    yield str(node.node_id)
    ray_cluster.remove_node(node, allow_graceful=False)


def test_triples_explained_on_two_nodes_of_which_one_dies_are_those_of_one_process(
    tracking_store: Path,
    ray_cluster: Any,
    second: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = train(small_config(training__num_epochs=1)).run_id or ""
    splits = [(BUNDLED / f"umls/{split}.txt").read_text() for split in ("test", "valid")]
    tests = tmp_path / "tests.txt"
    tests.write_text("\n".join("".join(splits).splitlines()[:NUM_TESTS]) + "\n")

    def request(folder: str) -> BatchRequest:
        return BatchRequest(
            model=run_id,
            test_triples=str(tests),
            output_dir=tmp_path / folder,
            overrides={"influence.tests_per_group": 4, "influence.top_k": 5},
        )

    alone = batch_tracin(request("alone"))
    sign = tmp_path / "killed"
    kill_in_the_middle(monkeypatch, second, sign)
    seen: list[tuple[int, int]] = []
    result = batch_tracin(
        request("nodes"),
        cluster=ClusterRequest(cluster=ray_cluster.address),
        progress=lambda done, total: seen.append((done, total)),
    )

    assert sign.exists(), "the node died"
    assert result.count("done") == alone.count("done") > NUM_TESTS // 2
    assert result.count("failed") == alone.count("failed")
    assert seen == sorted(set(seen)), "each test once"
    assert seen[-1] == (NUM_TESTS, NUM_TESTS)
    first = read_influence_json(tmp_path / "alone/influence/influence.json")
    other = read_influence_json(tmp_path / "nodes/influence/influence.json")
    assert [test.test for test in other.tests] == [test.test for test in first.tests]
    for mine, theirs in zip(other.tests, first.tests, strict=True):
        assert mine.candidates == theirs.candidates
        assert mine.rank == theirs.rank
        pairs = [(e.train, e.influence) for e in (*mine.proponents, *mine.opponents)]
        expected = [(e.train, e.influence) for e in (*theirs.proponents, *theirs.opponents)]
        assert [t for t, _ in pairs] == [t for t, _ in expected]
        np.testing.assert_allclose(
            [v for _, v in pairs], [v for _, v in expected], rtol=1e-5, atol=1e-9
        )
    kept = batch_tracin(request("nodes"), cluster=ClusterRequest(cluster=ray_cluster.address))
    assert kept.count("kept") == result.count("done"), "and the command goes on from there"


def test_cells_on_two_nodes_of_which_one_dies_are_there_once(
    tracking_store: Path,
    ray_cluster: Any,
    second: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    kill_in_the_middle(monkeypatch, second, tmp_path / "killed")
    study = load_study(path)
    lines = list(
        compare(study, everything=True, cluster=ClusterRequest(cluster=ray_cluster.address))
    )

    assert (tmp_path / "killed").exists(), "the node died"
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/2]", "[2/2]"]
    assert not any("Did not finish" in line for line in lines)
    client = MlflowClient(store.tracking_uri())
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    cells = client.search_runs(experiments, f"tags.`{names.TAG_KIND}` = '{names.KIND_TRAIN}'")
    assert sorted(run.data.params["cfg.loss.label_smoothing"] for run in cells) == ["0.0", "0.1"]
    assert {run.info.status for run in cells} == {"FINISHED"}
    again = list(compare(study, everything=True))
    assert [line for line in again if "|" in line] == [line for line in lines if "|" in line]


def test_trials_on_two_nodes_of_which_one_dies_are_decided_once(
    tracking_store: Path,
    ray_cluster: Any,
    second: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = tmp_path / "space.yaml"
    rate = {"low": 1e-6, "high": 0.03, "log": True}
    space.write_text(
        yaml.safe_dump({"parameters": {"optimizer.learning_rate": rate}, "unpruned_trials": 2})
    )
    kill_in_the_middle(monkeypatch, second, tmp_path / "killed")
    request = TuneRequest(
        config=small_config(evaluation__every_epochs=1, training__num_epochs=2),
        space=str(space),
        output_dir=tmp_path / "search",
        trials=5,
    )
    lines: list[str] = []
    result = tune(request, cluster=ClusterRequest(cluster=ray_cluster.address), say=lines.append)

    assert (tmp_path / "killed").exists(), "the node died"
    assert sorted(record.number for record in result.trials) == list(range(5))
    assert len(lines) == 5
    assert {record.state for record in result.trials} <= {"complete", "pruned"}
    rates = [record.settings["optimizer.learning_rate"] for record in result.trials]
    assert len(set(rates)) == 5, "trials beside each other try different settings"
    client = MlflowClient(store.tracking_uri())
    for record in result.trials:
        history = client.get_metric_history(record.run_id, "valid/mrr")
        assert max(entry.value for entry in history) >= (record.value or 0)
    again = tune(request, cluster=ClusterRequest(cluster=ray_cluster.address))
    assert again.trials == result.trials, "all trials are there"


def test_a_node_that_just_died_is_left_out(ray_cluster: Any, second: str) -> None:
    with opened_cluster(ClusterRequest(cluster=ray_cluster.address)) as cluster:
        ray.cloudpickle.register_pickle_by_value(sys.modules[raylet_of.__module__])
        (raylet,) = [ended for ended in cluster.on_each(raylet_of, second) if ended]
    os.kill(raylet, signal.SIGKILL)
    with opened_cluster(ClusterRequest(cluster=ray_cluster.address)) as cluster:
        assert cluster.on_each(raylet_of, second) == [None], "only the other node answers"


def test_a_unit_that_kills_node_after_node_is_lost_and_the_others_are_not(
    ray_cluster: Any, tracking_store: Path
) -> None:
    with opened_cluster(ClusterRequest(cluster=ray_cluster.address)) as cluster:
        ray.cloudpickle.register_pickle_by_value(sys.modules[die.__module__])
        cluster.submit("dies", die)
        cluster.submit("lives", len, "four")
        ended = dict(cluster.finished())
    assert ended["lives"].result == 4
    assert ended["dies"].is_lost
    assert re.search(r"^lost, started again up to 3 times \(.+\); check", str(ended["dies"].error))


def test_a_cluster_that_cannot_do_the_work_is_one_line(
    ray_cluster: Any,
    tracking_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusal(*options: str) -> str:
        command = ["tune", "--trials=1", f"--cluster={ray_cluster.address}", *options]
        assert run_command(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "--cpus-per-task" in refusal("--cpus-per-task=8")
    assert "--gpus-per-task" in refusal("--gpus-per-task=1")
    code, folder, environment = cluster_module._conditions()
    for other in (("other code", folder), (code, str(tmp_path / "missing"))):
        with monkeypatch.context() as patch:
            patch.setattr(cluster_module, "_conditions", lambda o=other: (*o, environment))
            assert "a node cannot do its part" in refusal()
