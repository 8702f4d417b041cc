"""Promotion on a real SQLite store: which model becomes champion, and possible failures."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient

import clew
from clew import names
from clew.__main__ import run as run_command
from clew.errors import CheckpointError, ConfigError, PromotionRefused, TrackingError
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.subject import Graphs
from clew.runs import registry
from clew.runs.base import RegisteredVersion
from clew.runs.reading.runs import download_artifact, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.registry import Registry
from clew.training.manifest import MANIFEST_FILE, MODEL_FILE
from clew.workflows.gate import Check, Gate
from clew.workflows.model_source import open_version
from clew.workflows.open_run import find_version
from clew.workflows.promote import (
    PromotionRequest,
    promote,
    rollback,
)
from tests.edited import edit_manifest, edit_weights
from tests.workflows.conftest import run_of
from tests.workflows.trained import TrainedStore, small_config

CHECKS = (
    "checkpoint",
    "no pickle",
    "weights",
    "validation",
    "calibration",
    "test",
    "champion",
    "served",
)


@pytest.fixture(autouse=True)
def small_package() -> Iterator[pytest.MonkeyPatch]:
    """Package only one file with a version, because a promotion copies each file five times.

    Tests that need the whole package undo this; servers are tested with the whole package.
    """

    def copy_one_file(target: Path) -> Path:
        (target / "clew").mkdir(parents=True)
        shutil.copy2(clew.__file__, target / "clew")
        return target / "clew"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_copy_package", copy_one_file)
        yield patch


def aliases(name: str) -> dict[str, str]:
    return Registry().aliases(name)


def promoted(name: str, run_id: str, **settings: object) -> str | None:
    return promote(PromotionRequest(run_id, name=name, **settings)).number  # type: ignore[arg-type]


@pytest.fixture
def champion(trained: TrainedStore) -> Callable[[str, str], None]:
    """Return a function that makes a run the champion under a name, as fast as a copy."""
    client = MlflowClient(trained.uri)

    def crown(name: str, run_id: str) -> None:
        template = f"template {run_id}"
        if not Registry().aliases(template):
            promoted(template, run_id)
        version = client.get_model_version(template, "1")
        client.create_registered_model(name)
        client.create_model_version(
            name, version.source, version.run_id, dict(version.tags), model_id=version.model_id
        )
        client.set_registered_model_alias(name, "champion", "1")

    return crown


Crown = Callable[[str, str], None]


def test_the_first_promotion(trained: TrainedStore) -> None:
    seen: list[Check] = []
    path = list(sys.path)
    result = promote(PromotionRequest(trained.strong, name="first"), seen.append)
    assert sys.path == path  # MLflow added the model's copy of the package
    assert tuple(check.name for check in seen) == CHECKS
    assert all(check.passed for check in seen)
    assert result.uri == "models:/first@champion"
    assert aliases("first") == {"champion": "1"}
    version = Registry().version_at("first", "champion")
    training = find_run(trained.strong)
    for key in (
        names.TAG_CONFIG_HASH,
        names.TAG_DATA_FINGERPRINT,
        names.TAG_COMMIT,
        names.TAG_DATASET,
        names.TAG_TASK,
    ):
        assert version.tags[key] == training.tags[key]
    assert version.run_id == trained.strong
    assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_PASSED
    assert float(version.tags[f"{names.TAG_METRIC_PREFIX}test/mrr"]) == pytest.approx(
        training.metrics["test/mrr"], rel=1e-6
    )
    assert float(version.tags[names.TAG_TEMPERATURE]) > 0


def test_a_promotion_is_recorded_as_a_run(trained: TrainedStore) -> None:
    promoted("recorded", trained.strong)
    query = RunQuery(kind=names.KIND_PROMOTE, source_run=trained.strong, text="recorded")
    (run,) = search_runs(query).runs
    assert run.status == "FINISHED"
    assert run.tags[names.TAG_MODEL_VERSION] == "models:/recorded/1"
    assert "test/mrr" in run.metrics
    training = find_run(trained.strong)
    for key in (
        names.TAG_TASK,
        names.TAG_DATASET,
        names.TAG_DATA_FINGERPRINT,
        names.TAG_CONFIG_HASH,
        names.TAG_VARIANT,
    ):
        assert run.tags[key] == training.tags[key] != ""
    version = Registry().version("recorded", "1")
    assert version.tags[names.TAG_PROMOTE_RUN] == run.run_id


def test_a_registered_model_holds_no_pickle(
    trained: TrainedStore, small_package: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_package.undo()
    promoted("safe", trained.weak)
    registry = Registry()
    folder = registry.download(registry.version("safe", "1"), tmp_path)
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".parquet", ".py", ".yaml", ".txt", ""}
    assert {p.name for p in folder.rglob("*") if p.is_file() and not p.suffix} <= {
        "MLmodel",
        "registered_model_meta",
    }


def test_only_the_checkpoint_of_a_version_is_copied_to_open_it(
    trained: TrainedStore, champion: Crown, tmp_path: Path
) -> None:
    champion("opened", trained.weak)
    source = open_version(find_version("models:/opened@champion"), tmp_path / "opened")
    assert source.checkpoint.parent == tmp_path / "opened"
    copied = {path.suffix for path in (tmp_path / "opened").rglob("*") if path.is_file()}
    assert ".safetensors" in copied
    assert ".py" not in copied


def test_a_version_that_was_not_promoted_is_refused(trained: TrainedStore, tmp_path: Path) -> None:
    client = MlflowClient(trained.uri)
    files = client.get_run(trained.weak).info.artifact_uri
    client.create_registered_model("foreign")
    client.create_model_version("foreign", files, trained.weak)
    with pytest.raises(CheckpointError, match="registered by `clew promote`"):
        open_version(find_version("models:/foreign/1"), tmp_path)


def test_a_better_candidate_replaces_the_champion(trained: TrainedStore, champion: Crown) -> None:
    champion("better", trained.weak)
    result = promote(PromotionRequest(trained.strong, name="better"))
    assert (result.number, result.former) == ("2", "1")
    assert aliases("better") == {"champion": "2", "previous": "1"}
    tags = Registry().version("better", "2").tags
    assert tags[names.TAG_GATE_METRIC] == "valid/mrr"
    assert tags[names.TAG_GATE_SPLIT] == "valid"
    assert tags[names.TAG_GATE_EXAMPLES] == "652 triples"
    low, high = map(float, tags[names.TAG_GATE_INTERVAL].split(" to "))
    strong, weak = (find_run(run).metrics["valid/mrr"] for run in (trained.strong, trained.weak))
    assert 0 < low < strong - weak < high


def test_equal_models_do_not_replace_each_other(trained: TrainedStore, champion: Crown) -> None:
    """One of two seeds is better on the test split; neither is certainly so on validation."""
    again = run_of(small_config(training__seed=1, tracking__experiment="again"))
    for first, second in ((trained.strong, again), (again, trained.strong)):
        champion(f"equal {first}", first)
        with pytest.raises(PromotionRefused):
            promoted(f"equal {first}", second)
        assert aliases(f"equal {first}") == {"champion": "1", "challenger": "2"}


def test_a_worse_candidate_stays_challenger_with_the_reason(
    trained: TrainedStore, champion: Crown
) -> None:
    champion("worse", trained.strong)
    with pytest.raises(PromotionRefused):
        promoted("worse", trained.weak)
    assert aliases("worse") == {"champion": "1", "challenger": "2"}
    version = Registry().version("worse", "2")
    assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_FAILED
    assert "valid/mrr" in version.tags[names.TAG_REFUSED_BECAUSE]
    assert float(version.tags[names.TAG_GATE_INTERVAL].split(" to ")[1]) < 0


def test_a_refusal_that_is_repeated_adds_no_version(trained: TrainedStore, champion: Crown) -> None:
    champion("again", trained.strong)
    for _ in range(2):
        with pytest.raises(PromotionRefused):
            promoted("again", trained.weak)
    assert aliases("again") == {"champion": "1", "challenger": "2"}
    assert len(MlflowClient().search_model_versions("name = 'again'")) == 2
    with pytest.raises(PromotionRefused):
        promoted("again", trained.other)
    assert aliases("again")["challenger"] == "3"


def test_force_overrules_and_records_the_reason(trained: TrainedStore, champion: Crown) -> None:
    champion("forced", trained.strong)
    with pytest.raises(PromotionRefused):
        promoted("forced", trained.weak)
    result = promote(PromotionRequest(trained.weak, name="forced", force="half the size"))
    assert result.number == "3"
    assert aliases("forced") == {"champion": "3", "previous": "1", "challenger": "2"}
    version = Registry().version("forced", "3")
    assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_FORCED
    assert version.tags[names.TAG_FORCED_BECAUSE] == "half the size"
    assert "valid/mrr" in version.tags[names.TAG_REFUSED_BECAUSE]


def test_rollback_swaps_and_swaps_again(trained: TrainedStore, champion: Crown) -> None:
    champion("back", trained.weak)
    promoted("back", trained.strong)
    result = rollback("back")
    assert (result.number, result.former) == ("1", "2")
    assert aliases("back") == {"champion": "1", "previous": "2"}
    rollback("back")
    assert aliases("back") == {"champion": "2", "previous": "1"}


def test_a_model_shows_its_champions_card_until_a_person_describes_it(
    trained: TrainedStore, champion: Crown
) -> None:
    client = MlflowClient(trained.uri)
    champion("card", trained.weak)
    promoted("card", trained.strong)
    card = client.get_model_version("card", "2").description
    assert Graphs.intended_use in card
    assert "5,216 triples to train" in card
    assert "models:/card/2" in card
    assert client.get_registered_model("card").description == card
    rollback("card")
    assert not client.get_registered_model("card").description  # version 1 was made without a card
    client.update_registered_model("card", "for the screening group")
    rollback("card")
    assert client.get_registered_model("card").description == "for the screening group"


@pytest.mark.parametrize(
    ("kind", "command"), [("text", "clew trace-text"), ("sequences", "clew trace-sequence")]
)
def test_a_card_names_the_command_that_explains_the_model(
    kind: str, command: str, request: pytest.FixtureRequest
) -> None:
    run_id = request.getfixturevalue(kind).run_id
    promoted(f"card of {kind}", run_id)
    card = MlflowClient().get_model_version(f"card of {kind}", "1").description
    assert f"`{command} --model {run_id}" in card
    assert f"-m 'models:/card of {kind}/1'" in card


def test_rollback_needs_a_former_version(trained: TrainedStore, champion: Crown) -> None:
    champion("only", trained.weak)
    with pytest.raises(TrackingError, match="version 1 is the first champion of 'only'"):
        rollback("only")
    with pytest.raises(TrackingError, match="no model 'never' is registered"):
        rollback("never")
    with pytest.raises(ConfigError, match="rollback needs --name"):
        rollback("")


def test_a_dry_rollback_says_what_would_happen(trained: TrainedStore, champion: Crown) -> None:
    champion("dry back", trained.weak)
    promoted("dry back", trained.strong)
    options = ["promote", "--rollback", "--name=dry back"]
    result = rollback("dry back", dry_run=True)
    assert "would be version 1 again, version 2 would be previous" in result.table()
    assert run_command([*options, "--dry-run"]) == 0
    assert aliases("dry back") == {"champion": "2", "previous": "1"}
    assert run_command(options) == 0
    assert aliases("dry back") == {"champion": "1", "previous": "2"}


@pytest.mark.parametrize("option", ["--run-id=a", "--experiment=a", "--metric=a", "--force=a"])
def test_a_rollback_chooses_nothing(
    trained: TrainedStore, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run_command(["promote", "--rollback", "--name=any", option]) == 2
    given = option.partition("=")[0]
    assert f"--rollback and {given} are both given; a rollback restores" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(trained: TrainedStore, champion: Crown) -> None:
    before = search_runs(RunQuery(kind=names.KIND_PROMOTE)).runs
    result = promote(PromotionRequest(trained.strong, name="dry", dry_run=True))
    assert "would become champion" in result.outcome
    assert [check.name for check in result.checks] == list(CHECKS[:-1])
    assert Registry().aliases("dry") == {}
    assert search_runs(RunQuery(kind=names.KIND_PROMOTE)).runs == before
    champion("dry", trained.strong)
    with pytest.raises(PromotionRefused, match=r"dry run, nothing written"):
        promote(PromotionRequest(trained.weak, name="dry", dry_run=True))
    assert aliases("dry") == {"champion": "1"}


def test_the_champion_itself_has_nothing_to_do(trained: TrainedStore, champion: Crown) -> None:
    champion("same", trained.strong)
    result = promote(PromotionRequest(trained.strong, name="same"))
    assert "nothing to do: version 1" in result.outcome
    assert aliases("same") == {"champion": "1"}


def test_a_champion_of_other_data_is_not_compared_with(
    trained: TrainedStore, champion: Crown
) -> None:
    champion("data", trained.strong)
    with pytest.raises(PromotionRefused, match=r"trained on data .* cannot be compared"):
        promoted("data", trained.other)
    assert aliases("data") == {"champion": "1", "challenger": "2"}
    promoted("data", trained.other, force="the new release of the graph")
    assert aliases("data") == {"champion": "3", "previous": "1", "challenger": "2"}


def test_another_alias_has_its_own_previous_and_challenger(trained: TrainedStore) -> None:
    promoted("staged", trained.weak, alias="staging")
    promoted("staged", trained.strong, alias="staging")
    assert aliases("staged") == {"staging": "2", "staging-previous": "1"}
    rollback("staged", "staging")
    assert aliases("staged") == {"staging": "1", "staging-previous": "2"}


def test_the_best_run_of_an_experiment(trained: TrainedStore) -> None:
    result = promote(PromotionRequest(experiment="clew", name="of experiment", dry_run=True))
    assert result.run_id == trained.strong
    smaller = PromotionRequest(
        experiment="clew", metric="valid/mean_rank", name="of experiment", dry_run=True
    )
    assert promote(smaller).run_id == trained.strong


@pytest.mark.parametrize("metric", ["test/mrr", "train/loss", "mrr"])
def test_only_the_validation_split_decides(trained: TrainedStore, metric: str) -> None:
    for request in (PromotionRequest(trained.strong), PromotionRequest(experiment="clew")):
        with pytest.raises(ConfigError):
            promote(dataclasses.replace(request, metric=metric, dry_run=True))


def test_a_validation_metric_counts_as_it_was_at_the_best_checkpoint(
    trained: TrainedStore,
) -> None:
    """The run with the higher peak wins, although its last value is lower."""
    client = MlflowClient(trained.uri)
    experiment = client.create_experiment("overfitted")
    chosen = {}
    for name, values in {"peaked": (0.1, 0.9, 0.2), "steady": (0.1, 0.3, 0.5)}.items():
        run = client.create_run(experiment, tags={names.TAG_KIND: names.KIND_TRAIN})
        best = max(range(3), key=lambda step: values[step])
        for step, value in enumerate(values):
            client.log_metric(run.info.run_id, "valid/mrr", value, step=step)
        client.set_tag(run.info.run_id, names.TAG_BEST_STEP, str(best))
        client.set_terminated(run.info.run_id)
        chosen[name] = run.info.run_id
    with pytest.raises(CheckpointError, match=f"run {chosen['peaked']} has no best checkpoint"):
        promote(PromotionRequest(experiment="overfitted"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (PromotionRequest(), "neither of --run-id and --experiment given"),
        (PromotionRequest("a", experiment="b"), "both of --run-id and --experiment given"),
        (PromotionRequest(experiment="nowhere"), r"no experiment 'nowhere'; there are .*'clew'"),
        (
            PromotionRequest(experiment="clew", metric="valid/mr"),
            r"no run of experiment 'clew' has metric 'valid/mr' .*they have .*valid/mrr",
        ),
        (
            PromotionRequest(experiment="clew", metric="train/learning_rate"),
            "metric 'train/learning_rate' cannot decide",
        ),
        (PromotionRequest("0" * 32), "no run 0{32}"),
        (PromotionRequest("0" * 32, name="a/b"), "model name 'a/b' is not allowed"),
        (PromotionRequest("0" * 32, name="a:b"), "model name 'a:b' is not allowed"),
        (PromotionRequest("0" * 32, name=".."), "is not allowed"),
        (PromotionRequest("0" * 32, name="it's"), "is not allowed"),
        (PromotionRequest("0" * 32, alias="latest"), "alias 'latest' is not allowed"),
        (PromotionRequest("0" * 32, alias="v3"), "alias 'v3' is not allowed"),
        (PromotionRequest("0" * 32, alias="a b"), "alias 'a b' is not allowed"),
        (PromotionRequest("0" * 32, alias="previous"), "set by the promotion itself"),
    ],
)
def test_wrong_use(trained: TrainedStore, request_: PromotionRequest, message: str) -> None:
    with pytest.raises((ConfigError, TrackingError), match=message):
        promote(request_)


def test_a_metric_that_the_run_does_not_have(trained: TrainedStore) -> None:
    with pytest.raises(TrackingError, match=r"has no metric 'valid/loss'; it has .*valid/mrr"):
        promote(PromotionRequest(trained.strong, metric="valid/loss"))


def test_a_metric_that_cannot_tell_the_better_of_two(trained: TrainedStore) -> None:
    client = MlflowClient(trained.uri)
    client.log_metric(trained.strong, "valid/unknown", 1.0)
    with pytest.raises(ConfigError):
        promote(PromotionRequest(trained.strong, metric="valid/unknown"))


def test_a_champion_is_beaten_by_smaller_ranks(trained: TrainedStore, champion: Crown) -> None:
    champion("ranks", trained.strong)
    request = PromotionRequest(trained.weak, name="ranks", metric="valid/mean_rank_tail")
    with pytest.raises(PromotionRefused):
        promote(request)
    tags = Registry().version("ranks", "2").tags
    assert tags[names.TAG_GATE_METRIC] == "valid/mean_rank_tail"
    assert float(tags[names.TAG_GATE_INTERVAL].split(" to ")[1]) < 0


def test_a_metric_that_is_nan_in_all_runs(trained: TrainedStore) -> None:
    client = MlflowClient(trained.uri)
    experiment = client.create_experiment("diverged")
    run = client.create_run(experiment, tags={names.TAG_KIND: names.KIND_TRAIN})
    client.log_metric(run.info.run_id, "valid/mrr", float("nan"))
    client.set_terminated(run.info.run_id)
    with pytest.raises(TrackingError, match="'valid/mrr' is NaN or infinite in all 1 runs"):
        promote(PromotionRequest(experiment="diverged"))


def test_an_experiment_without_finished_trainings(trained: TrainedStore) -> None:
    MlflowClient(trained.uri).create_experiment("empty")
    with pytest.raises(TrackingError, match="has no finished training run"):
        promote(PromotionRequest(experiment="empty"))


def test_a_run_without_a_best_checkpoint(trained: TrainedStore) -> None:
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        promoted("unvalidated", trained.unvalidated)
    assert Registry().aliases("unvalidated") == {}


Change = Callable[[Path], object]


@pytest.fixture
def changed_run(trained: TrainedStore, tmp_path: Path) -> Callable[[Change], str]:
    """Return a function that makes a copy of the strong run with a changed best checkpoint."""

    def make(change: Change) -> str:
        client = MlflowClient(trained.uri)
        run = client.get_run(trained.strong)
        best = download_artifact(trained.strong, "best", tmp_path / "copy")
        change(best)
        copy = client.create_run(run.info.experiment_id, tags=dict(run.data.tags))
        client.log_artifacts(copy.info.run_id, str(best), "best")
        client.set_terminated(copy.info.run_id)
        shutil.rmtree(best)
        return str(copy.info.run_id)

    return make


def change_weights(folder: Path, change: Callable[[torch.Tensor], object]) -> None:
    edit_weights(folder, lambda tensors: change(tensors["entity.weight"]))


def change_manifest(folder: Path, **values: object) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(values))


def test_a_candidate_that_does_not_reproduce_its_metric(
    trained: TrainedStore, changed_run: Callable[[Change], str]
) -> None:
    run_id = changed_run(lambda folder: change_weights(folder, lambda w: w[:40].mul_(-1)))
    with pytest.raises(PromotionRefused, match=r"valid/mrr .* now, .* recorded: differs by"):
        promoted("irreproducible", run_id)
    assert aliases("irreproducible") == {"challenger": "1"}


def test_a_temperature_that_is_not_used_is_said(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Calibration(1.0, 10, 2.0, 2.0, 0.027, 0.027, not_fitted_because="it got worse")
    monkeypatch.setattr(Graphs, "calibrate", lambda self, task, model: found)
    result = promote(PromotionRequest(trained.strong, name="warm", dry_run=True))
    (check,) = [check for check in result.checks if check.name == "calibration"]
    assert check.detail == "temperature 1.000 on 10 validation queries, not fitted: it got worse"


def test_a_difference_just_beyond_the_tolerance_is_seen(
    trained: TrainedStore, changed_run: Callable[[Change], str]
) -> None:
    def shift(by: float) -> Change:
        def change(folder: Path) -> None:
            content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
            metrics = content["metrics"]
            change_manifest(folder, metrics=metrics | {"valid/mrr": metrics["valid/mrr"] + by})

        return change

    promote(PromotionRequest(changed_run(shift(5e-7)), name="tolerance", dry_run=True))
    with pytest.raises(PromotionRefused, match=r"differs by 2e-06, at most 1e-06 is allowed"):
        promote(PromotionRequest(changed_run(shift(2e-6)), name="tolerance", dry_run=True))


FINAL: dict[str, tuple[Change, str]] = {
    "torn": (
        lambda folder: (folder / MODEL_FILE).write_bytes(b"torn"),
        "changed or damaged since it was written",
    ),
    "nan weights": (
        lambda folder: change_weights(folder, lambda w: w[3].fill_(float("nan"))),
        r"entity\.weight holds NaN or infinity",
    ),
    "nan metric": (
        lambda folder: change_manifest(folder, metrics={"valid/mrr": float("nan")}),
        "recorded valid/mrr is nan",
    ),
    "no metric": (
        lambda folder: change_manifest(folder, metrics={}),
        "recorded valid/mrr is missing",
    ),
    "pickle": (
        lambda folder: (folder / "model.pkl").write_bytes(b"\x80\x04."),
        r"model\.pkl is neither safetensors nor JSON nor Parquet",
    ),
    "data": (
        lambda folder: change_manifest(folder, data_fingerprint="0" * 16),
        "the data now has fingerprint",
    ),
}


@pytest.mark.parametrize("what", FINAL)
def test_what_cannot_be_used_is_not_registered_even_by_force(
    trained: TrainedStore, changed_run: Callable[[Change], str], what: str
) -> None:
    change, message = FINAL[what]
    run_id = changed_run(change)
    for force in ("", "I want it"):
        with pytest.raises(PromotionRefused, match=f"not registered: .*{message}"):
            promoted("unusable", run_id, force=force)
    assert Registry().aliases("unusable") == {}


def test_a_run_of_another_task(trained: TrainedStore, changed_run: Callable[[Change], str]) -> None:
    run_id = changed_run(lambda folder: change_manifest(folder, task="speech"))
    with pytest.raises(CheckpointError, match="task is 'speech', which does not use data of kind"):
        promoted("speech", run_id)


def test_a_champion_that_cannot_be_read_is_replaced_by_force_only(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion("broken", trained.weak)

    def broken(version: RegisteredVersion, folder: Path) -> object:
        raise CheckpointError("model.safetensors: not a readable safetensors file")

    monkeypatch.setattr("clew.workflows.gate.open_version", broken)
    with pytest.raises(PromotionRefused, match=r"version 1 .* cannot be evaluated"):
        promoted("broken", trained.strong)
    promoted("broken", trained.strong, force="the champion's file is gone")
    assert aliases("broken")["champion"] == "3"


@pytest.mark.parametrize("lost", ["champion", "previous"])
def test_a_registry_that_goes_away_is_put_right_by_the_next_command(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    name = f"away {lost}"
    champion(name, trained.weak)
    original = Registry.set_alias

    def gone(self: Registry, name: str, alias: str, number: str | None) -> None:
        if alias == lost:
            raise TrackingError("the registry does not answer")
        original(self, name, alias, number)

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "set_alias", gone)
        with pytest.raises(TrackingError):
            promoted(name, trained.strong)
    assert aliases(name)["champion"] == "1"
    assert promoted(name, trained.strong) == "3"
    assert aliases(name) == {"champion": "3", "previous": "1"}
    left = Registry().version(name, "2")
    assert left.tags[names.TAG_VALIDATION] == names.VALIDATION_FAILED


def test_an_alias_that_somebody_moves_at_the_same_time_is_noticed(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion("same time", trained.weak)
    original = Registry.set_alias

    def overtaken(self: Registry, name: str, alias: str, number: str | None) -> None:
        original(self, name, alias, number)
        if alias == "champion":
            original(self, name, alias, "1")

    monkeypatch.setattr(Registry, "set_alias", overtaken)
    with pytest.raises(PromotionRefused):
        promoted("same time", trained.strong)
    found = aliases("same time")
    assert (found["champion"], found["challenger"]) == ("1", "2")


def test_an_upload_that_fails_leaves_no_version(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: MlflowClient, *arguments: object, **settings: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifacts", full)
        with pytest.raises(TrackingError, match="No space left on device"):
            promoted("full", trained.strong)
    assert Registry().aliases("full") == {}


def test_of_two_promotions_at_once_the_loser_is_told(
    trained: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the strong run is being checked, somebody promotes the weak one."""
    original = Gate.served
    others: list[str | None] = []

    def meanwhile(gate: Gate, registry: Registry, version: RegisteredVersion) -> Check:
        if not others:
            others.append(None)
            others[0] = promoted("raced", trained.weak)
        return original(gate, registry, version)

    monkeypatch.setattr(Gate, "served", meanwhile)
    with pytest.raises(PromotionRefused, match="somebody else moved it meanwhile"):
        promoted("raced", trained.strong)
    winner = others[0]
    assert winner == "2"
    assert aliases("raced") == {"champion": winner, "challenger": "1"}
    loser = Registry().version("raced", "1")
    assert "somebody else" in loser.tags[names.TAG_REFUSED_BECAUSE]


