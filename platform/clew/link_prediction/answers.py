"""Queries to a link-prediction model and their answers, by name."""

from dataclasses import dataclass
from typing import Any

from clew.errors import ConfigError, quoted
from clew.link_prediction.conformal import AnswerSet
from clew.link_prediction.rank_metrics import Side


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
    """An entity at the end that is asked for; its rank is reported even if it is not among the
    best answers."""

    @property
    def is_triple(self) -> bool:
        return bool(self.relation and self.head and self.tail)

    @property
    def asks_for(self) -> Side:
        """The end that is asked for.

        Raises:
            ConfigError: If the relation is missing, or if neither or both of the ends are given.
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
        side: Side = "head" if self.asks_for == "tail" else "tail"
        return side, self.head or self.tail or ""

    def ways(self, *, heads: bool = True) -> list["Query"]:
        """Return one question for each end of a whole triple; else the query itself.

        Args:
            heads: Whether the model can answer questions for heads.
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

    rank: int
    name: str
    label: str
    score: float
    probability: float | None
    known: bool | None
    in_set: bool | None = None


@dataclass(frozen=True)
class Place:
    """The rank of an entity that a query is about.

    The candidates are all entities except other known answers. `rank` is 1 + the number of
    candidates with a higher score + half the number of other candidates with the same score.
    `probability` is the probability that this entity is the answer, given that the answer is none
    of the other known ones. It is None if no calibration was fitted.
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
    """A query, with names from the vocabulary, and its best answers."""

    query: Query
    answers: tuple[Answer, ...]
    num_known: int | None = None
    """Number of training triples with this relation and the given end; None if the training
    triples are not available."""
    place: Place | None = None
    """The rank of the entity that the query is about, if there is one."""
    answer_set: AnswerSet | None = None
    """The answer set, if one was requested."""

    @property
    def warning(self) -> str | None:
        """A warning if no training triple has the given end with this relation; else None."""
        if self.num_known != 0:
            return None
        side, entity = self.query.given
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
