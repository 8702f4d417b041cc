"""The interface that a kind of model needs for promotion and serving, and its implementations.

Promotion checks, registry and serving use a candidate only through its task and this interface. A
new kind of model needs one class here, and its serving code.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from clew import names
from clew.image_sequences.errors import HeldOutErrors, conformal_half_width
from clew.image_sequences.prediction import WindowPredictor
from clew.image_sequences.prediction import write_model_folder as write_frames_folder
from clew.image_sequences.task import SequenceRegression
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.writer import continuation, load_text_folder
from clew.language_modeling.writer import write_model_folder as write_text_folder
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.model_folder import (
    ANSWER_SETS_FILE,
    VOCABULARY_FOLDER,
    load_predictor,
)
from clew.link_prediction.model_folder import write_model_folder as write_graph_folder
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex
from clew.runs.packaging import save_servable
from clew.training.task import Task

NUM_QUERIES, NUM_PROMPTS, NUM_WINDOWS = 8, 4, 2
"""Number of requests that a candidate must answer before it is promoted, for each task."""
PROMPT_TOKENS = 32
TOLERANCE = 1e-4
"""Allowed difference between a served score and the checkpoint's; for values, also relative."""
Row = dict[str, Any]
"""A request: column to value."""


class Calibrated(Protocol):
    """A result on held-out examples that is served with a model, such as a calibration."""

    def describe(self) -> str:
        """Return one line of text for messages."""
        ...

    def tags(self) -> dict[str, str]:
        """Return the tags for a registered version with this result."""
        ...


