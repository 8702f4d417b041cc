"""Studies: order of cells, ratios, failures, and resumption."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from clew import names
from clew.config.files import studies
from clew.config.schema import RunConfig
from clew.config.study import load_study, metric_name
from clew.errors import ConfigError, DataError, OutOfMemoryError, UsageError
from clew.runs.base import check_key
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.metrics import Estimate
from clew.workflows import compare as study_cells
from clew.workflows import compare as workflow
from clew.workflows.train import TrainResult

ROOT = Path(__file__).parents[2]
SPEED = names.EXAMPLES_PER_SECOND
STUDY: dict[str, Any] = {
    "name": "speeds",
    "base": str(ROOT / "experiments/link_prediction/umls.yaml"),
    "variants": {"fp32": {}, "mixed": {"optimizations.use_mixed_precision": True}},
    "seeds": [0, 1, 2],
    "measures": [{"metric": SPEED, "label": "examples/s"}, {"metric": "test/mrr", "label": "MRR"}],
}


def write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


@pytest.fixture
def trained(tracking_store: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replace training by a recorded run whose speed is computed from variant and seed."""
    done: list[tuple[str, int]] = []

    def train(
        config: RunConfig, *, parent_run_id: str | None, tags: Mapping[str, str]
    ) -> TrainResult:
        mixed, seed = config.optimizations.use_mixed_precision, config.training.seed
        done.append(("mixed" if mixed else "fp32", seed))
        if mixed and seed == 1:
            raise OutOfMemoryError("out of memory on a pocket calculator")
        metrics = {SPEED: (300.0 if mixed else 100.0) + seed, "test/mrr": 0.4}
        with open_tracker(
            config.tracking, kind=names.KIND_TRAIN, tags=tags, parent_run_id=parent_run_id
        ) as tracker:
            tracker.metrics(metrics, step=1)
        return TrainResult(tracker.run_id, "fp32", metrics)

    monkeypatch.setattr(study_cells, "train_in_child", train)
    return done


