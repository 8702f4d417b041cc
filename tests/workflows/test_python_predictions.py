"""`Model.predict` for text and for frames: what the command says, in Python."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import clew
from clew.errors import ConfigError
from clew.language_modeling.generation import Sampling
from clew.workflows.predict_frames import predict_frames
from clew.workflows.predict_text import TextRequest, predict_text
from tests.image_sequences.sequence_files import write_folder
from tests.workflows.test_predict_frames import new_frames
from tests.workflows.trained import StoredRun


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


def test_a_question_for_another_kind_of_model_says_which_it_is(text: StoredRun) -> None:
    model = clew.load(text.run_id)
    with pytest.raises(ConfigError, match="is a language_modeling model, which knows no triples"):
        model.predict(relation="isa", head="virus")
    with pytest.raises(ConfigError, match="only models of image sequences predict frames"):
        model.predict(frames=text.folder)
    with pytest.raises(ConfigError, match="relation and prompt given; expected one of relation"):
        model.predict(relation="isa", prompt="a")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="nothing given; expected one of relation"):
        model.predict()  # type: ignore[call-overload]
