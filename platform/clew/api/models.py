"""`clew.load` and `clew.evaluate`: a trained model, its answers and its quality."""

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
from clew.language_modeling.generation import Sampling
from clew.language_modeling.model_folder import TextModel
from clew.language_modeling.writer import continuation
from clew.link_prediction.answers import Query
from clew.link_prediction.prediction import Predictor
from clew.runs.reading.search import run_meant
from clew.workflows.evaluate import EvaluateResult
from clew.workflows.evaluate import evaluate as evaluate_model
from clew.workflows.model_source import open_model
from clew.workflows.predicting.predict import calibrate_answer_sets, open_predictor
from clew.workflows.predicting.text import open_text_model

logger = logging.getLogger(__name__)

ANSWER_COLUMNS = ["rank", "name", "label", "score", "probability", "known"]
PLACE_COLUMNS = ["end", "rank", "num_candidates", "name", "label", "score", "probability", "known"]


class Recorded(Protocol):
    """A training run: something with the id that the tracking store knows."""

    @property
    def run_id(self) -> str | None:
        """The id."""
        ...


@dataclass(frozen=True)
class Model:
    """A trained model, as `clew.load` returns it."""

    reference: str
    """What names it for good: a run id, `models:/name/version`, or a folder."""
    title: str
    """What it is, in a few words for people."""
    task: str
    """`link_prediction`, `language_modeling` or `image_sequence_regression`."""
    config: RunConfig = field(repr=False)
    """The configuration that it was trained with."""
    _ready: Predictor | TextModel | None = field(repr=False)
    """What answers; None where frames are predicted, whose model is read with them."""

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
        """Return answers of a graph model, a language model's text, or predictions from frames.

        Of a graph, the best tails of a head and a relation, or the best heads of a tail. A row is
        an answer, the best first: `rank` from 1, `name` as in the data, `label` for
        people, `score` (the model's own, a logit), `probability` that this is the answer given
        that it is not one known from training, and `known`, whether training holds it.
        Probabilities are calibrated when a model is promoted. The column is NaN before that, and
        for known answers.

        Of a prompt, the text that follows. Of frames, a row for each complete window, as
        `clew predict --frames` writes it; `attrs` holds `unit`, `target_name` and `intervals`.

        Args:
            **asked: Of a graph: `relation` and `head` or `tail`, by name or label; `top_k`, the
                number of answers; `filter_known`, to leave out those that training holds;
                `conformal`, to add the column `in_set`: whether an answer is in the set that holds
                a new one with this probability (0.9 for 90 %). `frame.attrs["answer_set"]` says how
                large the set is, how many of it are in the table, what it was calibrated on, and
                its coverage of test triples.

                Of text: `prompt`, to continue; `max_tokens` to write; `temperature`, with 0 always
                the likeliest token and with 1 as the model says; `top_p`, to draw only from the
                likeliest tokens that have this probability together; `seed` of the draws.

                Of images: `frames`, a file or folder as for training, without targets;
                `conformal`, the share of targets that intervals are meant to hold (0.9).

        Raises:
            ConfigError: the model is of another kind than what is asked, a number is out of its
                range, or not exactly one end is given.
            DataError: a name is unknown; the message lists near ones. Or an answer set is asked
                for, and the model's data are not here to calibrate one. Or the frames are not such
                as the model was trained on.
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
        """Return a graph model's answers to a question, a row each."""
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
        """Return where the model puts a triple: its tail among all tails, its head among all heads.

        A row is an `end` of the triple, `tail` first (alone, if the model was trained without
        inverse relations): its `rank` among `num_candidates` entities, all but the other known
        answers (equal scores count half), `name`, `label`, `score`, the `probability` that the
        answer is this entity given that it is none of the other known ones, and `known`, whether
        training holds the triple.

        Raises:
            ConfigError: the model predicts no links, or a part of the triple is empty.
            DataError: a name is unknown; the message lists near ones.
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
        """The predictor.

        Raises:
            ConfigError: the model predicts no links.
        """
        if not isinstance(self._ready, Predictor):
            raise ConfigError(
                f"{self.title} is a {self.task} model, which knows no triples; give prompt to a "
                "language model and frames to a model of image sequences, or load a graph model"
            )
        return self._ready


def load(reference: str | Path) -> Model:
    """Find a trained model and read it.

    Args:
        reference: A run id, `newest` (the training run that finished last), `models:/name@alias`,
            or a folder of checkpoints. An alias is followed once: the model stays the version that
            it meant then.

    Raises:
        UsageError: there is no such model, or its files or its data cannot be used.
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
    """Evaluate a model on a split of the data it was trained on, and record that as a run.

    `evaluate(model).metrics["test/mrr"]` is a float; the names are those of training.

    Args:
        model: A loaded model, a run, a run id, `newest`, `models:/name@alias`, or a
            folder of checkpoints.
        split: `valid` or `test`.

    Raises:
        UsageError: the model or its data cannot be used.
    """
    return evaluate_model(reference_of(model), split)


def reference_of(model: Model | Recorded | str | Path) -> str:
    """Return what names a model for the workflows.

    Raises:
        UsageError: it is a run that was not recorded.
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
            "this run has no id: the tracking store did not answer, or another process of the "
            "training recorded it; run clew sync, then name the run by its id"
        )
    return model.run_id