def study_files(store: Path) -> tuple[dict[str, Any], str]:
    client = MlflowClient(f"sqlite:///{store / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments, "tags.`clew.kind` = 'compare'")
    folder = Path(client.download_artifacts(runs[0].info.run_id, "study", str(store)))
    return json.loads((folder / "study.json").read_text()), (folder / "study.md").read_text()


def test_rounds_are_interleaved_and_a_failed_cell_stops_nothing(
    trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    lines = list(workflow.compare(load_study(write(tmp_path))))
    assert trained == [
        ("fp32", 0), ("mixed", 0), ("mixed", 1), ("fp32", 1), ("fp32", 2), ("mixed", 2),
    ], "every second round runs in reversed order, so that a drift cancels"  # fmt: skip
    assert lines[2] == "[3/6] mixed, seed 1: out of memory on a pocket calculator"
    content, text = study_files(tracking_store)
    speeds = {(r["variant"], r["metric"]): r for r in content["results"]}
    assert speeds["fp32", SPEED]["median"] == 101.0
    assert speeds["fp32", SPEED]["values"] == {"0": 100.0, "1": 101.0, "2": 102.0}
    ratio = speeds["mixed", SPEED]["ratio"]
    assert ratio["value"] == pytest.approx(math.sqrt(3.0 * 302 / 102))
    assert (ratio["low"] < ratio["value"] < ratio["high"], ratio["rounds"]) == (True, 2)
    assert "| `mixed` | 301 (2.98, 2.74 to 3.24) | 0.4 (1, 1 to 1) |" in text
    assert "- mixed, seed 1: out of memory on a pocket calculator" in text


MANY = [{"metric": SPEED, "label": f"speed {number}"} for number in range(6)]


@pytest.mark.parametrize("changes", [{}, {"seeds": [0]}, {"seeds": [1, 2], "measures": MANY}])
def test_the_last_words_have_eight_lines_and_the_table_is_printed_on_request(
    trained: list[tuple[str, int]], tmp_path: Path, changes: dict[str, Any]
) -> None:
    study = load_study(write(tmp_path, **changes))
    lines = list(workflow.compare(study, typed="my.yaml"))
    verdict = [line for line in lines if not line.startswith("[")]
    assert 4 <= len(verdict) <= 8
    assert "clew compare my.yaml" in verdict[-1]
    assert any("`mixed` 2.9" in line or "`mixed` 3 " in line for line in verdict)
    assert ("out of memory" in "".join(verdict)) == (1 in study.seeds)
    everything = list(workflow.compare(study, typed="my.yaml", everything=True))
    assert any(line.startswith("| `mixed` |") for line in everything[len(lines) :])


def test_the_last_words_count_the_cells_that_failed(
    trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    mixed = {"optimizations.use_mixed_precision": True}
    variants = {"fp32": {}, "mixed": mixed, "again": {**mixed, "training.num_epochs": 7}}
    lines = list(workflow.compare(load_study(write(tmp_path, variants=variants), seeds=[1])))
    assert next(line for line in lines if "did not finish" in line).endswith(", and 1 more")


def test_a_study_goes_on_where_it_stopped(trained: list[tuple[str, int]], tmp_path: Path) -> None:
    study = load_study(write(tmp_path), seeds=[0])
    first = list(workflow.compare(study))
    again = list(workflow.compare(study))
    assert trained == [("fp32", 0), ("mixed", 0)], "finished cells are not run again"
    assert again[0] == first[0]
    list(workflow.compare(load_study(tmp_path / "study.yaml", seeds=[0, 2])))
    assert trained[2:] == [("mixed", 2), ("fp32", 2)]


def test_without_a_reference_there_is_nothing_to_compare(
    trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    variants = {"mixed": {"optimizations.use_mixed_precision": True}, "fp32": {}}
    with pytest.raises(UsageError, match="no run of the reference 'mixed' finished"):
        list(workflow.compare(load_study(write(tmp_path, variants=variants), seeds=[1])))


def test_the_interval_of_a_ratio_is_students_over_logarithms() -> None:
    found = Estimate.of_ratios({0: 2.0, 1: 8.0, 2: 4.0, 7: 1.0}, {0: 1.0, 1: 2.0, 2: 2.0, 9: 1.0})
    assert found is not None
    half = 4.302653 * math.log(2.0) / 3  # ratios 2, 4, 2: the logarithms' deviation is ln 2 / 3^0.5
    middle = math.log(16.0) / 3
    assert found.value == pytest.approx(math.exp(middle))
    assert found.low == pytest.approx(math.exp(middle - half), rel=1e-5)
    assert found.high == pytest.approx(math.exp(middle + half), rel=1e-5)
    assert found.rounds == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"one": {}}}, "variants"),
        (
            {"variants": {"a": {}, "b": {"training.bach_size": 3}}},
            "bach_size: unknown key",
        ),
        ({"seed": [1]}, "valid: name, command"),
        (
            {"measures": [{"metric": "test/mrr", "label": "MRR", "unit": "s"}]},
            r"measures\.0\.unit: unknown key; valid: metric, label$",
        ),
        ({"command": "tracin"}, "go together"),
        ({"command": "tracin", "tests": "t.txt"}, "variant 'mixed' sets optimizations"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml: no such configuration file"),
    ],
)
def test_mistakes_in_a_study_are_found_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, **changes))


def test_the_shipped_studies_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    paths = sorted((ROOT / "experiments/studies").glob("*.yaml"))
    assert paths
    for path in paths:
        for size in ("quick", "full"):
            study = load_study(path, size=size)
            assert len(study.seeds) >= 3, "an interval needs rounds"
            keys = {metric_name(variant) for variant in study.variants}
            assert len(keys) == len(study.variants)
            for key in keys:
                check_key(f"ratio/{key}/{SPEED}")


