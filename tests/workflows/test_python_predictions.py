"""`Model.predict` for text and frames returns the same as the command."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import clew
from clew.errors import ConfigError
from clew.language_modeling.model import Sampling
from clew.workflows.predict_windows import TextRequest, predict_frames, predict_text
from tests.image_sequences.sequence_files import write_folder
from tests.workflows.test_predict_frames import new_frames
from tests.workflows.trained import StoredRun, TrainedStore, use_store


def test_a_language_model_continues_a_prompt(text: StoredRun) -> None:
    model = clew.load(text.run_id)
    for temperature, seed in ((0.0, 0), (0.8, 3)):
        request = TextRequest("green", 12, Sampling(temperature=temperature), seed)
        said = model.predict(prompt="green", max_tokens=12, temperature=temperature, seed=seed)
        assert said == "".join(predict_text(text.run_id, request))
    assert len(said) > 0


def test_frames_are_predicted_with_intervals(sequences: StoredRun, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "new", new_frames())
    found = clew.load(sequences.run_id).predict(frames=folder)
    result = predict_frames(sequences.run_id, folder, tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(found, pd.read_parquet(tmp_path / "out.parquet"))
    assert np.isfinite(found["prediction"]).all()
    said = result.as_dict()
    assert {**found.attrs} == {
        key: said[key] for key in ("target_name", "unit", "intervals", "notes")
    }


def test_a_language_model_is_read_once(text: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    model = clew.load(text.run_id)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/mlflow.db")
    assert model.predict(prompt="green", max_tokens=12)


WRONG_QUESTIONS: list[tuple[dict[str, object], str]] = [
    ({}, "is a language_modeling model, no prompt given; expected prompt, a text to continue"),
    ({"relation": "isa", "head": "virus"}, "relation and head given; expected prompt, a text"),
    ({"frames": "."}, "frames given; expected prompt, a text to continue"),
    ({"prompt": "a", "top_k": 3}, "top_k given; expected prompt, a text to continue"),
    ({"prompt": "a", "promt": "b"}, "promt given; expected prompt, a text to continue"),
    ({"prompt": ""}, "prompt is ''; expected text, which must not be empty"),
    ({"prompt": 3}, "prompt is 3; expected text"),
    ({"prompt": "caf\udce9"}, "prompt is 'caf\\udce9'; expected valid Unicode text"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens is -1; expected at least"),
    ({"prompt": "a", "temperature": -0.5}, "temperature is -0.5; expected at least"),
    ({"prompt": "a", "temperature": float("nan")}, "temperature is nan; expected"),
    ({"prompt": "a", "top_p": 0}, "top_p is 0; expected more than 0"),
    ({"prompt": "a", "seed": 2**63}, "seed is 9223372036854775808; expected less than"),
]


@pytest.mark.parametrize(("asked", "message"), WRONG_QUESTIONS)
def test_a_wrong_question_to_a_language_model_is_one_line(
    text: StoredRun, asked: dict[str, object], message: str
) -> None:
    refused(clew.load(text.run_id), asked, message)


def test_a_wrong_question_to_a_model_of_images_or_of_a_graph_is_one_line(
    sequences: StoredRun, trained_runs: TrainedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = clew.load(sequences.run_id)
    refused(model, {"prompt": "a"}, "prompt given; expected frames, a file or a folder of them")
    refused(model, {"frames": "none"}, "none: no such file or folder")
    refused(model, {"frames": ".", "conformal": 1}, "conformal is 1; expected less than 1")
    use_store(monkeypatch, trained_runs.uri)
    model = clew.load(trained_runs.strong)
    refused(model, {"prompt": "a"}, "prompt given; expected relation, with head or tail")
    refused(model, {"head": "virus"}, "no relation given; expected relation, with head or tail")
    refused(model, {"relation": "isa", "head": "virus", "top_k": 0}, "top_k is 0; expected")


def refused(model: clew.Model, asked: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        model.predict(**asked)  # type: ignore[call-overload]
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
