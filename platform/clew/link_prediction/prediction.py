"""Answers link-prediction queries by name: the best tails, or heads, with their probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.errors import CheckpointError, ConfigError, DataError, quoted
from clew.link_prediction.calibration import AnswerSet, AnswerSets, Calibration
from clew.link_prediction.candidates import EVERYTHING, Limits
from clew.link_prediction.models.base import GraphModel, Scores
from clew.link_prediction.query_scores import Known, QueryScores
from clew.link_prediction.rank_metrics import Side
from clew.link_prediction.triples import FilterIndex
from clew.link_prediction.vocabulary import Vocabulary


@dataclass(frozen=True)
class Query:
    """A relation and the entity at one end; the query asks for the other end.

    A query with both ends is a whole triple. `ways` splits it into one question for each end, and
    the triple's own entity at that end becomes the `about` of the question.
    """

    relation: str
    head: str | None = None
    tail: str | None = None
    about: str | None = None
    """An entity at the end that is asked for; its rank is reported, whatever it is."""

    @property
    def is_triple(self) -> bool:
        return bool(self.relation and self.head and self.tail)

    @property
    def asks_for(self) -> Side:
        """The end that is asked for; an error unless a relation and one end are given."""
        if not self.relation or bool(self.head) == bool(self.tail):
            raise ConfigError(
                f"query with head {quoted(self.head or '')}, relation {quoted(self.relation)}, "
                f"tail {quoted(self.tail or '')}; give a relation and either a head (to ask for "
                "tails) or a tail (to ask for heads)"
            )
        return "tail" if self.head else "head"

    @property
    def given(self) -> tuple[Side, str]:
        side: Side = "head" if self.asks_for == "tail" else "tail"
        return side, self.head or self.tail or ""

    def ways(self, *, heads: bool = True) -> list["Query"]:
        """Return one question for each end of a whole triple; else the query itself.

        Without `heads`, only the question for the tail: the model cannot answer the other.
        """
        if not self.is_triple:
            return [self]
        for_tails = Query(self.relation, head=self.head, about=self.tail)
        for_heads = Query(self.relation, tail=self.tail, about=self.head)
        return [for_tails, for_heads] if heads else [for_tails]


@dataclass(frozen=True)
class Answer:
    """One entity as an answer to a query.

    `probability` is the probability that this entity is the answer, given that the answer is not
    known from training. It is None for a known answer, and if no calibration was fitted. `known` is
    None if the training triples are not available. `in_set` is whether the entity is in the answer
    set; it is None if no set was requested.
    """

    rank: int | float
    name: str
    label: str
    score: float
    probability: float | None
    known: bool | None
    in_set: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Place(Answer):
    """The rank of an entity that a query is about, which is a candidate even if it is known.

    Other answers known from training are not candidates; those of other splits are. `rank` and
    `probability` are those of `Places`.
    """

    num_candidates: int


@dataclass(frozen=True)
class Prediction:
    """A query, with names from the vocabulary, and its best answers."""

    query: Query
    answers: tuple[Answer, ...]
    num_known: int | None = None
    """Number of training triples with this relation and the given end; None if unknown."""
    place: Place | None = None
    """The rank of the entity that the query is about."""
    answer_set: AnswerSet | None = None
    has_facts: bool = True
    """Whether any training triple has the given entity; true if they are not available."""

    @property
    def warning(self) -> str | None:
        """A warning if no training triple has the given end with this relation; else None."""
        if self.num_known != 0:
            return None
        side, entity = self.query.given
        if not self.has_facts:
            return f"{entity!r} is in no training fact; the answers come from no fact about it"
        return (
            f"{entity!r} is never the {side} of {self.query.relation!r} in training; the answers "
            "come only from other facts about the entity and the relation"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the query, its answers and the entity that it is about as JSON values."""
        side, entity = self.query.given
        content: dict[str, Any] = {
            side: entity,
            "relation": self.query.relation,
            "num_known": self.num_known,
            "warning": self.warning,
            "answers": [self._row(answer) for answer in self.answers],
        }
        if self.place is not None:
            content["asked"] = self._row(self.place)
        if self.answer_set is not None:
            content["answer_set"] = self.answer_set.as_dict()
        return content

    def _row(self, row: Answer) -> dict[str, Any]:
        """Return the fields of a row; its name is under the end that is asked for."""
        told = {k: v for k, v in vars(row).items() if k != "in_set" or v is not None}
        return {self.query.asks_for if k == "name" else k: v for k, v in told.items()}


