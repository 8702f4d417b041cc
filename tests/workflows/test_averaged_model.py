"""A run with an average of its parameters: which commands use the average, and which the steps."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from clew import names
from clew.errors import CheckpointError
from clew.link_prediction.sources import BUNDLED
from clew.runs.reading.runs import download_artifact
from clew.training.manifest import MODEL_FILE
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.explaining.tracin import tracin
from clew.workflows.export import export
from clew.workflows.predict import asked, predict
from clew.workflows.promote import PromotionRequest, promote
from clew.workflows.train import train
from tests.workflows.trained import TrainedStore, small_config

LINE = (BUNDLED / "umls" / "test.txt").read_text().splitlines()[0]
TEST = LINE.replace("\t", ",")
DECAY = 0.9


@pytest.fixture(scope="module")
def run_id(trained_runs: TrainedStore) -> str:
    averaged = small_config(
        training__ema_decay=DECAY,
        training__checkpoint_frequency=2,
        tracking__experiment="averaged",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", trained_runs.uri)
        return train(averaged).run_id or ""


@pytest.fixture
def averaged(trained: TrainedStore, run_id: str) -> str:
    """Return the run, and use its store."""
    return run_id


def score_of(model: str) -> float:
    """Return the score that `predict` gives the test triple."""
    head, relation, tail = LINE.split("\t")
    (prediction,) = predict(model, [asked(head, relation, "")], top_k=135).predictions
    return next(answer.score for answer in prediction.answers if answer.name == tail)


def test_an_explanation_is_of_the_parameters_and_says_so(averaged: str, tmp_path: Path) -> None:
    result = tracin(averaged, TEST, {"influence.top_k": 2})
    assert result.report.settings["ema_decay"] == DECAY
    assert len(result.report.model.checkpoints) == 2
    assert names.NOT_OF_THE_AVERAGE in result.table()
    last = download_artifact(averaged, names.ARTIFACT_CHECKPOINTS, tmp_path) / "epoch-0004"
    score = result.report.tests[0].score
    assert score == pytest.approx(score_of(str(last)), abs=1e-5)
    assert score != pytest.approx(score_of(averaged), abs=1e-3)


def test_many_explanations_say_so_too(averaged: str, trained: TrainedStore, tmp_path: Path) -> None:
    path = tmp_path / "triples.txt"
    path.write_text(f"{LINE}\n")
    for model, said in ((averaged, True), (trained.strong, False)):
        request = BatchRequest(model, str(path), tmp_path / model, {"influence.top_k": 2})
        assert (names.NOT_OF_THE_AVERAGE in batch_tracin(request).table()) == said
    assert names.NOT_OF_THE_AVERAGE not in tracin(trained.strong, TEST, {}).table()


def test_the_average_itself_is_not_explained(averaged: str, tmp_path: Path) -> None:
    best = download_artifact(averaged, names.ARTIFACT_BEST, tmp_path)
    for folder in (best, best.parent):
        with pytest.raises(
            CheckpointError, match=r"best: contains the average .* give the run's id"
        ):
            tracin(str(folder), TEST, {})
    step = download_artifact(averaged, f"{names.ARTIFACT_CHECKPOINTS}/epoch-0002", tmp_path)
    assert len(tracin(str(step), TEST, {}).report.model.checkpoints) == 1


def test_the_average_is_promoted_served_and_exported(averaged: str, tmp_path: Path) -> None:
    assert promote(PromotionRequest(averaged, name="averaged")).number == "1"
    assert score_of("models:/averaged@champion") == pytest.approx(score_of(averaged), abs=1e-5)
    export("models:/averaged@champion", tmp_path / "files")
    exported = np.stack(pd.read_parquet(tmp_path / "files" / "entities.parquet")["embedding"])
    best = download_artifact(averaged, names.ARTIFACT_BEST, tmp_path)
    np.testing.assert_array_equal(exported, load_file(best / MODEL_FILE)["entity.weight"])
