"""Studies: order of cells, ratios, verdicts, failures, and going on where one stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from clew import names
from clew.config.schema import RunConfig
from clew.config.study import Claim, load_study
from clew.errors import ConfigError, OutOfMemoryError, UsageError
from clew.runs.base import check_key
from clew.runs.mlflow_store import open_tracker
from clew.workflows import compare as workflow
from clew.workflows import study_cells
from clew.workflows.study_report import Difference, metric_name, verdict_of
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
    """Replace training by a recorded run whose speed follows from variant and seed."""
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


def test_seeds_are_interleaved_and_a_failed_cell_stops_nothing(
    trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    lines = list(workflow.compare(load_study(write(tmp_path))))
    assert trained == [(v, seed) for seed in (0, 1, 2) for v in ("fp32", "mixed")]
    assert lines[3] == "[4/6] mixed, seed 1: out of memory on a pocket calculator"
    content, text = study_files(tracking_store)
    speeds = {(r["variant"], r["metric"]): r for r in content["results"]}
    assert speeds["fp32", SPEED]["median"] == 101.0
    assert speeds["fp32", SPEED]["spread"] == 2.0
    assert speeds["mixed", SPEED]["ratio"] == pytest.approx(301.0 / 101.0)
    assert [c["verdict"] for c in content["claims"]] == ["holds", "holds"]
    assert "| `mixed` | 301 ± 1 (2.98) | 0.4 ± 0 (1.00) |" in text
    assert "- mixed, seed 1: out of memory on a pocket calculator" in text


def test_a_study_goes_on_where_it_stopped(trained: list[tuple[str, int]], tmp_path: Path) -> None:
    study = load_study(write(tmp_path), seeds=[0])
    first = list(workflow.compare(study))
    again = list(workflow.compare(study))
    assert trained == [("fp32", 0), ("mixed", 0)], "finished cells are not run again"
    assert again[0] == first[0]
    list(workflow.compare(load_study(tmp_path / "study.yaml", seeds=[0, 2])))
    assert trained[2:] == [("fp32", 2), ("mixed", 2)]


def test_without_a_reference_there_is_nothing_to_compare(
    trained: list[tuple[str, int]], tmp_path: Path
) -> None:
    variants = {"mixed": {"optimizations.use_mixed_precision": True}, "fp32": {}}
    with pytest.raises(UsageError, match="no run of the reference 'mixed' finished"):
        list(workflow.compare(load_study(write(tmp_path, variants=variants), seeds=[1])))


@pytest.mark.parametrize(
    ("ratio", "needs", "has_gpu", "expected"),
    [
        (2.5, "any", False, "holds"),
        (1.5, "any", False, "does not hold"),
        (2.5, "gpu", False, "cannot be shown on this machine: needs a GPU"),
        (2.5, "gpu", True, "holds"),
        (None, "any", True, "cannot be shown on this machine: not measured here"),
    ],
)
def test_verdicts(ratio: float | None, needs: Any, has_gpu: bool, expected: str) -> None:
    claim = Claim(variant="mixed", metric=SPEED, at_least=2, text="2x", needs=needs)
    assert verdict_of(claim, ratio, has_gpu=has_gpu) == expected


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
        ({"command": "tracin"}, "belong together"),
        ({"command": "tracin", "tests": "t.txt"}, "variant 'mixed' sets optimizations"),
        (
            {"claims": [CLAIM | {"against": "x"}]},
            "claim about variant 'x'",
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


def test_a_claim_may_be_about_a_value_or_another_variant(
    trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    claims = [
        CLAIM | {"about": "value", "at_least": 300, "text": "at 300"},
        CLAIM | {"about": "value", "at_least": 302, "text": "at 302"},
        CLAIM | {"against": "mixed", "at_least": 1.5, "text": "faster than itself"},
    ]
    list(workflow.compare(load_study(write(tmp_path, claims=claims, seeds=[0]))))
    found = study_files(tracking_store)[0]["claims"]
    assert [claim["verdict"] for claim in found] == ["holds", "does not hold", "does not hold"]
    assert [claim["ratio"] for claim in found] == [300.0, 300.0, 1.0]


def test_a_difference_is_taken_seed_by_seed_with_its_interval() -> None:
    base = {0: 0.50, 1: 0.70, 2: 0.60, 9: 0.10}
    found = Difference.paired({0: 0.51, 1: 0.72, 2: 0.63, 8: 0.90}, base)
    assert found is not None
    assert found.mean == pytest.approx(0.02)
    half = 4.302653 * 0.01 / 3**0.5  # Student's t with two degrees of freedom, 97.5 %
    assert (found.low, found.high) == pytest.approx((0.02 - half, 0.02 + half), rel=1e-5)
    assert Difference.paired({0: 1.0}, base) is None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.001, 0.001, "holds"),
        (-0.002, 0.001, "cannot be told from so few seeds"),
        (-0.003, -0.002, "does not hold"),
        (0.002, 0.003, "does not hold"),
        (-0.01, 0.01, "cannot be told from so few seeds"),
    ],
)
def test_an_interval_holds_only_as_a_whole(low: float, high: float, expected: str) -> None:
    claim = Claim(variant="mixed", metric="test/mrr", at_least=-0.001, at_most=0.001, text="t")
    assert Difference((low + high) / 2, low, high).judge(claim) == expected


def test_a_claim_may_be_about_a_difference(
    trained: list[tuple[str, int]], tracking_store: Path, tmp_path: Path
) -> None:
    claims = [CLAIM | {"about": "difference", "at_least": 199, "at_most": 201, "text": "by 200"}]
    list(workflow.compare(load_study(write(tmp_path, claims=claims))))
    (found,) = study_files(tracking_store)[0]["claims"]
    assert (found["ratio"], found["verdict"]) == (200.0, "holds")
    assert found["claim"] == "by 200 (95 % interval +2e+02 to +2e+02)"


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
        claims=[CLAIM | {"metric": names.INFLUENCE_PAIRS_PER_SECOND, "at_least": 1e-6}],
    )
    study = load_study(path)
    list(workflow.compare(study))
    content = study_files(tracking_store)[0]
    assert content["problems"] == []
    assert [claim["verdict"] for claim in content["claims"]] == ["holds"]
    client = MlflowClient(f"sqlite:///{tracking_store / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    kinds = sorted(run.data.tags["clew.kind"] for run in runs)
    assert kinds == ["compare", "trace", "trace", "train"]
    assert len(list(workflow.compare(study))) > 0
    assert len(client.search_runs([e.experiment_id for e in client.search_experiments()])) == 5
