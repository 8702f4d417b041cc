"""`evaluate` on a run, a registered model and a checkpoint folder, and the run that it records."""

from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from clew import names
from clew.errors import CheckpointError, ConfigError, DataError, TrackingError
from clew.runs.reading.runs import download_artifact, find_run
from clew.training.manifest import MODEL_FILE, read_manifest
from clew.workflows.evaluate import evaluate
from clew.workflows.train import train
from tests.workflows.trained import ROOT, TrainedStore, small_config


def test_a_run_is_evaluated_as_its_training_did(trained: TrainedStore) -> None:
    result = evaluate(trained.strong, "test")
    training = find_run(trained.strong)
    for key, value in result.metrics.items():
        if "/seen_" not in key:
            assert training.metrics[key] == pytest.approx(value, abs=1e-9)
    assert result.metrics["test/seen_mrr"] > result.metrics["test/mrr"]
    assert "test/mrr" in result.metrics
    assert "test/mrr" in result.table(everything=True)
    assert result.run_id is not None
    recorded = find_run(result.run_id)
    assert recorded.status == "FINISHED"
    assert recorded.tags[names.TAG_KIND] == names.KIND_EVALUATE
    assert recorded.tags[names.TAG_SOURCE_RUN] == trained.strong
    assert recorded.tags[names.TAG_DATA_FINGERPRINT] == training.tags[names.TAG_DATA_FINGERPRINT]
    assert recorded.metrics["test/mrr"] == pytest.approx(result.metrics["test/mrr"])
    client = MlflowClient(trained.uri)
    assert [info.path for info in client.list_artifacts(result.run_id, "evaluation")] == [
        "evaluation/test_by_relation.parquet"
    ]


def test_validation_equals_what_the_best_checkpoint_recorded(
    trained: TrainedStore, tmp_path: Path
) -> None:
    folder = download_artifact(trained.strong, "best", tmp_path)
    result = evaluate(str(folder), "valid")
    recorded = read_manifest(folder).metrics["valid/mrr"]
    assert result.metrics["valid/mrr"] == pytest.approx(recorded, abs=1e-9)


def test_a_split_that_is_none(trained: TrainedStore) -> None:
    with pytest.raises(ConfigError, match="'tset'"):
        evaluate(trained.strong, "tset")


def test_a_run_that_is_none(trained: TrainedStore) -> None:
    with pytest.raises(CheckpointError, match="0123"):
        evaluate("0123")
    with pytest.raises(TrackingError):
        evaluate("0123" * 8)


def test_a_run_without_a_best_checkpoint(trained: TrainedStore) -> None:
    with pytest.raises(CheckpointError, match=r"evaluation\.enabled"):
        evaluate(trained.unvalidated)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "models:/name@alias"),
        ("clew-umls@champion", "models:/clew-umls@champion"),
        ("models:/nothing@champion", "'nothing'"),
        ("models:/nothing/7", "'nothing'.* 7"),
        ("models:/nothing", "'models:/nothing'"),
        ("models:/@champion", "'models:/@champion'"),
        ("./no/such/folder", r"\./no/such/folder"),
    ],
)
def test_models_that_are_none(trained: TrainedStore, model: str, message: str) -> None:
    with pytest.raises((ConfigError, TrackingError, CheckpointError), match=message):
        evaluate(model)


def test_other_data_than_in_training_is_refused(trained: TrainedStore, tmp_path: Path) -> None:
    """The files at the recorded paths have changed since the training."""
    run = find_run(trained.other)
    path = Path(run.params["cfg.data.train"])
    before = path.read_text(encoding="utf-8")
    path.write_text(before + before.splitlines()[0] + "\n", encoding="utf-8")
    try:
        with pytest.raises(CheckpointError):
            evaluate(trained.other)
    finally:
        path.write_text(before, encoding="utf-8")


def test_a_split_without_examples(trained: TrainedStore, tmp_path: Path) -> None:

    run = find_run(trained.other)
    config = small_config(
        data__train=run.params["cfg.data.train"],
        data__valid=run.params["cfg.data.valid"],
        training__num_epochs=1,
        tracking__experiment="untested",
    )
    run_id = train(config).run_id
    assert run_id is not None
    with pytest.raises(DataError):
        evaluate(run_id)


def test_a_torn_checkpoint_folder(trained: TrainedStore, tmp_path: Path) -> None:
    folder = download_artifact(trained.weak, "best", tmp_path)
    (folder / MODEL_FILE).unlink()
    with pytest.raises(CheckpointError):
        evaluate(str(folder))


def wrong_triples(folder: Path, split: str) -> None:
    """Write each triple of a split with the tail of another triple."""
    bundled = ROOT / f"platform/clew/link_prediction/bundled/umls/{split}.txt"
    rows = [line.split("\t") for line in bundled.read_text(encoding="utf-8").splitlines()]
    shifted = [f"{h}\t{r}\t{rows[i - 7][2]}\n" for i, (h, r, _) in enumerate(rows)]
    (folder / f"{split}_negatives.txt").write_text("".join(shifted), encoding="utf-8")


def test_triples_are_classified_against_given_wrong_ones(
    trained: TrainedStore, tmp_path: Path
) -> None:
    for split in ("valid", "test"):
        wrong_triples(tmp_path, split)
    result = evaluate(trained.strong, negatives=tmp_path)
    assert 0.53 < result.metrics["test/classification_accuracy"] <= 1.0  # chance: 0.5 +- 0.014
    assert 0.53 < result.metrics["test/classification_f1"] <= 1.0
    assert "test/mrr" in result.metrics
    with pytest.raises(ConfigError):
        evaluate(trained.strong, "valid", negatives=tmp_path)
    (tmp_path / "test_negatives.txt").unlink()
    with pytest.raises(DataError, match=r"test_negatives\.txt"):
        evaluate(trained.strong, negatives=tmp_path)


def test_triples_are_ranked_against_given_candidates(trained: TrainedStore, tmp_path: Path) -> None:
    bundled = ROOT / "platform/clew/link_prediction/bundled/umls/test.txt"
    lines = bundled.read_text(encoding="utf-8").splitlines()
    head, relation, tail = (np.array(column) for column in zip(*map(str.split, lines), strict=True))
    every = np.unique(np.concatenate([head, tail]))
    wrong = np.broadcast_to(every[:20], (len(head), 20))
    path = tmp_path / "test.npz"
    arrays = {"head": head, "relation": relation, "tail": tail}
    np.savez(path, head_neg=wrong, tail_neg=wrong, **arrays)
    result = evaluate(trained.strong, negatives=path)
    assert result.metrics["test/given_mrr"] > result.metrics["test/mrr"] > 0
    assert result.metrics["test/given_mean_rank"] <= 21


def test_triples_are_not_classified_without_validation_triples(
    tracking_store: Path, tmp_path: Path
) -> None:
    """The thresholds would be infinite, and every triple false."""
    folder = ROOT / "platform/clew/link_prediction/bundled/umls"
    files = {f"data__{split}": str(folder / f"{split}.txt") for split in ("train", "test")}
    short = {"training__num_epochs": 1, "evaluation__enabled": False, "data__name": None}
    train(small_config(**files, **short), output_dir=tmp_path / "model")
    for split in ("valid", "test"):
        wrong_triples(tmp_path, split)
    (checkpoint,) = (tmp_path / "model").glob("checkpoints/*")
    with pytest.raises(DataError, match="validation triples"):
        evaluate(str(checkpoint), negatives=tmp_path)
