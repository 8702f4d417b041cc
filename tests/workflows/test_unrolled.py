"""`tracin --score unrolled` on a real store with trained runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from mlflow import MlflowClient

from clew.__main__ import run as run_command
from clew.errors import CheckpointError, ConfigError
from clew.influence.link_prediction.unrolled import TunedTracer
from clew.link_prediction.sources import BUNDLED
from clew.runs.influence_report import read_influence_json
from clew.training.checkpoints import OPTIMIZER_FILE, TRAINING_STATE_FILE
from clew.training.manifest import MANIFEST_FILE
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.explaining.trace_source import open_trace_source, prepare, seeds_of
from clew.workflows.explaining.tracin import tracin
from clew.workflows.explaining.validation_plan import FORMS
from clew.workflows.train import train
from tests.edited import edit_manifest
from tests.workflows.trained import TrainedStore, small_config

pytestmark = pytest.mark.slow

TEST = (BUNDLED / "umls" / "test.txt").read_text().splitlines()[0].replace("\t", ",")
UNROLLED = {"influence.score": "unrolled"}
TUNED = {"influence.score": "tuned"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(trained: TrainedStore, tmp_path: Path) -> Path:
    client = MlflowClient(trained.uri)
    return Path(client.download_artifacts(trained.strong, "checkpoints", str(tmp_path)))


def test_same_report_files_as_every_score(trained: TrainedStore, tmp_path: Path):
    told: list[tuple[int, int]] = []
    result = tracin(
        trained.strong,
        TEST,
        UNROLLED | {"influence.top_k": 5},
        output=tmp_path / "out",
        progress=lambda done, total: told.append((done, total)),
    )
    report = read_influence_json(tmp_path / "out" / "influence.json")
    assert report == result.report
    (test,) = report.tests
    assert len(test.proponents) == len(test.opponents) == 5
    assert test.self_influence is None
    assert test.proponents[0].by_part == {}
    assert len(test.proponents[0].by_checkpoint) == len(report.model.checkpoints)
    assert sum(test.proponents[0].by_checkpoint) == pytest.approx(test.proponents[0].influence)
    assert report.settings["score"] == "unrolled"
    assert report.settings["explained_parameters"] == "last"
    table = pq.read_table(tmp_path / "out" / "influence.parquet")
    assert len(table) == 10
    assert told[-1][0] == told[-1][1]
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    run = MlflowClient(trained.uri).get_run(result.run_id or "")
    assert run.data.tags["clew.variant"] == "fp32+unrolled"

    every = tracin(trained.strong, TEST, UNROLLED | {"influence.top_k": 0}).report.tests[0]
    assert len(every.proponents) + len(every.opponents) == every.candidates
    assert every.proponents[:5] == test.proponents


def test_the_command(trained: TrainedStore, capsys: pytest.CaptureFixture[str]):
    arguments = ["tracin", "--model", trained.strong, "--test", TEST, "--score", "unrolled"]
    assert run_command(arguments) == 0
    assert "positive scores lower" in capsys.readouterr().out


def test_replayed_with_the_threads_of_the_training(
    tracking_store: Path, capsys: pytest.CaptureFixture[str]
):
    del tracking_store
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run = train(small_config(training__num_epochs=1)).run_id
        torch.set_num_threads(1)
        assert run is not None
        arguments = ["tracin", "--model", run, "--test", TEST, "--score", "unrolled"]
        assert run_command(arguments) == 0, capsys.readouterr().err
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def manifests(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for path in folder.glob(f"*/{MANIFEST_FILE}"):
            edit_manifest(path.parent, change)

    return apply


def in_config(section: str, **values: object) -> Callable[[Path], None]:
    return manifests(lambda m: m["config"][section].update(values))


def optimization(name: str) -> Callable[[Path], None]:
    return in_config("optimizations", **{name: True})


def two_processes(folder: Path) -> None:
    for path in folder.glob(f"*/{TRAINING_STATE_FILE}"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"world_size": 2}))
        edit_manifest(path.parent, lambda m: None)


def without_states(folder: Path) -> None:
    for path in folder.glob(f"*/{OPTIMIZER_FILE}"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_config("model", warm_start="RUN"), "began from model.warm_start=RUN"),
        (optimization("use_mixed_precision"), "with optimizations.use_mixed_precision=true"),
        (optimization("torch_compile"), "with optimizations.torch_compile=true"),
        (manifests(lambda m: m.update(device="NVIDIA H100")), "was trained on NVIDIA H100"),
        (manifests(lambda m: m.update(previous_step=3)), "step 3"),
        (two_processes, "was trained by 2 processes"),
        (without_states, f"{OPTIMIZER_FILE}: no such file"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(trained, folder, change, message):
    change(folder)
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        tracin(str(folder), TEST, UNROLLED)
    assert "\n" not in str(caught.value)


def test_other_settings_of_the_explanation_are_refused(trained: TrainedStore):
    settings = UNROLLED | {"influence.use_last_layers_only": True}
    with pytest.raises(ConfigError, match=r"influence\.use_last_layers_only"):
        tracin(trained.strong, TEST, settings)


def test_the_filtered_loss_is_refused(trained: TrainedStore):
    with pytest.raises(ConfigError, match=r"influence\.test_loss.*filtered"):
        tracin(trained.strong, TEST, UNROLLED | {"influence.test_loss": "filtered"})


def test_tuned_alone_in_a_batch_and_averaged(trained: TrainedStore, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    settings = TUNED | {"influence.top_k": 0}
    result = tracin(
        trained.strong, TEST, settings, progress=lambda done, total: told.append((done, total))
    )
    (alone,) = result.report.tests
    assert told[-1][0] == told[-1][1]
    assert result.report.settings["tuning"] == {"epochs": 1, "learning_rate": pytest.approx(0.002)}
    assert result.report.label.verdict == "not tested"
    assert sum(alone.proponents[0].by_checkpoint) == pytest.approx(alone.proponents[0].influence)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))

    path = tmp_path / "triples.txt"
    path.write_text(TEST.replace(",", "\t") + "\n")
    near = {"influence.n_hops": 1, "influence.top_k": 5}
    batch_tracin(
        BatchRequest(trained.strong, str(path), output_dir=tmp_path / "out", overrides=TUNED | near)
    )
    (listed,) = read_influence_json(next((tmp_path / "out").rglob("influence.json"))).tests
    scores = {entry.train_index: entry.influence for entry in (*alone.proponents, *alone.opponents)}
    assert listed.candidates < alone.candidates
    for entry in (*listed.proponents, *listed.opponents):
        assert {entry.train.head.id, entry.train.tail.id} & {alone.test.head.id, alone.test.tail.id}
        assert entry.influence == pytest.approx(scores[entry.train_index])

    seeds = [
        tracin(trained.strong, TEST, TUNED | {"influence.tuning_seeds": count}).report.tests[0]
        for count in (1, 2)
    ]
    assert seeds[1].proponents[0].influence == pytest.approx(alone.proponents[0].influence)
    assert seeds[0].proponents[0].influence != seeds[1].proponents[0].influence


def test_no_check_has_the_random_numbers_of_a_tuning(trained: TrainedStore) -> None:
    with open_trace_source(trained.strong, TUNED | {"influence.tuning_seeds": 3}) as source:
        tracer = prepare(source, "tuned")
        assert isinstance(tracer, TunedTracer)
        assert len(tracer.seeds) == 3
        assert not {*tracer.seeds} & {*seeds_of(source, 100)}


def test_tuned_serves_a_run_that_no_replay_could_reach(trained, folder):
    without_states(folder)
    two_processes(folder)
    in_config("model", warm_start="RUN")(folder)
    assert tracin(str(folder), TEST, TUNED).report.tests


def test_what_cannot_be_tuned_is_one_line(trained, folder):
    optimization("use_mixed_precision")(folder)
    with pytest.raises(ConfigError) as caught:
        tracin(str(folder), TEST, TUNED)
    assert "\n" not in str(caught.value)


def test_several_runs_are_refused(trained: TrainedStore):
    with open_trace_source(trained.strong, UNROLLED) as source:
        several = replace(source, runs=("one", "other"))
        with pytest.raises(ConfigError, match=r"\b2\b.*\bgiven\b"):
            prepare(several)


def test_explanations_are_tested_in_the_other_forms():
    assert FORMS == ("raw", "cosine", "deflated", "kronecker", "preconditioned")


def test_a_batch_is_refused(trained, tmp_path, capsys):
    path = tmp_path / "triples.txt"
    path.write_text(TEST.replace(",", "\t") + "\n")
    arguments = ["batch-tracin", "--model", trained.strong, "--test-triples", str(path)]
    assert run_command([*arguments, "--score", "unrolled"]) == 2
    assert "explain a few triples with clew tracin" in capsys.readouterr().err