class Predictor(QueryScores):
    """A trained model with the names of its entities and relations.

    Args:
        model: The model; it is set to evaluation mode.
        entities: Names of the entities.
        relations: Names of the relations, without inverses.
        known: Index of the training triples in both directions.
        calibration: Temperature of the probabilities; if None, answers have no probabilities.
        answer_sets: Surprises on held-out queries; if None, there are no answer sets.
    """

    def __init__(
        self,
        model: GraphModel,
        entities: Vocabulary,
        relations: Vocabulary,
        *,
        known: FilterIndex | None = None,
        calibration: Calibration | None = None,
        answer_sets: AnswerSets | None = None,
    ) -> None:
        super().__init__(model, len(relations), known)
        self.entities = entities
        self.relations = relations
        self.calibration = calibration
        self.answer_sets = answer_sets
        rows = model.relation.num_embeddings
        expected = len(relations), 2 * len(relations)
        if self.num_entities != len(entities) or rows not in expected:
            raise CheckpointError(
                f"the model has {self.num_entities} entities and {rows} relation rows, the "
                f"vocabulary {len(entities)} entities and {len(relations)} relations; they belong "
                "to different runs"
            )

    @property
    def temperature(self) -> float:
        """Divisor of scores before they become probabilities; 1 without calibration."""
        return self.calibration.temperature if self.calibration else 1.0

    def predict(
        self,
        queries: Sequence[Query],
        *,
        top_k: int = 10,
        filter_known: bool = False,
        level: float | None = None,
        limits: Limits = EVERYTHING,
        apart: bool = False,
    ) -> list[Prediction]:
        """Return the `top_k` best answers to each query, the best first.

        Args:
            queries: The queries; a label can replace a name if only one name has that label.
            top_k: Number of answers per query.
            filter_known: Leave out answers that are known from training.
            level: Probability with which the answer set contains a new answer; if None, no answer
                set is computed.
            limits: Which heads and tails are candidates.
            apart: The `top_k` new answers first, ranked among themselves; then the known ones among
                the `top_k` of all.

        Raises:
            ConfigError: If a query is incomplete, `top_k` is not positive, or the level is not
                between 0 and 1, or is given with limits.
            DataError: If a name is unknown, `filter_known` is set without training triples, or a
                level is given without `answer_sets`.
        """
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; expected 1 or more")
        if filter_known and self.known is None:
            raise DataError(
                "filter_known is true, but the training triples are not available; use a "
                "registered model, or make the data set available under its name or path"
            )
        if level is not None and (self.answer_sets is None or self.known is None):
            raise DataError("an answer set was requested, but none was calibrated for this model")
        if level is not None and limits:
            raise ConfigError(
                "an answer set is calibrated on all entities; leave out the limits of the "
                "candidates, or the answer set"
            )
        resolved = [self.resolve(query) for query in queries]
        answer = partial(self._predict, top_k=top_k, filter_known=filter_known, apart=apart)
        return [
            found
            for rows in self.chunks(resolved)
            for found in answer(resolved[rows], level=level, limits=limits)
        ]

    def _predict(
        self,
        questions: Sequence["Resolved"],
        *,
        top_k: int,
        filter_known: bool,
        level: float | None,
        limits: Limits,
        apart: bool,
    ) -> list[Prediction]:
        entities = np.array([question.entity for question in questions], np.int64)
        relations = np.array([question.relation for question in questions], np.int64)
        scores = self.scores(self.encode(entities, relations))
        for relation in np.unique(relations) if limits else ():
            outside = torch.ones(self.num_entities, dtype=torch.bool)
            outside[torch.from_numpy(limits.candidates(self, int(relation)))] = False
            scores[torch.from_numpy(relations == relation)[:, None] & outside] = -torch.inf
        known = torch.zeros(scores.shape, dtype=torch.bool)
        known[self.known_answers(entities, relations)] = True
        candidates = scores.masked_fill(known, -torch.inf)
        shown = candidates if filter_known or apart else scores
        answers = self._best(shown, candidates, known, top_k)
        if apart:
            of_all = self._best(scores, candidates, known, top_k)
            answers = [
                (*new, *(answer for answer in best if answer.known))
                for new, best in zip(answers, of_all, strict=True)
            ]
        counts, found, have_facts = known.sum(1).tolist(), [], self.have_facts(entities).tolist()
        for row, question in enumerate(questions):
            prediction = Prediction(
                question.query,
                answers[row],
                num_known=None if self.known is None else counts[row],
                place=self._place(question, limits),
                has_facts=have_facts[row],
            )
            if level is not None:
                prediction = self._with_set(prediction, candidates[[row]], question, level)
            found.append(prediction)
        return found

    def _with_set(
        self, prediction: Prediction, candidates: Scores, question: "Resolved", level: float
    ) -> Prediction:
        assert self.answer_sets is not None
        guarantee = self.answer_sets.guarantee(question.relation, level)
        normaliser = float(candidates.double().logsumexp(dim=1))
        is_candidate = candidates > -torch.inf
        inside = is_candidate & (normaliser - candidates.double() <= guarantee.threshold)
        answers = tuple(
            replace(
                answer, in_set=not answer.known and normaliser - answer.score <= guarantee.threshold
            )
            for answer in prediction.answers
        )
        place = prediction.place
        if place is not None:
            if place.known:  # a candidate here, but its score is not in the normaliser yet
                normaliser = float(np.logaddexp(normaliser, place.score))
            place = replace(place, in_set=normaliser - place.score <= guarantee.threshold)
        size, num_candidates = int(inside.sum()), int(is_candidate.sum())
        num_shown = sum(bool(answer.in_set) for answer in answers)
        answer_set = AnswerSet(size, num_candidates, guarantee, num_shown)
        return replace(prediction, answers=answers, place=place, answer_set=answer_set)

    def _best(
        self, shown: Scores, candidates: Scores, known: Known, top_k: int
    ) -> list[tuple[Answer, ...]]:
        best, ids = shown.topk(min(top_k, shown.shape[1]), dim=1)
        probabilities = self._probabilities(candidates, ids)
        flags = known.gather(1, ids).tolist()
        width, named = ids.shape[1], self.entities.named(ids.flatten().numpy())
        return [
            tuple(
                Answer(
                    place + 1,
                    *named[row * width + place],
                    score=score,
                    probability=probabilities[row][place] if probabilities else None,
                    known=None if self.known is None else flags[row][place],
                )
                for place, score in enumerate(row_scores)
                if score != -np.inf
            )
            for row, row_scores in enumerate(best.tolist())
        ]

    def _place(self, question: "Resolved", limits: Limits) -> Place | None:
        if question.about is None:
            return None
        given, relation, about = (
            np.array([row]) for row in (question.entity, question.relation, question.about)
        )
        found = self.places(
            given,
            relation,
            about,
            candidates=limits.candidates(self, question.relation) if limits else None,
            temperature=self.temperature,
        )
        ((name, label),) = self.entities.named(about)
        return Place(
            rank=float(found.rank[0]),
            num_candidates=int(found.num_candidates[0]),
            name=name,
            label=label,
            score=float(found.score[0]),
            probability=float(found.probability[0]) if self.calibration else None,
            known=None if self.known is None else bool(found.known[0]),
        )

    def _probabilities(self, candidates: Scores, ids: Tensor) -> list[list[float | None]] | None:
        if self.calibration is None:
            return None
        scaled = candidates / self.temperature
        normaliser = scaled.logsumexp(dim=1)
        shown = scaled.gather(1, ids) - normaliser[:, None]
        return [[p if p > 0 else None for p in row] for row in shown.double().exp().tolist()]

    def resolve(self, query: Query) -> "Resolved":
        """Return the query with names from the vocabulary, and its rows in the model's tables."""
        asks_for = query.asks_for
        relation = self.relations.id_of_text(query.relation)
        entity = self.entities.id_of_text(query.given[1])
        about = None if query.about is None else self.entities.id_of_text(query.about)
        name, end = self.relations.name(relation), self.entities.name(entity)
        named = None if about is None else self.entities.name(about)
        if asks_for == "tail":
            return Resolved(Query(name, head=end, about=named), entity, relation, about)
        if not self.has_inverses:
            raise DataError(
                f"heads of ({name}, {end}) requested, but this model was trained without inverse "
                "relations and predicts tails only; train with data.inverse_relations=true"
            )
        inverse = relation + len(self.relations)
        return Resolved(Query(name, tail=end, about=named), entity, inverse, about)


@dataclass(frozen=True)
class Resolved:
    """A query with names from the vocabulary, and its rows in the model's tables."""

    query: Query
    entity: int
    relation: int
    """Row of the relation; r + R asks for heads of r."""
    about: int | None
    """Row of the entity whose rank is reported."""
