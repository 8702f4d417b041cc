"""Checks the arguments of `Model.predict` for the kind of model, and predicts from frames."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew import names
from clew.errors import ConfigError, quoted, reason_of
from clew.files import working_folder
from clew.workflows.predict_frames import predict_frames


class _Question(BaseModel):
    model_config = ConfigDict(frozen=True)


class GraphQuestion(_Question):
    """A question for a graph model."""

    relation: str
    head: str | None = None
    tail: str | None = None
    top_k: Annotated[int, Field(ge=1)] = 10
    filter_known: bool = False
    conformal: Annotated[float | None, Field(gt=0, lt=1)] = None


class TextQuestion(_Question):
    """A text for a language model to continue."""

    prompt: Annotated[str, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=0)] = 200
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class FramesQuestion(_Question):
    """Frames for a model of image sequences."""

    frames: str | Path
    conformal: Annotated[float | None, Field(gt=0, lt=1)] = None


_QUESTIONS: Mapping[str, tuple[type[_Question], str]] = {
    names.TASK_LINK_PREDICTION: (GraphQuestion, "relation, with head or tail"),
    names.TASK_LANGUAGE_MODELING: (TextQuestion, "prompt, a text to continue"),
    names.TASK_SEQUENCE_REGRESSION: (FramesQuestion, "frames, a file or a folder of them"),
}


def question(
    title: str, task: str, given: Mapping[str, object]
) -> GraphQuestion | TextQuestion | FramesQuestion:
    """Return the question for a model, from the arguments of `predict`.

    Args:
        title: Readable description of the model.
        task: Task of the model.
        given: Arguments of `predict`.

    Raises:
        ConfigError: If the arguments do not fit the model; the message says what is expected.
    """
    given = {name: value for name, value in given.items() if value is not None}
    kind, expected = _QUESTIONS[task]
    main = next(iter(kind.model_fields))
    foreign = [name for name in given if name not in kind.model_fields]
    if foreign or main not in given:
        wrong = f"{' and '.join(foreign)} given" if foreign else f"no {main} given"
        raise ConfigError(f"{title} is a {task} model, {wrong}; expected {expected}")
    if {"head", "tail"} <= given.keys():
        raise ConfigError(
            "head and tail are both given, so there is nothing to predict; leave one out, or get "
            "the rank of the triple with model.place(head, relation, tail)"
        )
    try:
        asked = kind.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = str(problem["loc"][0])
        raise ConfigError(f"{key} is {quoted(given[key])}; {reason_of(problem)}") from None
    assert isinstance(asked, GraphQuestion | TextQuestion | FramesQuestion)
    return asked


def predicted(reference: str, frames: Path, *, confidence: float) -> pd.DataFrame:
    """Return the table that `clew predict --frames` writes.

    The table's `attrs` contain `target_name`, `unit`, `intervals` and `notes`.

    Raises:
        UsageError: If the frames do not fit the model.
    """
    with working_folder("predict") as folder:
        output = folder / "predictions.parquet"
        said = predict_frames(reference, frames, output, confidence=confidence)
        frame = pd.read_parquet(output)
    content = said.as_dict()
    frame.attrs |= {key: content[key] for key in ("target_name", "unit", "intervals", "notes")}
    return frame