def test_a_size_changes_base_overrides_and_seeds(tmp_path: Path) -> None:
    sizes = {
        "quick": {"overrides": {"training.num_epochs": 1}, "seeds": [7]},
        "full": {"overrides": {"training.num_epochs": 99}},
    }
    path = write(tmp_path, sizes=sizes, overrides={"training.batch_size": 64})
    quick, full = load_study(path), load_study(path, size="full", seeds=[3])
    assert (quick.name, quick.seeds) == ("speeds (quick)", [7])
    assert quick.config("fp32", 7).training.num_epochs == 1
    assert full.config("mixed", 3).training.num_epochs == 99
    assert full.config("mixed", 3).training.batch_size == 64
    assert full.seeds == [3]
    assert quick.cell_id("fp32", 7) != full.cell_id("fp32", 7)
    with pytest.raises(ConfigError, match="no size 'huge'; valid: quick, full"):
        load_study(path, size="huge")


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the source tree look as if it had no uncommitted changes."""
    for module in (workflow, study_cells):
        monkeypatch.setattr(module, "git_commit", lambda: "1" * 40)


def test_results_are_written_where_they_are_wanted(
    committed: None, trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    output, reader = tmp_path / "results" / "speeds.json", tmp_path / "reader"
    output.parent.mkdir()
    output.write_text("old")
    reader.hardlink_to(output)
    lines = list(workflow.compare(load_study(write(tmp_path)), output=output))
    assert any(f" and {output}" in line for line in lines)
    assert reader.read_text() == "old", "the new file takes the old one's place when it is whole"
    content = json.loads(output.read_text())
    assert content == study_files(tracking_store)[0]
    assert (content["commit"], content["seeds"]) == ("1" * 40, [0, 1, 2])
    assert content["has_gpu"] is False


def test_no_result_file_is_written_from_a_tree_with_uncommitted_changes(
    trained: list[tuple[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(workflow, "git_commit", lambda: "1" * 40 + "-dirty")
    output = tmp_path / "speeds.json"
    lines = list(workflow.compare(load_study(write(tmp_path)), output=output))
    assert not output.exists()
    said = (
        f"{output} is not written: the tree has uncommitted changes; commit them and measure again"
    )
    assert any(line.endswith(said) for line in lines)
    assert said in caplog.messages, "before the first cell too"
    assert any("2.98" in line for line in lines), "the figures are printed still"


@pytest.mark.slow
def test_a_tracin_study_explains_one_model_by_every_variant(
    tracking_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    tests = tmp_path / "tests.txt"
    bundled = ROOT / "platform/clew/link_prediction/bundled/umls"
    facts = (bundled / "valid.txt").read_text().splitlines()[:3]
    tests.write_text("\n".join(facts) + "\n")
    small = {"model.embedding_dim": 24, "model.output_channels": 4, "training.num_epochs": 1}
    path = write(
        tmp_path,
        command="tracin",
        tests=str(tests),
        overrides=small | {"evaluation.enabled": False, "influence.with_cosine": False},
        variants={"fp32": {}, "mixed": {"influence.use_mixed_precision": True}},
        seeds=[0],
        measures=[{"metric": names.INFLUENCE_PAIRS_PER_SECOND, "label": "pairs/s"}],
    )
    study = load_study(path)
    list(workflow.compare(study))
    content = study_files(tracking_store)[0]
    assert content["problems"] == []
    ratio = content["results"][1]["ratio"]
    assert ratio["value"] > 0
    assert (ratio["low"], ratio["high"], ratio["rounds"]) == (None, None, 1), "no interval of one"
    client = MlflowClient(f"sqlite:///{tracking_store / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    kinds = sorted(run.data.tags["clew.kind"] for run in runs)
    assert kinds == ["compare", "trace", "trace", "train"]
    assert len(list(workflow.compare(study))) > 0
    assert len(client.search_runs([e.experiment_id for e in client.search_experiments()])) == 5


@pytest.mark.parametrize("tests", ["missing.txt", "virus,causes", "nobody,causes,virus"])
def test_tests_that_cannot_be_explained_are_found_before_anything_trains(
    trained: list[tuple[str, int]], tmp_path: Path, tests: str
) -> None:
    variants: dict[str, Any] = {"fp32": {}, "mixed": {"influence.use_mixed_precision": True}}
    path = write(tmp_path, command="tracin", tests=tests, variants=variants)
    with pytest.raises(DataError):
        list(workflow.compare(load_study(path)))
    assert trained == []


@pytest.mark.parametrize("study", sorted(studies()))
def test_the_tests_of_a_study_that_ships_with_clew_are_found_in_any_folder(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = workflow.with_tests(load_study(study)).tests
    assert found is None or Path(found).is_file()


def test_a_seed_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds: 3 is given twice"):
        load_study(write(tmp_path, seeds=[3, 4, 3]))
    with pytest.raises(ConfigError, match="seeds: 1 is given twice"):
        load_study(write(tmp_path), seeds=[1, 1])


@pytest.mark.parametrize("name", ["seed", "training.seed"])
def test_a_seed_that_the_rounds_would_replace_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="give seeds"):
        load_study(write(tmp_path, variants={"one": {name: 1}, "two": {name: 2}}))


def test_a_variant_wins_over_the_settings_of_all_under_either_name(tmp_path: Path) -> None:
    variants = {"a": {}, "b": {"optimizer.learning_rate": 0.25}}
    study = load_study(write(tmp_path, overrides={"lr": 0.5}, variants=variants))
    assert [study.config(v, 0).optimizer.learning_rate for v in variants] == [0.5, 0.25]


@pytest.mark.parametrize("variant", ["", "%", "a/b", "x" * 300])
def test_a_variant_whose_ratios_could_not_be_stored_is_refused(
    tmp_path: Path, variant: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_study(write(tmp_path, variants={"a b": {}, variant: {}}))
    assert "variants" in str(error.value)


@pytest.mark.parametrize("seeds", [[0, -1], [0, 2**32]])
def test_every_seed_is_checked_before_anything_runs(tmp_path: Path, seeds: list[int]) -> None:
    with pytest.raises(ConfigError, match=f"training.seed.*{seeds[1]}"):
        load_study(write(tmp_path), seeds=seeds)


def test_a_study_without_its_metrics_ends_with_the_first_run(
    trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    measures = [{"metric": "test/mmr", "label": "MRR"}, {"metric": "test/x", "label": "x"}]
    with pytest.raises(UsageError, match=r"test/mmr or test/x.*'test/mrr'"):
        list(workflow.compare(load_study(write(tmp_path, measures=measures))))
    assert trained == [("fp32", 0)]


def test_a_metric_that_no_run_has_is_named(
    trained: list[tuple[str, int]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measures = [{"metric": "test/mmr", "label": "MRR"}, {"metric": SPEED, "label": "speed"}]
    list(workflow.compare(load_study(write(tmp_path, measures=measures))))
    assert "test/mmr" in caplog.text
    assert SPEED not in caplog.text


def test_cells_on_other_data_run_again(trained: list[tuple[str, int]], tmp_path: Path) -> None:
    triples = {"train": "a\tr\tb\nb\tr\tc\n", "valid": "a\tr\tc\n", "test": "b\tr\ta\n"}
    files = {split: tmp_path / f"{split}.txt" for split in triples}
    for split, path in files.items():
        path.write_text(triples[split])
    data = {f"data.{split}": str(path) for split, path in files.items()}
    study = load_study(write(tmp_path, overrides=data), seeds=[0])
    list(workflow.compare(study))
    list(workflow.compare(study))
    assert len(trained) == 2
    files["train"].write_text(triples["train"] + "c\tr\ta\n")
    list(workflow.compare(study))
    assert len(trained) == 4


def test_cells_of_other_code_run_again(
    trained: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(write(tmp_path), seeds=[0])
    list(workflow.compare(study))
    list(workflow.compare(study))
    assert len(trained) == 2
    monkeypatch.setattr(workflow, "code_digest", lambda: "changed, not committed")
    list(workflow.compare(study))
    assert len(trained) == 4
