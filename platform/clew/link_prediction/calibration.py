"""Probabilities and answer sets that are calibrated on held-out data.

Temperature scaling turns scores into probabilities.

A score is a logit. With temperature T, the probability that entity o is the answer to a query is

    p(o | query) = exp(s_o / T) / sum over candidates c of exp(s_c / T)

(Guo et al., 2017, arXiv 1706.04599, section 4.2). The candidates are all entities except other
known answers, so p is the probability that *one more* answer is o. T minimises the mean negative
log-likelihood of held-out answers. It does not change any rank.

Answer sets with a coverage guarantee come from split-conformal prediction, for each relation and
end. The nonconformity score of a candidate e is its surprise in nats,

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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Bool, Float, Float64, Int
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from clew import names
from clew.errors import CheckpointError, ConfigError, DataError, refusing
from clew.files import write_json
from clew.input_files import read_columns
from clew.link_prediction.models.base import Ids, Scores

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
LOG_TOLERANCE = 1e-3
NUM_BINS = 15

Values = Float[Tensor, "batch"]
Flags = Bool[Tensor, "batch"]
HeldOut = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Yields batches `(scores, answers)`, the same ones at every call. `scores` `(batch, entity)` are
-inf for entities that are not candidates, and `answers` `(batch,)` are ids of entities."""


@dataclass(frozen=True)
class Calibration:
    """A fitted temperature, and the quality of probabilities before (T = 1) and after the fit.

    `nll` is the mean negative log-likelihood of the held-out answers, in nats. `ece` is the
    expected calibration error: the mean gap between the probability of the best answer and how
    often this answer is right.

    A fit is not used if it ended at a bound, or if it made `ece` larger. The temperature is then 1,
    the values after the fit equal those before, and `not_fitted_because` gives the reason.
    """

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    num_queries: int
    nll_before: float
    nll_after: float
    ece_before: float
    ece_after: float
    not_fitted_because: str = ""

    def describe(self) -> str:
        """Return a summary of the fit for users."""
        found = f"temperature {self.temperature:.3f} on {self.num_queries:,} validation queries"
        if self.not_fitted_because:
            return f"{found}, not fitted: {self.not_fitted_because}"
        error = f"expected calibration error {self.ece_before:.3f} -> {self.ece_after:.3f}"
        return f"{found}; {error} on the same queries"

    def tags(self) -> dict[str, str]:
        return {names.TAG_TEMPERATURE: f"{self.temperature:.6g}"}

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        what, kinds = f"{path}: not a calibration", (OSError, ValidationError)
        with refusing(what, *kinds, advice="; promote again", error=CheckpointError):
            return TypeAdapter(cls).validate_json(path.read_bytes())


def log_likelihood(scores: Scores, answers: Ids, temperature: float) -> Values:
    """Return log p(answer | query) at a temperature, in nats, `(batch,)`."""
    scaled = scores / temperature
    chosen = scaled.gather(1, answers.long().unsqueeze(1)).squeeze(1)
    return chosen - scaled.logsumexp(dim=1)


def first_answers(scores: Scores, answers: Ids, temperature: float) -> tuple[Values, Flags]:
    """Return the probability of each query's best answer, and whether it is right, `(batch,)`."""
    scaled = scores / temperature
    best, index = scaled.max(dim=1)
    return (best - scaled.logsumexp(dim=1)).exp(), index == answers


def expected_calibration_error(confidence: Values, correct: Flags) -> float:
    """Return the mean gap between confidence and accuracy over bins of equal width."""
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    gaps = torch.zeros(NUM_BINS, dtype=torch.float64)
    gaps.index_add_(0, bins, confidence.double() - correct.double())
    return float(gaps.abs().sum() / len(confidence))


def fit_temperature(held_out: HeldOut) -> Calibration | None:
    """Fit the temperature to held-out answers; return None if there are none.

    The mean negative log-likelihood is convex in 1 / T, so it also has a single minimum in log T.
    """
    if next(held_out(), None) is None:
        return None
    from scipy.optimize import minimize_scalar  # half a second that predictions do not need

    bounds = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    found = minimize_scalar(
        lambda log_temperature: _mean_nll(held_out, math.exp(log_temperature)),
        bounds=bounds,
        method="bounded",
        options={"xatol": LOG_TOLERANCE},
    )
    temperature, reason = math.exp(float(found.x)), ""
    before, after = _quality(held_out, 1.0), _quality(held_out, temperature)
    # The search stays inside its bounds: if it runs into one, it ends a few tolerances away.
    bound = min(bounds, key=lambda bound: abs(bound - found.x))
    if abs(bound - found.x) < 10 * LOG_TOLERANCE:
        reason = f"the fit ended at its bound, temperature {math.exp(bound):.3g}"
    elif after[1] > before[1]:
        reason = (
            f"temperature {temperature:.3f} makes the expected calibration error worse, "
            f"{before[1]:.3f} -> {after[1]:.3f}"
        )
    if reason:
        temperature, after = 1.0, before
    (nll, ece, num_queries), (nll_after, ece_after, _) = before, after
    return Calibration(temperature, num_queries, nll, nll_after, ece, ece_after, reason)


