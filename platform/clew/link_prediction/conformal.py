"""Answer sets with a guarantee: split-conformal prediction, for each relation and end.

The candidates of a query are all entities but the other answers that training knows. The
nonconformity of a candidate e is its surprise in nats,

    a(e | query) = -log softmax(scores)_e = log sum over candidates c of exp(s_c) - s_e.

With the values a_1 <= ... <= a_n of the true answers of n validation queries, the answer set at a
level is every candidate with a(e | query) <= q, where

    q = a_k,  k = ceil((n + 1) level),  and infinity if k > n.

If the query asked is exchangeable with those, its set holds the true answer with a probability of
at least the level, whatever the model (Vovk et al., 2005, Algorithmic Learning in a Random World;
Angelopoulos and Bates, 2021, arXiv 2107.07511, section 1 and, by group, section 4.1; for knowledge
graphs Zhu et al., 2024, arXiv 2408.08248). A relation's own queries for that end are the group; one
with too few of them uses the queries of all relations for that end, and the guarantee is then on
average over relations.

Validation triples that chose the checkpoint are a little less surprising than new ones, and a
question that a person asks need not be like them at all. So the coverage of test triples is
measured and shown beside the promise.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int

from clew.errors import ConfigError, DataError
from clew.parquet import read_columns

MIN_TRIPLES = 20
"""A relation with fewer validation triples uses those of all relations."""

Values = Float64[np.ndarray, " query"]
VALID, TEST = "valid", "test"


@dataclass(frozen=True, eq=False)
class Surprises:
    """Nonconformity of the true answers of held-out queries."""

    relation: Int[np.ndarray, " query"]
    """Relation of each query; r + R asks for heads of r."""
    value: Values
    """In nats."""


@dataclass(frozen=True)
class Guarantee:
    """What is promised of a query's answer set, and what was measured of such sets."""

    level: float
    threshold: float
    """Largest nonconformity in the set, in nats; infinite: the set holds every candidate."""
    num_own: int
    """Validation triples of the relation."""
    num_valid: int
    """Validation triples that the threshold is from."""
    num_test: int
    """Test triples on which the coverage was measured."""
    coverage: float | None
    """Share of them whose answer was in its set; None without test triples."""

    @property
    def is_of_relation(self) -> bool:
        """Whether the relation has enough validation triples of its own."""
        return self.num_own >= MIN_TRIPLES

    @property
    def sentence(self) -> str:
        """What is promised, on what grounds, and what was measured, in words."""
        average, of = "", "this relation"
        if not self.is_of_relation:
            average = (
                f" on average over relations (this one has {self.num_own:,} validation triples, "
                f"fewer than {MIN_TRIPLES})"
            )
            of = "all relations"
        level, grounds = 100 * self.level, f"{self.num_valid:,} validation triples of {of}"
        text = (
            f"It is meant to hold a new answer in at least {level:.4g} % of all cases{average}: "
            f"calibrated on {grounds}"
        )
        if math.isinf(self.threshold):
            text += ", too few for this level, so that it is every candidate"
        if self.coverage is None:
            return f"{text}; there are no test triples to measure it on."
        share = f"{100 * self.coverage:.1f} %"
        return f"{text}, it held {share} of the answers of {self.num_test:,} test triples."


@dataclass(frozen=True)
class AnswerSet:
    """The size of a query's answer set, and what is promised of it.

    The set is the `size` best of the `num_candidates` entities that are no known answers.
    """

    size: int
    num_candidates: int
    guarantee: Guarantee
    num_shown: int
    """How many of its entities are among the answers."""

    @property
    def sentence(self) -> str:
        """Its size, and what is promised of it, in words."""
        shown = ""
        if self.num_shown < self.size:
            verb = "are" if self.num_shown > 1 else "is"
            count = f"{f'{self.num_shown:,}' if self.num_shown else 'none'} of them {verb}"
            shown = (
                f"; {count} among these answers: ask for more answers, or for new ones only, to "
                "see the others"
            )
        return (
            f"The answer set is the best {self.size:,} of {self.num_candidates:,} new candidates"
            f"{shown}. {self.guarantee.sentence}"
        )

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Return JSON values."""
        promised = self.guarantee
        return {
            "level": promised.level,
            "size": self.size,
            "num_shown": self.num_shown,
            "num_candidates": self.num_candidates,
            "num_valid": promised.num_valid,
            "num_valid_of_relation": promised.num_own,
            "num_test": promised.num_test,
            "coverage": promised.coverage,
            "sentence": self.sentence,
        }


def conformal_threshold(values: Values, level: float) -> float:
    """Return the k-th smallest value, k = ceil((n + 1) level); infinity if there are fewer.

    Raises:
        ConfigError: the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1, for example 0.9")
    # As it is written: (n + 1) times the binary number next to 0.9 may lie above a whole number.
    k = math.ceil((len(values) + 1) * Fraction(str(level)))
    return float(np.partition(values, k - 1)[k - 1]) if k <= len(values) else math.inf


@dataclass(frozen=True, eq=False)
class AnswerSets:
    """What answer sets at any level need: the surprises of a model on held-out queries."""

    num_relations: int
    """Number of relations, without inverses."""
    valid: Surprises
    test: Surprises

    def guarantee(self, relation: int, level: float) -> Guarantee:
        """Return what is promised of the queries of a relation; r + R asks for heads of r.

        Raises:
            ConfigError: the level is not between 0 and 1.
        """
        num_own = int((self.valid.relation == relation).sum())
        valid, test = (
            part.value[
                part.relation == relation
                if num_own >= MIN_TRIPLES
                else part.relation // self.num_relations == relation // self.num_relations
            ]
            for part in (self.valid, self.test)
        )
        threshold = conformal_threshold(valid, level)
        coverage = float(np.mean(test <= threshold)) if len(test) else None
        return Guarantee(level, threshold, num_own, len(valid), len(test), coverage)

    def write(self, path: Path) -> None:
        """Write a Parquet file with a row for each held-out query."""
        parts = [(VALID, self.valid), (TEST, self.test)]
        table = pa.table(
            {
                "split": pa.array([split for split, part in parts for _ in part.value]),
                "relation": np.concatenate([part.relation for _, part in parts]),
                "surprise": np.concatenate([part.value for _, part in parts]),
            },
            metadata={b"num_relations": str(self.num_relations).encode()},
        )
        pq.write_table(table, path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> "AnswerSets":
        """Read a file written by `write`.

        Raises:
            DataError: it is none.
        """
        types = {"split": pa.string(), "relation": pa.int64(), "surprise": pa.float64()}
        table = read_columns(path, types, "a file of answer sets")
        said = (table.schema.metadata or {}).get(b"num_relations", b"")
        if not said.isdigit() or len(said) > 10 or any(c.null_count for c in table.columns):
            raise DataError(f"{path}: not a file of answer sets (a number is missing)")
        num_relations = max(int(said), 1)
        split, relation, value = (column.to_numpy() for column in table.columns)
        valid, test = (
            Surprises(relation[split == name], value[split == name]) for name in (VALID, TEST)
        )
        return cls(num_relations, valid, test)
