"""Queries to a link-prediction model and its answers, by name."""

from dataclasses import dataclass
from typing import Any, Literal

from clew.errors import ConfigError

Side = Literal["head", "tail"]


@dataclass(frozen=True)
class Query:
    """A relation and one end of it; the other end is asked for."""

    relation: str
    head: str | None = None
    tail: str | None = None

    @property
    def asks_for(self) -> Side:
        """Which end is asked for.

        Raises:
            ConfigError: If the relation is missing, or if none or both of the ends are given.
        """
        if not self.relation or bool(self.head) == bool(self.tail):
            raise ConfigError(
                f"query with head {self.head!r}, relation {self.relation!r}, tail {self.tail!r}; "
                "give a relation and either a head (to ask for tails) or a tail (to ask for heads)"
            )
        return "tail" if self.head else "head"


@dataclass(frozen=True)
class Answer:
    """One entity as the answer of a query.

    `probability` is the probability that the answer is this entity, given that it is not one known
    from training; None for a known one, and if no calibration was fitted. `known` is None if the
    training triples are not available.
    """

    rank: int
    name: str
    label: str
    score: float
    probability: float | None
    known: bool | None


@dataclass(frozen=True)
class Prediction:
    """A query, under the names of the vocabulary, and its best answers."""

    query: Query
    answers: tuple[Answer, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the query, and its answers."""
        given: Side = "head" if self.query.asks_for == "tail" else "tail"
        return {
            given: getattr(self.query, given),
            "relation": self.query.relation,
            "answers": [
                {
                    "rank": answer.rank,
                    self.query.asks_for: answer.name,
                    "label": answer.label,
                    "score": answer.score,
                    "probability": answer.probability,
                    "known": answer.known,
                }
                for answer in self.answers
            ],
        }
