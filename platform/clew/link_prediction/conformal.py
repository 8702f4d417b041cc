"""Answer sets with a coverage guarantee: split-conformal prediction, for each relation and end.

The candidates of a query are all entities except other answers that are known from training. The
nonconformity score of a candidate e is its surprise in nats,

    a(e | query) = -log softmax(scores)_e = log sum over candidates c of exp(s_c) - s_e.

Let a_1 <= ... <= a_n be the surprises of the true answers to n validation queries. The answer set
at a level contains all candidates with a(e | query) <= q, where

    q = a_k,  k = ceil((n + 1) level),  and infinity if k > n.

If a new query is exchangeable with the validation queries, its set contains the true answer with a
probability of at least the level, for any model (Vovk et al., 2005, Algorithmic Learning in a
Random World; Angelopoulos and Bates, 2021, arXiv 2107.07511, section 1 and, by group, section 4.1;
for knowledge graphs Zhu et al., 2024, arXiv 2408.08248). A group is the queries of one relation for
one end. A relation with too few of them uses the queries of all relations for that end, and the
guarantee then holds on average over relations.

Validation triples that were used to choose the checkpoint are slightly less surprising than new
triples, and a user's questions can differ from both. Therefore, the coverage on test triples is
measured and reported together with the guarantee.
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
    """Nonconformity scores of the true answers to held-out queries."""

    relation: Int[np.ndarray, " query"]
    """Relation of each query; r + R asks for heads of r."""
    value: Values
    """In nats."""


@dataclass(frozen=True)
class Guarantee:
    """The coverage guarantee of a query's answer set, and the coverage on test triples."""

    level: float
    threshold: float
    """Largest nonconformity score in the set, in nats; if infinite, the set is all candidates."""
    num_own: int
    """Number of validation triples of the relation."""
    num_valid: int
    """Number of validation triples that the threshold is computed from."""
    num_test: int
    """Number of test triples on which the coverage was measured."""
    coverage: float | None
    """Share of these test triples whose answer is in its set; None without test triples."""

    @property
    def is_of_relation(self) -> bool:
        return self.num_own >= MIN_TRIPLES

    @property
    def sentence(self) -> str:
        """The guarantee, the data behind it and the measured coverage, in words."""
        average, of = "", "this relation"
        if not self.is_of_relation:
            average = (
                f" on average over relations (this one has {self.num_own:,} validation triples, "
                f"fewer than {MIN_TRIPLES})"
            )
            of = "all relations"
        level, grounds = 100 * self.level, f"{self.num_valid:,} validation triples of {of}"
        text = (
            f"It is meant to contain a new answer in at least {level:.4g} % of all cases{average}. "
            f"It was calibrated on {grounds}"
        )
        if math.isinf(self.threshold):
            text += ", too few for this level, so it contains every candidate"
        if self.coverage is None:
            return f"{text}. There are no test triples to measure its coverage."
        share = f"{100 * self.coverage:.1f} %"
        return (
            f"{text}. Such sets contained {share} of the answers of {self.num_test:,} test triples."
        )


@dataclass(frozen=True)
class AnswerSet:
    """The size of a query's answer set, and its guarantee.

    The set is the `size` best of the `num_candidates` entities that are not known answers.
    """

    size: int
    num_candidates: int
    guarantee: Guarantee
    num_shown: int
    """Number of entities of the set that are among the returned answers."""

    @property
    def sentence(self) -> str:
        """The size of the set and its guarantee, in words."""
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
        ConfigError: If the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1, for example 0.9")
    # The exact decimal: (n + 1) times the float closest to 0.9 can be just above a whole number.
    k = math.ceil((len(values) + 1) * Fraction(str(level)))
    return float(np.partition(values, k - 1)[k - 1]) if k <= len(values) else math.inf


@dataclass(frozen=True, eq=False)
class AnswerSets:
    """The surprises of a model on held-out queries, which determine answer sets at any level."""

    num_relations: int
    """Number of relations, without inverses."""
    valid: Surprises
    test: Surprises

    def guarantee(self, relation: int, level: float) -> Guarantee:
        """Return the guarantee for the queries of a relation; r + R asks for heads of r.

        Raises:
            ConfigError: If the level is not between 0 and 1.
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
            DataError: If the file does not contain answer sets.
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