@pytest.mark.parametrize("as_json", [False, True])
def test_command_line(
    trained: TrainedStore, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    name = f"command-{as_json}"
    options = [f"--name={name}", "--json"] if as_json else [f"--name={name}"]
    assert run_command(["promote", f"--run-id={trained.strong}", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["name"] for line in lines[:-1]] == list(CHECKS)
        assert json.loads(lines[-1])["result"]["uri"] == f"models:/{name}@champion"
    else:
        assert [line.split("  ")[0].split()[0] for line in lines[:8]] == ["ok"] * 8
        assert f"models:/{name}@champion" in lines
    assert run_command(["promote", f"--run-id={trained.weak}", *options]) == 3
    captured = capsys.readouterr()
    (error,) = captured.err.splitlines()[-1:]
    assert error.startswith("clew: error: run ")
    assert run_command(["promote", f"--run-id={trained.unvalidated}", *options]) == 2
    assert run_command(["promote", "--rollback", *options]) == 2
    assert "there is no earlier one to go back to" in capsys.readouterr().err


def test_default_name_is_the_data_set(trained: TrainedStore) -> None:
    result = promote(PromotionRequest(trained.strong, dry_run=True))
    assert result.name == "clew-umls"
    assert names.default_model_name("my data/set.v1") == "clew-my-data-set-v1"
