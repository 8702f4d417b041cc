"""`clew.load` and `clew.evaluate`: load a trained model, get its predictions, and evaluate it."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, overload

import pandas as pd

from clew import names
from clew.api.predictions import (
    FramesQuestion,
    GraphQuestion,
    TextQuestion,
    predicted,
    question,
)
from clew.config.schema import RunConfig
from clew.errors import ConfigError, UsageError, quoted
from clew.image_sequences.errors import CONFIDENCE
from clew.language_modeling.model import Sampling
from clew.language_modeling.writer import TextModel, continuation
from clew.link_prediction.prediction import Predictor, Query
from clew.runs.reading.search import run_meant
from clew.workflows.evaluate import EvaluateResult
from clew.workflows.evaluate import evaluate as evaluate_model
from clew.workflows.model_source import open_model
from clew.workflows.predict import calibrate_answer_sets, open_predictor
from clew.workflows.predict_text import open_text_model

logger = logging.getLogger(__name__)

ANSWER_COLUMNS = ["rank", "name", "label", "score", "probability", "known"]
PLACE_COLUMNS = ["end", "rank", "num_candidates", "name", "label", "score", "probability", "known"]


class Recorded(Protocol):
    """A training run: any object with the run's id in the tracking store."""

    @property
    def run_id(self) -> str | None:
        """The run's id; None if the run was not recorded."""
        ...


