"""`clew.load` and `clew.evaluate`: load a trained model, get its predictions, and evaluate it."""

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, Concatenate, Literal, Protocol, TypeVar

import pandas as pd
from pydantic import Field, SkipValidation

from clew import names
from clew.api.arguments import Count, Name, Names, P, R, Triple, checked, named_triples
from clew.config.data import TokenData, TripleData
from clew.config.schema import RunConfig
from clew.errors import ConfigError, UsageError, quoted, similar_name
from clew.files import working_folder
from clew.image_sequences.errors import CONFIDENCE
from clew.language_modeling.model import Sampling
from clew.language_modeling.writer import TextModel, continuation
from clew.link_prediction.candidates import Limits, list_pairs, scored_triples
from clew.link_prediction.prediction import Predictor, Query
from clew.runs.reading.search import run_meant
from clew.workflows.evaluate import EvaluateResult
from clew.workflows.evaluate import evaluate as evaluate_model
from clew.workflows.model_source import open_model
from clew.workflows.predict import calibrate_answer_sets, open_predictor
from clew.workflows.predict_windows import open_text_model, predict_frames

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
class Model(ABC):
    """A trained model, as `clew.load` returns it.

    It is a `TripleModel`, a `LanguageModel` or a `SequenceModel`, whose `predict` take different
    arguments.
    """

    reference: str
    """A reference that does not change: a run id, `models:/name/version`, or a folder."""
    title: str
    """A short readable description."""
    task: str
    """`link_prediction`, `language_modeling` or `image_sequence_regression`."""
    config: RunConfig = field(repr=False)
    """The configuration that the model was trained with."""

    asked_with: ClassVar[str]
    explained_with: ClassVar[str] = ""

    @abstractmethod
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the model; its class says what for.

        Raises:
            ConfigError: If the question is for another kind of model, or a value is out of range.
        """


AnyModel = Model | Recorded | str | Path
"""A loaded model, a run, or a run id, `newest`, `models:/name@alias` or a folder of checkpoints."""
ModelT = TypeVar("ModelT", bound=Model)


def _asking(ask: Callable[Concatenate[ModelT, P], R]) -> Callable[Concatenate[ModelT, P], R]:
    """Return a `predict` that refuses questions for another kind of model, and checks values."""
    valid, validated = list(inspect.signature(ask).parameters)[1:], checked(ask)

    @wraps(ask)
    def call(self: ModelT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = {n: value for n, value in kwargs.items() if value is not None}
        foreign = [name for name in given if name not in valid]
        if foreign or valid[0] not in given:
            wrong = f"{' and '.join(foreign)} given" if foreign else f"no {valid[0]} given"
            said = f"{self.title} is a {self.task} model, {wrong}; expected {self.asked_with}; "
            raise ConfigError((said + similar_name("".join(foreign), valid)).removesuffix("; "))
        return validated(self, *args, **given)

    return call


@dataclass(frozen=True)
class TripleModel(Model):
    """A graph model: it answers which heads or tails fit a relation."""

    _ready: Predictor = field(repr=False)

    asked_with = "relation, with head or tail"
    explained_with = "triples, such as [('virus', 'causes', 'neoplastic_process')]"

    @_asking
    def predict(
        self,
        *,
        relation: str,
        head: str | None = None,
        tail: str | None = None,
        top_k: Count = 10,
        filter_known: bool = False,
        conformal: Annotated[float | None, Field(gt=0, lt=1)] = None,
    ) -> pd.DataFrame:
        """Return the best tails for a head and a relation, or the best heads for a tail.

        A row is an answer, the best first. The columns are `rank` (from 1), `name` (as in the
        data), `label` (readable), `score` (the model's logit), `probability` and `known` (whether
        the answer is in the training data). `probability` is the probability that this is the
        answer, given that the answer is not in the training data. Probabilities are calibrated when
        a model is promoted. The column is NaN before that, and for known answers.

        Args:
            relation: Name or label of the relation.
            head: Name or label of the head, to ask for tails.
            tail: Name or label of the tail, to ask for heads.
            top_k: Number of answers.
            filter_known: Leave out answers in the training data.
            conformal: Add the column `in_set`: whether an answer is in the set that contains a new
                answer with this probability (0.9 for 90 %). `frame.attrs["answer_set"]` contains
                the size of the set, how many of its answers are in the table, what it was
                calibrated on, and its coverage of test triples.

        Raises:
            ConfigError: If not exactly one of head and tail is given, a number is out of range, or
                the question is for another kind of model.
            DataError: If a name is unknown (the message lists similar names), or an answer set
                cannot be calibrated because the model's data are missing.
        """
        if head is not None and tail is not None:
            raise ConfigError(
                "head and tail are both given, so there is nothing to predict; leave one out, or "
                "get the rank of the triple with model.place(head, relation, tail)"
            )
        ready, query = self._ready, Query(relation, head=head or None, tail=tail or None)
        if conformal is not None and ready.answer_sets is None:
            with open_model(self.reference) as source:
                calibrate_answer_sets(ready, source)
        (found,) = ready.predict([query], top_k=top_k, filter_known=filter_known, level=conformal)
        if found.warning:
            logger.warning("%s", found.warning)
        rows = [vars(answer) for answer in found.answers]
        columns = ANSWER_COLUMNS if conformal is None else [*ANSWER_COLUMNS, "in_set"]
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

    @checked
    def place(self, head: Name, relation: Name, tail: Name) -> pd.DataFrame:
        """Return the rank of a triple's tail among all tails, and of its head among all heads.

        A row is an `end` of the triple. `tail` is first; it is the only row if the model was
        trained without inverse relations. `rank` is the position among `num_candidates` entities,
        which are all entities except the other answers in the training data; equal scores count
        half. The other columns are `name`, `label`, `score`, `probability` and `known` (whether the
        triple is in the training data). `probability` is the probability that the answer is this
        entity, given that it is none of those other answers.

        Raises:
            ConfigError: If a part of the triple is empty; `predict` asks for an end.
            DataError: If a name is unknown; the message lists similar names.
        """
        answering = self._ready
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
    def embeddings(self) -> pd.DataFrame:
        """The row of each entity in the model's table, by name."""
        rows = self._ready.model.entity.weight.detach().numpy()
        return pd.DataFrame(rows, index=pd.Index(list(self._ready.entities), name="name"))

    @checked
    def rank(
        self,
        relation: str,
        *,
        top_k: Count = 1000,
        filter_known: bool = True,
        head_kind: str = "",
        tail_kind: str = "",
        heads: Names | None = None,
        tails: Names | None = None,
        seen: bool = False,
    ) -> pd.DataFrame:
        """Return the best pairs of a relation, the best first.

        Pairs are ordered by `probability`: that the pair answers a question for one of its two
        ends, drawn at random. Without calibration they are ordered by `score`, the mean of the
        scores of both questions. `head_rank` and `tail_rank` are the ranks in these questions,
        among `num_heads` and `num_tails` candidates.

        Args:
            relation: Name or label of the relation.
            top_k: Number of pairs.
            filter_known: Leave out pairs in the training data.
            head_kind: Kind of the entities that can be heads, such as `Drug`.
            tail_kind: Kind of the entities that can be tails.
            heads: Names or labels of the entities that can be heads.
            tails: Names or labels of the entities that can be tails.
            seen: Only entities that the training data have at this end of the relation.

        Raises:
            DataError: If the relation is unknown, or no candidate is left.
        """
        limits = Limits(head_kind, tail_kind, heads, tails, seen)
        rows = list_pairs(
            self._ready, relation, top_k=top_k, filter_known=filter_known, limits=limits
        )
        return pd.DataFrame(rows.to_pandas())

    def score(self, triples: pd.DataFrame | Iterable[Triple]) -> pd.DataFrame:
        """Return a row for each `(head, relation, tail)` by name, with the columns of `rank`.

        The column `error` says why a triple has no score, such as an unknown name.

        Raises:
            DataError: If no triple can be scored.
        """
        return pd.DataFrame(scored_triples(self._ready, named_triples(triples)).to_pandas())