class Servable(Protocol):
    """The interface of a model's task for promotion and serving."""

    examples: str
    """Plural name of the data's examples for messages, such as `triples`."""
    uncalibrated: str
    """Why `calibrate` can return None, for messages."""
    serving_code: Path
    """The Python file that MLflow runs to load the model."""

    @property
    def num_test_examples(self) -> int:
        """Number of examples in the test split."""
        ...

    def calibrate(self, model: nn.Module) -> Any:
        """Return the result on held-out examples, a `Calibrated`; None if there is none."""
        ...

    def write_folder(self, folder: Path, *, checkpoint: Path, calibration: Any, work: Path) -> Path:
        """Write what the serving code needs to a new folder; `work` is an empty folder."""
        ...

    def example_rows(self) -> list[Row]:
        """Return requests that the model can answer."""
        ...

    def answer(self, folder: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Answer requests from a folder that `write_folder` wrote, without MLflow."""
        ...

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two answers to a request are the same except for rounding."""
        ...


class ServedTriples:
    """Link prediction: requests are queries by name, answers are ranked entities."""

    examples = "triples"
    uncalibrated = "no validation triples, so no probabilities"
    serving_code = Path(__file__).with_name("serving_triples.py")

    def __init__(self, task: LinkPrediction) -> None:
        self.task = task
        self.graph = task.graph

    @property
    def num_test_examples(self) -> int:
        return len(self.graph.test)

    def calibrate(self, model: nn.Module) -> Calibration | None:
        """Fit the temperature of the answers on the validation triples, on the CPU."""
        assert isinstance(model, GraphModel)
        known = FilterIndex.in_both_directions(self.graph.train, self.graph.num_relations)
        predictor = Predictor(model, self.graph.entities, self.graph.relations, known=known)
        return predictor.calibrate(self.graph.valid)

    def write_folder(
        self, folder: Path, *, checkpoint: Path, calibration: Calibration | None, work: Path
    ) -> Path:
        """Write checkpoint, names, known triples, calibration and the data for answer sets."""
        self.task.write_artifacts(work)
        written = write_graph_folder(
            folder,
            checkpoint=checkpoint,
            vocabulary=work / VOCABULARY_FOLDER,
            known=self.graph.train,
            calibration=calibration,
        )
        if len(self.graph.valid):
            measured = load_predictor(written).measure_answer_sets(
                self.graph.valid, self.graph.test
            )
            measured.write(written / ANSWER_SETS_FILE)
        return written

    def example_rows(self) -> list[dict[str, str]]:
        """Return queries from the first training triples: for tails and, if possible, for heads."""
        entities, relations = self.graph.entities, self.graph.relations
        rows: list[dict[str, str]] = []
        for triple in self.graph.train[: NUM_QUERIES // 2]:
            relation = relations.name(triple[RELATION])
            rows.append({"head": entities.name(triple[HEAD]), "relation": relation})
            if self.task.inverse_relations:
                rows.append({"tail": entities.name(triple[TAIL]), "relation": relation})
        return rows

    def answer(self, folder: Path, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        found = load_predictor(folder).predict([Query(**row) for row in rows])
        return [prediction.as_dict() for prediction in found]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Compare the entities, their order and their scores."""
        pairs = list(zip(one["answers"], other["answers"], strict=False))
        return len(one["answers"]) == len(other["answers"]) and all(
            {k: v for k, v in a.items() if isinstance(v, str)}
            == {k: v for k, v in b.items() if isinstance(v, str)}
            and abs(a["score"] - b["score"]) <= TOLERANCE
            for a, b in pairs
        )


class ServedText:
    """Language modelling: requests are prompts, answers are the texts that follow."""

    examples = "tokens"
    uncalibrated = "text that is drawn has no probabilities to fit"
    serving_code = Path(__file__).with_name("serving_text.py")

    def __init__(self, task: LanguageModeling) -> None:
        self.task = task

    @property
    def num_test_examples(self) -> int:
        return len(self.task.splits.windows["test"].stream) - 1

    def calibrate(self, model: nn.Module) -> None:
        """Return None: nothing is fitted."""

    def write_folder(self, folder: Path, *, checkpoint: Path, calibration: Any, work: Path) -> Path:
        return write_text_folder(folder, checkpoint=checkpoint, packed=self.task.splits.packed)

    def example_rows(self) -> list[dict[str, str]]:
        """Return pieces of the training text that are evenly spaced."""
        stream, tokenizer = self.task.splits.windows["train"].stream, self.task.splits.tokenizer
        starts = range(0, len(stream), -(-len(stream) // NUM_PROMPTS))
        texts = [tokenizer.decode(stream[start : start + PROMPT_TOKENS]) for start in starts]
        # Text with the token for unknown text cannot be used as a prompt.
        return [{"prompt": text} for text in texts if text and not tokenizer.first_unknown(text)]

    def answer(self, folder: Path, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        text_model = load_text_folder(folder)
        return [{"text": continuation(text_model, row["prompt"])} for row in rows]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Compare the texts, which are equal because the seed is the same."""
        return bool(one["text"] == other["text"])


class ServedFrames:
    """Image sequences: requests are windows of frames, answers are values with intervals."""

    examples = "windows"
    uncalibrated = "no intervals: too few windows, or none, are held out for validation"
    serving_code = Path(__file__).with_name("serving_frames.py")

    def __init__(self, task: SequenceRegression) -> None:
        self.task = task

    @property
    def num_test_examples(self) -> int:
        return len(self.task.splits.windows["test"])

    def calibrate(self, model: nn.Module) -> HeldOutErrors | None:
        """Return the errors on validation and test windows, on the CPU; None if too few."""
        errors = self.task.held_out_errors(model.eval(), torch.device("cpu"))
        enough = errors is not None and math.isfinite(conformal_half_width(errors.valid))
        return errors if enough else None

    def write_folder(
        self, folder: Path, *, checkpoint: Path, calibration: HeldOutErrors | None, work: Path
    ) -> Path:
        self.task.write_artifacts(work)
        return write_frames_folder(folder, checkpoint=checkpoint, record=work, errors=calibration)

    def example_rows(self) -> list[dict[str, Any]]:
        """Return windows of the training data, in the units of the files."""
        windows = self.task.train_examples()
        chosen = np.linspace(0, len(windows) - 1, min(NUM_WINDOWS, len(windows))).astype(int)
        rows = []
        for index, images in zip(chosen, windows.batch(chosen).images, strict=True):
            end = windows.ends[index]
            frames = np.arange(end - windows.num_frames + 1, end + 1)
            row: dict[str, Any] = {"images": torch.nan_to_num(images).tolist()}
            if windows.table.scalars.shape[1]:
                row["scalars"] = windows.table.scalars[frames].tolist()
            if windows.table.present is not None:
                row["present"] = float(np.nan_to_num(windows.table.present[end]))
            rows.append(row)
        return rows

    def answer(self, folder: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        predictor = WindowPredictor(folder)
        return [predictor.predict(**row) for row in rows]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return one.keys() == other.keys() and all(
            math.isclose(one[key], other[key], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for key in one
        )


_SERVED: dict[str, Any] = {
    names.TASK_LINK_PREDICTION: ServedTriples,
    names.TASK_LANGUAGE_MODELING: ServedText,
    names.TASK_SEQUENCE_REGRESSION: ServedFrames,
}


def servable_of(task: Task[Any]) -> Servable:
    """Return the interface of a task for promotion and serving."""
    servable: Servable = _SERVED[task.kind](task)
    return servable


def save_candidate(
    task: Task[Any], work: Path, *, checkpoint: Path, calibration: Calibrated | None
) -> Path:
    """Save a checkpoint in the empty folder `work` as a model that MLflow can serve."""
    (work / "run").mkdir()
    servable = servable_of(task)
    model_folder = servable.write_folder(
        work / "model", checkpoint=checkpoint, calibration=calibration, work=work / "run"
    )
    return save_servable(
        work / "servable",
        task=task.kind,
        code=servable.serving_code,
        model_folder=model_folder,
        work=work / "copies",
        example=servable.example_rows()[0],
    )