@dataclass(frozen=True)
class Model:
    """A trained model, as `clew.load` returns it."""

    reference: str
    """A reference that does not change: a run id, `models:/name/version`, or a folder."""
    title: str
    """A short readable description."""
    task: str
    """`link_prediction`, `language_modeling` or `image_sequence_regression`."""
    config: RunConfig = field(repr=False)
    """The configuration of the training."""
    _ready: Predictor | TextModel | None = field(repr=False)
    """The loaded model; None for image sequences, whose model is loaded when it predicts."""

    @overload
    def predict(
        self,
        *,
        relation: str,
        head: str | None = None,
        tail: str | None = None,
        top_k: int = 10,
        filter_known: bool = False,
        conformal: float | None = None,
    ) -> pd.DataFrame: ...

    @overload
    def predict(
        self,
        *,
        prompt: str,
        max_tokens: int = 200,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str: ...

    @overload
    def predict(self, *, frames: str | Path, conformal: float | None = None) -> pd.DataFrame: ...

    def predict(self, **asked: object) -> pd.DataFrame | str:
        """Return answers of a graph model, text of a language model, or predictions for frames.

        For a graph model, the result is a table of the best tails for a head and a relation, or the
        best heads for a tail and a relation. A row is an answer, the best first. The columns are
        `rank` (from 1), `name` (as in the data), `label` (readable), `score` (the model's logit),
        `probability` and `known` (whether the answer is in the training data). `probability` is the
        probability that this is the answer, given that the answer is not in the training data.
        Probabilities are calibrated when a model is promoted. The column is NaN before that, and
        for known answers.

        For a language model, the result is the text that follows the prompt. For a model of image
        sequences, the result is a table with a row for each complete window, as
        `clew predict --frames` writes it; its `attrs` contain `unit`, `target_name` and
        `intervals`.

        Args:
            **asked: For a graph model: `relation` and `head` or `tail`, by name or label; `top_k`,
                the number of answers; `filter_known`, to leave out answers in the training data;
                `conformal`, to add the column `in_set`. It says whether an answer is in the set
                that contains a new answer with this probability (0.9 for 90 %).
                `frame.attrs["answer_set"]` contains the size of the set, how many of its answers
                are in the table, what it was calibrated on, and its coverage of test triples.

                For a language model: `prompt`, the text to continue; `max_tokens`, the largest
                number of tokens to write; `temperature`, where 0 always takes the most likely token
                and 1 samples from the model's distribution; `top_p`, to sample only from the most
                likely tokens with this total probability; `seed` of the sampling.

                For image sequences: `frames`, a file or folder as for training, without targets;
                `conformal`, the share of targets that the intervals should contain (default 0.9).

        Raises:
            ConfigError: If the question is for another kind of model, a number is out of range, or
                not exactly one of head and tail is given.
            DataError: If a name is unknown (the message lists similar names), if an answer set
                cannot be calibrated because the model's data are missing, or if the frames do not
                fit the model.
        """
        asked_for = question(self.title, self.task, asked)
        if isinstance(asked_for, TextQuestion):
            assert isinstance(self._ready, TextModel)
            return continuation(
                self._ready,
                asked_for.prompt,
                max_tokens=asked_for.max_tokens,
                sampling=Sampling(asked_for.temperature, top_p=asked_for.top_p),
                seed=asked_for.seed,
            )
        if isinstance(asked_for, FramesQuestion):
            confidence = asked_for.conformal or CONFIDENCE
            return predicted(self.reference, Path(asked_for.frames), confidence=confidence)
        return self._answers(asked_for)

    def _answers(self, asked: GraphQuestion) -> pd.DataFrame:
        """Return a graph model's answers to a question as a table, one row per answer."""
        answering, level = self._answering, asked.conformal
        query = Query(asked.relation, head=asked.head or None, tail=asked.tail or None)
        if level is not None and answering.answer_sets is None:
            with open_model(self.reference) as source:
                calibrate_answer_sets(answering, source)
        (found,) = answering.predict(
            [query], top_k=asked.top_k, filter_known=asked.filter_known, level=level
        )
        if found.warning:
            logger.warning("%s", found.warning)
        rows = [vars(answer) for answer in found.answers]
        columns = ANSWER_COLUMNS if level is None else [*ANSWER_COLUMNS, "in_set"]
        frame = pd.DataFrame(rows, columns=columns)
        frame = frame.astype({"score": float, "probability": float})
        if (answer_set := found.answer_set) is not None:
            frame.attrs["answer_set"] = answer_set.as_dict()
            if answer_set.num_shown < answer_set.size:
                logger.warning(
                    "%d of the %d answers in the set are in the table; ask for more with top_k, or "
                    "for new ones only with filter_known=True",
                    answer_set.num_shown,
                    answer_set.size,
                )
        return frame

    def place(self, head: str, relation: str, tail: str) -> pd.DataFrame:
        """Return the rank of a triple's tail among all tails, and of its head among all heads.

        A row is an `end` of the triple. `tail` is first; it is the only row if the model was
        trained without inverse relations. `rank` is the position among `num_candidates` entities,
        which are all entities except the other known answers; equal scores count half. The other
        columns are `name`, `label`, `score`, `probability` and `known` (whether the triple is in
        the training data). `probability` is the probability that the answer is this entity, given
        that the answer is none of the other known answers.

        Raises:
            ConfigError: If the model is not a graph model, or a part of the triple is empty.
            DataError: If a name is unknown; the message lists similar names.
        """
        answering = self._answering
        if not all(name and isinstance(name, str) for name in (head, relation, tail)):
            raise ConfigError(
                f"triple with head {head!r}, relation {relation!r}, tail {tail!r}; give all three "
                "by name, or ask for an end with predict"
            )
        triple = Query(relation, head=head, tail=tail)
        found = answering.predict(triple.ways(heads=answering.has_inverses), top_k=1)
        for prediction in found:
            if prediction.warning:
                logger.warning("%s", prediction.warning)
        rows = [
            {"end": prediction.query.asks_for} | vars(prediction.place)
            for prediction in found
            if prediction.place is not None
        ]
        return pd.DataFrame(rows, columns=PLACE_COLUMNS).astype({"probability": float})

    @property
    def _answering(self) -> Predictor:
        """The predictor of a graph model.

        Raises:
            ConfigError: If the model is not a graph model.
        """
        if not isinstance(self._ready, Predictor):
            raise ConfigError(
                f"{self.title} is a {self.task} model, which has no triples; give prompt to a "
                "language model and frames to a model of image sequences, or load a graph model"
            )
        return self._ready


def load(reference: str | Path) -> Model:
    """Load a trained model.

    Args:
        reference: A run id, `newest` (the training run that finished last), `models:/name@alias`,
            or a folder of checkpoints. An alias is resolved once; the loaded model keeps this
            version.

    Raises:
        UsageError: If the model does not exist, or its files or its data cannot be used.
    """
    meant = reference_of(reference)
    with open_model(meant) as source:
        ready: Predictor | TextModel | None = None
        if source.manifest.task == names.TASK_LINK_PREDICTION:
            ready, notes = open_predictor(source)
            for note in notes:
                logger.warning("%s: %s", source.title, note)
        elif source.manifest.task == names.TASK_LANGUAGE_MODELING:
            ready = open_text_model(source)
        pinned = source.version.uri if source.version else meant
        return Model(pinned, source.title, source.manifest.task, source.config, ready)


def evaluate(
    model: Model | Recorded | str | Path, split: Literal["valid", "test"] = "test"
) -> EvaluateResult:
    """Evaluate a model on a split of its training data set, and record the result as a run.

    `evaluate(model).metrics["test/mrr"]` is a float; the metrics have the same names as in
    training.

    Args:
        model: A loaded model, a run, a run id, `newest`, `models:/name@alias`, or a
            folder of checkpoints.
        split: `valid` or `test`.

    Raises:
        UsageError: If the model or its data cannot be used.
    """
    return evaluate_model(reference_of(model), split)


def reference_of(model: Model | Recorded | str | Path) -> str:
    """Return the reference of a model that the workflows use.

    Raises:
        ConfigError: If `model` is not a model, a run or a reference.
        UsageError: If `model` is a run that was not recorded.
    """
    if isinstance(model, str | Path):
        return run_meant(str(model), names.KIND_TRAIN)
    if isinstance(model, Model):
        return model.reference
    if not hasattr(model, "run_id"):
        raise ConfigError(
            f"model is {quoted(model)}; expected a loaded model, a run, a run id, 'newest', "
            "'models:/name@alias' or a folder of checkpoints"
        )
    if model.run_id is None:
        raise UsageError(
            "this run has no id, because the tracking store did not answer or another process of "
            "the training recorded it; run clew sync, then give the run's id"
        )
    return model.run_id
