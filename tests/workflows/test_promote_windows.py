"""Promotion of language models and of image sequences: metric, gate, registry, serving."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clew import names
from clew.__main__ import run as run_command
from clew.errors import PromotionRefused, TrackingError, UsageError
from clew.image_sequences.prediction import HELD_OUT_FILE, WindowPredictor
from clew.runs.reading.runs import find_run
from clew.runs.registry import Registry
from clew.workflows.evaluate import evaluate
from clew.workflows.predict_windows import TextRequest, predict_frames, predict_text
from clew.workflows.promote import PromotionRequest, promote, rollback
from tests.image_sequences.sequence_files import sequence_columns, write_folder
from tests.workflows.conftest import run_of
from tests.workflows.test_predict_frames import new_frames
from tests.workflows.trained import StoredRun, sequence_config, text_config

pytestmark = pytest.mark.slow


def said(model: str) -> str:
    return "".join(predict_text(model, TextRequest("3 green", 30)))


def test_a_language_model_is_promoted_by_bits_per_byte(text: StoredRun, tmp_path: Path) -> None:
    shares = {"data__valid_fraction": 0.3}
    shorter, longer = (
        run_of(text_config(text.folder, training__num_epochs=epochs, **shares)) for epochs in (1, 6)
    )
    first = promote(PromotionRequest(shorter, name="bottles"))
    details = {check.name: check for check in first.checks}
    assert all(check.passed for check in first.checks)
    assert details["test"].detail.startswith("test/bits_per_byte ")
    assert "tokens" in details["test"].detail
    assert "loads without pickle" in details["served"].detail
    second = promote(PromotionRequest(longer, name="bottles"))
    assert (second.number, second.former) == ("2", "1")
    before, after = (find_run(run).metrics["valid/bits_per_byte"] for run in (shorter, longer))
    assert after < before
    tags = Registry().version("bottles", "2").tags
    assert tags[names.TAG_GATE_METRIC] == "valid/bits_per_byte"
    low, high = map(float, tags[names.TAG_GATE_INTERVAL].split(" to "))
    assert 0 < low < before - after < high
    with pytest.raises(PromotionRefused):
        promote(PromotionRequest(shorter, name="bottles"))
    with pytest.raises(PromotionRefused):  # other validation examples of the same text
        promote(PromotionRequest(text.run_id, name="bottles"))
    assert said("models:/bottles@champion") == said(longer)
    (text.folder / "corpus.txt").rename(tmp_path / "corpus.txt")
    (text.folder / "packed").rename(tmp_path / "packed")
    try:
        assert said("models:/bottles@champion") == said(longer)
    finally:
        (tmp_path / "corpus.txt").rename(text.folder / "corpus.txt")
        (tmp_path / "packed").rename(text.folder / "packed")
    assert rollback("bottles").number == "1"
    assert said("models:/bottles@champion") == said(shorter)


def test_the_best_run_of_an_experiment_is_that_of_the_tasks_own_metric(text: StoredRun) -> None:
    runs = [
        run_of(
            text_config(text.folder, training__num_epochs=epochs, tracking__experiment="lengths")
        )
        for epochs in (3, 1)
    ]
    result = promote(PromotionRequest(experiment="lengths", name="of lengths", dry_run=True))
    assert result.run_id == runs[0]
    with pytest.raises(TrackingError, match="no run of experiment 'lengths' has metric"):
        promote(PromotionRequest(experiment="lengths", metric="valid/mrr"))


def test_a_model_of_image_sequences_is_promoted_by_its_error(
    sequences: StoredRun, tmp_path: Path
) -> None:
    first = promote(PromotionRequest(sequences.run_id, name="clouds"))
    details = {check.name: check.detail for check in first.checks}
    assert all(check.passed for check in first.checks)
    assert details["test"].startswith("test/mae ")
    assert "10 windows" in details["test"]
    assert "intervals of 90%: +- " in details["calibration"]
    frames = write_folder(tmp_path / "new", new_frames())
    outputs = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    own = predict_frames(sequences.run_id, frames, outputs[0])
    (sequences.folder / "clouds").rename(tmp_path / "moved")
    try:
        registered = predict_frames("models:/clouds@champion", frames, outputs[1])
    finally:
        (tmp_path / "moved").rename(sequences.folder / "clouds")
    assert registered.intervals == own.intervals
    one, two = (pq.read_table(output) for output in outputs)
    assert one.to_pydict() == two.to_pydict()
    config = sequence_config(sequences.folder, sequence_columns(), training__num_epochs=1)
    with pytest.raises(PromotionRefused):
        promote(PromotionRequest(run_of(config), name="clouds"))


@pytest.mark.parametrize("kind", ["text", "sequences"])
def test_a_registered_model_is_evaluated_as_its_run(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """By run, folder and registry, the metrics equal those of the training's own test."""
    stored: StoredRun = request.getfixturevalue(kind)
    promote(PromotionRequest(stored.run_id, name=f"evaluated-{kind}"))
    recorded = find_run(stored.run_id).metrics
    for model in (stored.run_id, f"models:/evaluated-{kind}@champion"):
        metrics = evaluate(model).metrics
        assert metrics
        assert {key: recorded[key] for key in metrics} == pytest.approx(metrics, abs=1e-6)
    assert run_command(["evaluate", f"--model={model}", "--split=valid", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(key.startswith("valid/") for key in shown)


def test_requests_that_cannot_be_answered_say_why(sequences: StoredRun, tmp_path: Path) -> None:
    promote(PromotionRequest(sequences.run_id, name="asked"))
    registry = Registry()
    folder = registry.download(registry.version("asked", "1"), tmp_path) / "artifacts" / "model"
    predictor, columns = WindowPredictor(folder), new_frames()
    images, scalars = columns["images"][:3, None].tolist(), columns["scalars"][:3].tolist()
    found = predictor.predict(images, scalars)
    frames = write_folder(tmp_path / "new", columns)
    predict_frames(sequences.run_id, frames, tmp_path / "out.parquet")
    row = pq.read_table(tmp_path / "out.parquet").to_pylist()[0]
    assert found == pytest.approx({key: row[key] for key in found}, rel=1e-5)
    for bad, message in (
        ((images[:2], scalars), "images is not an array of 3 x 1 x 9 x 13 finite numbers"),
        ((images, []), "scalars is not an array of 3 x 3 finite numbers"),
        ((images, [["a"] * 3] * 3), "scalars is not an array"),
        (([[[[float("nan")] * 13] * 9]] * 3, scalars), "images is not an array"),
    ):
        with pytest.raises(UsageError, match=message):
            predictor.predict(*bad)
    (folder / HELD_OUT_FILE).unlink()
    without = WindowPredictor(folder)
    assert without.predict(images, scalars) == {"prediction": found["prediction"]}
    with pytest.raises(
        UsageError, match=r"confidence is 0\.8, but this model has too few held-out"
    ):
        without.predict(images, scalars, confidence=0.8)
