"""Queries to a link-prediction model and its answers, by name."""

from dataclasses import dataclass
from typing import Any

from clew.errors import ConfigError, quoted
from clew.link_prediction.conformal import AnswerSet
from clew.link_prediction.rank_metrics import Side


@dataclass(frozen=True)
class Query:
    """A relation and one end of it; the other end is asked for.

    With both ends it is a whole triple: each end is then asked for in turn, and the other one is
    the `about` of that question.
    """

    relation: str
    head: str | None = None
    tail: str | None = None
    about: str | None = None
    """An entity at the end that is asked for, to be placed among all others whatever its rank."""

    @property
    def is_triple(self) -> bool:
        """Whether it is a whole triple."""
        return bool(self.relation and self.head and self.tail)

    @property
    def asks_for(self) -> Side:
        """Which end is asked for.

        Raises:
            ConfigError: If the relation is missing, or if none or both of the ends are given.
        """
        if not self.relation or bool(self.head) == bool(self.tail):
            raise ConfigError(
                f"query with head {quoted(self.head or '')}, relation {quoted(self.relation)}, "
                f"tail {quoted(self.tail or '')}; give a relation and either a head (to ask for "
                "tails) or a tail (to ask for heads)"
            )
        return "tail" if self.head else "head"

    @property
    def given(self) -> tuple[Side, str]:
        """The end that is given, and the entity there."""
        side: Side = "head" if self.asks_for == "tail" else "tail"
        return side, self.head or self.tail or ""

    def ways(self, *, heads: bool = True) -> list["Query"]:
        """Return the questions in it: one for each end of a whole triple, else itself.

        Args:
            heads: Whether heads of a triple can be asked for.
        """
        if not self.is_triple:
            return [self]
        for_tails = Query(self.relation, head=self.head, about=self.tail)
        for_heads = Query(self.relation, tail=self.tail, about=self.head)
        return [for_tails, for_heads] if heads else [for_tails]


@dataclass(frozen=True)
class Answer:
    """One entity as the answer of a query.

    `probability` is the probability that the answer is this entity, given that it is not one known
    from training; None for a known one, and if no calibration was fitted. `known` is None if the
    training triples are not available. `in_set` is whether it is in the answer set; None if none
    was asked for.
    """

    rank: int
    name: str
    label: str
    score: float
    probability: float | None
    known: bool | None
    in_set: bool | None = None


@dataclass(frozen=True)
class Place:
    """Where a model puts an entity that was asked about, among all answers but other known ones.

    `rank` is 1 + the number of candidates with a higher score + half the number with the same one.
    `probability` is that of being the answer, given that it is none of the other known ones; None
    if no calibration was fitted.
    """

    rank: float
    num_candidates: int
    name: str
    label: str
    score: float
    probability: float | None
    known: bool | None
    in_set: bool | None = None


@dataclass(frozen=True)
class Prediction:
    """A query, under the names of the vocabulary, and its best answers."""

    query: Query
    answers: tuple[Answer, ...]
    num_known: int | None = None
    """Training triples with this relation and this end; None if they are not available."""
    place: Place | None = None
    """Where the entity stands that the query is about."""
    answer_set: AnswerSet | None = None
    """The set that was asked for."""

    @property
    def warning(self) -> str | None:
        """What makes the answers a guess: training says nothing of this end with this relation."""
        if self.num_known != 0:
            return None
        side, entity = self.query.given
        return (
            f"{entity!r} is never the {side} of {self.query.relation!r} in training; the answers "
            "come from other facts about both alone"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the query, its answers, and the entity that it is about."""
        side, entity = self.query.given
        content: dict[str, Any] = {
            side: entity,
            "relation": self.query.relation,
            "num_known": self.num_known,
            "warning": self.warning,
            "answers": [self._row(answer) for answer in self.answers],
        }
        if self.place is not None:
            place = self._row(self.place)
            content["asked"] = place | {"num_candidates": self.place.num_candidates}
        if self.answer_set is not None:
            content["answer_set"] = self.answer_set.as_dict()
        return content

    def _row(self, row: Answer | Place) -> dict[str, Any]:
        told = {} if row.in_set is None else {"in_set": row.in_set}
        return {
            "rank": row.rank,
            self.query.asks_for: row.name,
            "label": row.label,
            "score": row.score,
            "probability": row.probability,
            "known": row.known,
        } | told