@dataclass(frozen=True)
class LanguageModel(Model):
    """A language model: it continues a text."""

    _ready: TextModel = field(repr=False)

    asked_with = "prompt, a text to continue"
    explained_with = "prompt, the text before what is to be explained"

    @_asking
    def predict(
        self,
        *,
        prompt: Annotated[str, Field(min_length=1)],
        max_tokens: Annotated[int, Field(ge=0)] = 200,
        temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
        top_p: Annotated[float, Field(gt=0, le=1)] = 1.0,
        seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    ) -> str:
        """Return the text that follows a prompt.

        Args:
            prompt: The text to continue.
            max_tokens: Largest number of tokens to write.
            temperature: 0 always takes the most likely token, 1 samples from the model's
                distribution.
            top_p: Sample only from the most likely tokens with this total probability.
            seed: Seed of the sampling.

        Raises:
            ConfigError: If the question is for another kind of model, or a value is out of range.
        """
        sampling = Sampling(temperature, top_p=top_p)
        return continuation(
            self._ready, prompt, max_tokens=max_tokens, sampling=sampling, seed=seed
        )


@dataclass(frozen=True)
class SequenceModel(Model):
    """A model of image sequences; it is loaded when it predicts."""

    asked_with = "frames, a file or a folder of them"

    @_asking
    def predict(
        self, *, frames: str | Path, conformal: Annotated[float | None, Field(gt=0, lt=1)] = None
    ) -> pd.DataFrame:
        """Return a row for each complete window, as `clew predict --frames` writes it.

        The table's `attrs` contain `unit`, `target_name`, `intervals` and `notes`.

        Args:
            frames: A file or folder as for training, without targets.
            conformal: Share of targets that the intervals should contain (default 0.9).

        Raises:
            ConfigError: If the question is for another kind of model, or a number is out of range.
            DataError: If the frames do not fit the model.
        """
        with working_folder("predict") as folder:
            output = folder / "predictions.parquet"
            confidence = conformal or CONFIDENCE
            said = predict_frames(self.reference, Path(frames), output, confidence=confidence)
            frame = pd.read_parquet(output)
        content = said.as_dict()
        frame.attrs |= {key: content[key] for key in ("target_name", "unit", "intervals", "notes")}
        return frame


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
        pinned = source.version.uri if source.version else meant
        said = (pinned, source.title, source.manifest.task, source.config)
        match source.config.data:
            case TripleData():
                predictor, notes = open_predictor(source)
                for note in notes:
                    logger.warning("%s: %s", source.title, note)
                return TripleModel(*said, predictor)
            case TokenData():
                return LanguageModel(*said, open_text_model(source))
            case _:
                return SequenceModel(*said)


@checked
def evaluate(
    model: SkipValidation[AnyModel], split: Literal["valid", "test"] = "test"
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


def reference_of(model: AnyModel) -> str:
    """Return the reference of a model that the workflows use; refuse a run that has none."""
    if isinstance(model, str | Path):
        return run_meant(str(model), names.KIND_TRAIN)
    if isinstance(model, Model):
        return model.reference
    run_id = getattr(model, "run_id", 0)
    if not isinstance(run_id, str | None):
        raise ConfigError(
            f"model is {quoted(model)}; expected a loaded model, a run, a run id, 'newest', "
            "'models:/name@alias' or a folder of checkpoints"
        )
    if run_id is None:
        raise UsageError(
            "this run has no id, because the tracking store did not answer or another of its "
            "processes recorded it; run clew sync, then give the run's id"
        )
    return run_id
