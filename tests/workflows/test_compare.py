"""Studies: order of cells, ratios, verdicts, failures, and resumption."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from clew import names
from clew.config.schema import RunConfig
from clew.config.study import Claim, load_study, memory_of
from clew.errors import ConfigError, OutOfMemoryError, UsageError
from clew.runs.base import check_key
from clew.runs.mlflow_store import open_tracker
from clew.workflows import compare as study_cells
from clew.workflows import compare as workflow
from clew.workflows.study_report import Estimate, judge, metric_name
from clew.workflows.train import TrainResult

ROOT = Path(__file__).parents[2]
SPEED = names.EXAMPLES_PER_SECOND
CLAIM = {"variant": "mixed", "metric": SPEED, "at_least": 1, "text": "t"}
STUDY: dict[str, Any] = {
    "name": "speeds",
    "base": str(ROOT / "experiments/link_prediction/umls.yaml"),
    "variants": {"fp32": {}, "mixed": {"optimizations.use_mixed_precision": True}},
    "seeds": [0, 1, 2],
    "measures": [{"metric": SPEED, "label": "examples/s"}, {"metric": "test/mrr", "label": "MRR"}],
    "claims": [
        {"variant": "mixed", "metric": SPEED, "at_least": 2, "text": "2x faster"},
        {"variant": "mixed", "metric": "test/mrr", "at_least": 0.9, "text": "as accurate"},
    ],
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
    assert (folder / "study.png").read_bytes().startswith(b"\x89PNG")
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
    assert [c["verdict"] for c in content["claims"]] == ["holds", "holds"]
    assert "| `mixed` | 301 (2.98, 2.74 to 3.24) | 0.4 (1, 1 to 1) |" in text
    assert "| 2x faster | 2.98, 2.74 to 3.24 | holds |" in text
    assert "- mixed, seed 1: out of memory on a pocket calculator" in text


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


def verdict(claim: Claim, own: list[float], base: list[float], *, has_gpu: bool = False) -> str:
    """Return the verdict on a claim about `mixed`, given what each round measured."""
    study = load_study(ROOT / "experiments/studies/training.yaml")
    study = study.model_copy(update={"variants": {"fp32": {}, "mixed": {}}, "claims": [claim]})
    values = {
        ("fp32", claim.metric): dict(enumerate(base)),
        ("mixed", claim.metric): dict(enumerate(own)),
    }
    (found,) = judge(study, values, has_gpu=has_gpu)
    return found.verdict


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([2.4, 2.5, 2.6], "holds"),
        ([1.4, 1.5, 1.6], "does not hold"),
        ([1.9, 2.1, 2.6], "cannot be told from 3 rounds"),
        ([2.5], "cannot be told from 1 round"),
        ([], "open: not measured here"),
        ([2.4, 0.0, 2.6], "open: not measured here"),
    ],
)
def test_the_whole_interval_of_a_ratio_must_keep_the_bound(own: list[float], expected: str) -> None:
    claim = Claim(variant="mixed", metric=SPEED, at_least=2, text="2x")
    assert verdict(claim, own, [1.0] * 3) == expected


def test_what_slows_a_whole_round_down_cancels() -> None:
    claim = Claim(variant="mixed", metric=SPEED, at_least=1.4, at_most=1.6, text="1.5x")
    assert verdict(claim, [15.0, 1.5, 150.0], [10.0, 1.0, 100.0]) == "holds"
    assert verdict(claim, [15.0, 1.5, 150.0], [1.0, 10.0, 100.0]) == "cannot be told from 3 rounds"


def test_the_interval_of_a_ratio_is_students_over_logarithms() -> None:
    found = Estimate.of_ratios({0: 2.0, 1: 8.0, 2: 4.0, 7: 1.0}, {0: 1.0, 1: 2.0, 2: 2.0, 9: 1.0})
    assert found is not None
    half = 4.302653 * math.log(2.0) / 3  # ratios 2, 4, 2: the logarithms' deviation is ln 2 / 3^.5
    middle = math.log(16.0) / 3
    assert found.value == pytest.approx(math.exp(middle))
    assert found.low == pytest.approx(math.exp(middle - half), rel=1e-5)
    assert found.high == pytest.approx(math.exp(middle + half), rel=1e-5)
    assert found.rounds == 3


@pytest.mark.parametrize(("has_gpu", "expected"), [(True, "holds"), (False, "open: needs a GPU")])
def test_a_claim_that_needs_a_gpu_is_open_without_one(has_gpu: bool, expected: str) -> None:
    claim = Claim(variant="mixed", metric=SPEED, at_least=2, text="2x", needs="gpu")
    assert verdict(claim, [3.0, 3.1, 3.0], [1.0] * 3, has_gpu=has_gpu) == expected


def test_a_verdict_on_memory_names_the_memory() -> None:
    growth = names.PROCESS_GROWTH_GIB
    claim = Claim(variant="mixed", metric=growth, at_most=0.5, text="half the process memory")
    assert verdict(claim, [0.4, 0.41, 0.4], [1.0] * 3) == "holds (process memory)"
    assert verdict(claim, [0.9, 0.91, 0.9], [1.0] * 3) == "does not hold (process memory)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"one": {}}}, "variants"),
        (
            {"variants": {"a": {}, "b": {"training.bach_size": 3}}, "claims": []},
            "bach_size: unknown key",
        ),
        (
            {"claims": [{"variant": "x", "metric": SPEED, "at_least": 1, "text": "t"}]},
            "valid: fp32",
        ),
        ({"claims": [{"variant": "mixed", "metric": SPEED, "text": "t"}]}, "at_least or at_most"),
        ({"seed": [1]}, "valid: name, command"),
        (
            {"measures": [{"metric": "test/mrr", "label": "MRR", "unit": "s"}]},
            r"measures\.0\.unit: unknown key; valid: metric, label$",
        ),
        ({"command": "tracin"}, "go together"),
        ({"command": "tracin", "tests": "t.txt"}, "variant 'mixed' sets optimizations"),
        (
            {"claims": [CLAIM | {"against": "x"}]},
            "claim about variant 'x'",
        ),
        (
            {
                "measures": [{"metric": names.PROCESS_GROWTH_GIB, "label": "GiB"}],
                "claims": [CLAIM | {"metric": names.PROCESS_GROWTH_GIB, "text": "half of it"}],
            },
            "'half of it': the text must name process memory",
        ),
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
            assert study.claims
            assert len(study.seeds) >= 3, "an interval needs rounds"
            keys = {metric_name(variant) for variant in study.variants}
            assert len(keys) == len(study.variants)
            for key in keys:
                check_key(f"ratio/{key}/{SPEED}")


def test_every_claim_of_clean_up_and_of_gpu_memory_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    for path in sorted((ROOT / "experiments/studies").glob("*.yaml")):
        for claim in load_study(path).claims:
            is_cleanup = claim.text.startswith("clean-up")
            is_gpu = memory_of(claim.metric) == "GPU memory"
            assert claim.needs == "gpu" or not (is_cleanup or is_gpu), claim.text


def test_the_shipped_claims_are_cited_as_they_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    copies = {path.name: path for path in (ROOT / "tests").glob("**/[1-5]-*.md")}
    for path in sorted((ROOT / "experiments/studies").glob("*.yaml")):
        for claim in load_study(path).claims:
            cited = re.fullmatch(r'(\d-[\w-]+\.md), (.+?): "(.+)"', claim.source)
            assert cited, f"{claim.text}: {claim.source!r} names no document, section and words"
            if copies:
                text = re.sub(r"[*`]", "", copies[cited[1]].read_text(encoding="utf-8"))
                assert cited[2] in text
                assert cited[3] in text
    if not copies:
        pytest.skip("the words were not compared: no copies of the guides in tests/")


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


def test_a_claim_may_be_about_a_value_a_difference_or_another_variant(
    trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    claims = [
        CLAIM | {"about": "value", "at_least": 280, "text": "at 280"},
        CLAIM | {"about": "value", "at_least": 400, "text": "at 400"},
        CLAIM | {"against": "mixed", "at_least": 1.5, "text": "faster than itself"},
        CLAIM | {"about": "difference", "at_least": 199, "at_most": 201, "text": "by 200"},
    ]
    list(workflow.compare(load_study(write(tmp_path, claims=claims))))
    found = study_files(tracking_store)[0]["claims"]
    assert [claim["verdict"] for claim in found] == [
        "holds", "does not hold", "does not hold", "holds",
    ]  # fmt: skip
    assert [claim["measured"]["value"] for claim in found] == [301.0, 301.0, 1.0, 200.0]


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
    assert lines[-1] == f"written to {output}"
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
    assert lines[-1] == said
    assert said in caplog.messages, "before the first cell too"
    assert any(line.startswith("| 2x faster |") for line in lines), "the figures are printed still"


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
        claims=[
            CLAIM | {"metric": names.INFLUENCE_PAIRS_PER_SECOND, "at_least": 1e-6, "about": "value"}
        ],
    )
    study = load_study(path)
    list(workflow.compare(study))
    content = study_files(tracking_store)[0]
    assert content["problems"] == []
    assert [claim["verdict"] for claim in content["claims"]] == ["cannot be told from 1 round"]
    client = MlflowClient(f"sqlite:///{tracking_store / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    kinds = sorted(run.data.tags["clew.kind"] for run in runs)
    assert kinds == ["compare", "trace", "trace", "train"]
    assert len(list(workflow.compare(study))) > 0
    assert len(client.search_runs([e.experiment_id for e in client.search_experiments()])) == 5


def test_a_seed_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds: 3 is given twice"):
        load_study(write(tmp_path, seeds=[3, 4, 3]))
    with pytest.raises(ConfigError, match="seeds: 1 is given twice"):
        load_study(write(tmp_path), seeds=[1, 1])


def test_a_claim_with_bounds_that_exclude_each_other_is_refused(tmp_path: Path) -> None:
    claim = STUDY["claims"][0] | {"at_least": 2, "at_most": 1}
    with pytest.raises(ConfigError, match=r"at_least 2\.0 is more than at_most 1\.0"):
        load_study(write(tmp_path, claims=[claim]))