def _mean_nll(held_out: HeldOut, temperature: float) -> float:
    total, count = 0.0, 0
    for scores, answers in held_out():
        total -= float(log_likelihood(scores, answers, temperature).double().sum())
        count += len(answers)
    return total / count


def _quality(held_out: HeldOut, temperature: float) -> tuple[float, float, int]:
    parts = [first_answers(scores, answers, temperature) for scores, answers in held_out()]
    confidence = torch.cat([part[0] for part in parts])
    correct = torch.cat([part[1] for part in parts])
    nll = _mean_nll(held_out, temperature)
    return nll, expected_calibration_error(confidence, correct), len(correct)


MIN_TRIPLES = 20
"""A relation with fewer validation triples uses those of all relations."""
MANY = 100
"""An answer set of more entities says that the model does not know."""

Surprisals = Float64[np.ndarray, " query"]
VALID, TEST = "valid", "test"


@dataclass(frozen=True)
class Guarantee:
    """The coverage guarantee of a query's answer set, and the coverage on test triples."""

    level: float
    threshold: float
    """Largest nonconformity score in the set, in nats; if infinite, the set is all candidates."""
    num_own: int
    """Number of validation triples of the relation, among those that were used."""
    num_valid: int
    """Number of validation triples that the threshold is computed from."""
    num_test: int
    """Number of test triples on which the coverage was measured."""
    coverage: float | None
    """Share of these test triples whose answer is in its set; None without test triples."""

    @property
    def sentence(self) -> str:
        """The guarantee, the data behind it and the measured coverage, in words."""
        average, of = "", "this relation"
        if self.num_own < MIN_TRIPLES:
            average = " on average over relations"
            of = f"all relations ({self.num_own:,} of this one, fewer than {MIN_TRIPLES})"
        level = f"{100 * self.level:.15g} %"  # the digits that were given
        text = (
            f"It is meant to contain a new answer in at least {level} of all cases{average}. "
            f"It was calibrated on {self.num_valid:,} validation triples of {of}"
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
        shown = ", so many that the model does not know" if self.size > MANY else ""
        if self.num_shown < self.size:
            verb = "are" if self.num_shown > 1 else "is"
            count = f"{f'{self.num_shown:,}' if self.num_shown else 'none'} of them {verb}"
            shown += (
                f"; {count} among these answers: ask for more answers, or for new ones only, to "
                "see the others"
            )
        return (
            f"The answer set is the best {self.size:,} of {self.num_candidates:,} new candidates"
            f"{shown}. {self.guarantee.sentence}"
        )

    def as_dict(self) -> dict[str, float | int | str | None]:
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


def conformal_threshold(values: Surprisals, level: float) -> float:
    """Return the k-th smallest value, k = ceil((n + 1) level); infinity if there are fewer."""
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
    is_test: Bool[np.ndarray, " query"]
    """Whether a query is of a test triple, and not of a validation triple."""
    relation: Int[np.ndarray, " query"]
    """Relation of each query; r + R asks for heads of r."""
    surprise: Surprisals
    """Nonconformity score of the true answer to each query, in nats."""

    def guarantee(self, relation: int, level: float) -> Guarantee:
        """Return the guarantee for the queries of a relation; r + R asks for heads of r."""
        asked = self.relation == relation
        num_own = int((asked & ~self.is_test).sum())
        if num_own < MIN_TRIPLES:
            asked = self.relation // self.num_relations == relation // self.num_relations
        valid, test = self.surprise[asked & ~self.is_test], self.surprise[asked & self.is_test]
        threshold = conformal_threshold(valid, level)
        coverage = float(np.mean(test <= threshold)) if len(test) else None
        return Guarantee(level, threshold, num_own, len(valid), len(test), coverage)

    def write(self, path: Path) -> None:
        """Write a Parquet file with a row for each held-out query."""
        table = pa.table(
            {
                "split": pa.array(np.where(self.is_test, TEST, VALID)),
                "relation": self.relation,
                "surprise": self.surprise,
            },
            metadata={b"num_relations": str(self.num_relations).encode()},
        )
        pq.write_table(table, path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> "AnswerSets":
        types = {"split": pa.string(), "relation": pa.int64(), "surprise": pa.float64()}
        table = read_columns(path, types, "a file of answer sets")
        said = (table.schema.metadata or {}).get(b"num_relations", b"")
        if not said.isdigit() or len(said) > 10 or any(c.null_count for c in table.columns):
            raise DataError(f"{path}: not a file of answer sets (a number is missing)")
        split, relation, surprise = (column.to_numpy() for column in table.columns)
        if not np.isin(split, (VALID, TEST)).all():
            raise DataError(
                f"{path}: not a file of answer sets (a split is neither valid nor test)"
            )
        return cls(max(int(said), 1), split == TEST, relation, surprise)
