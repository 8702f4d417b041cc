"""Temperature scaling: turns scores into probabilities that are calibrated on held-out data.

A score is a logit. With temperature T, the probability that entity o is the answer to a query is

    p(o | query) = exp(s_o / T) / sum over candidates c of exp(s_c / T)

(Guo et al., 2017, arXiv 1706.04599, section 4.2). The candidates are all entities except other
known answers, so p is the probability that *one more* answer is o. T minimises the mean negative
log-likelihood of held-out answers. It does not change any rank.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field, TypeAdapter, ValidationError
from scipy.optimize import minimize_scalar
from torch import Tensor

from clew import names
from clew.errors import CheckpointError, described
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
    split: str = "valid"
    not_fitted_because: str = ""

    def describe(self) -> str:
        """Return a summary of the fit for users."""
        found = f"temperature {self.temperature:.3f} on {self.num_queries:,} validation queries"
        if self.not_fitted_because:
            return f"{found}, not fitted: {self.not_fitted_because}"
        error = f"expected calibration error {self.ece_before:.3f} -> {self.ece_after:.3f}"
        return f"{found}; {error}"

    def tags(self) -> dict[str, str]:
        return {names.TAG_TEMPERATURE: f"{self.temperature:.6g}"}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Read a file written by `write`.

        Raises:
            CheckpointError: If the file does not contain a calibration.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            reason = described(error)
            raise CheckpointError(f"{path}: not a calibration ({reason}); promote again") from None


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
    return Calibration(
        temperature=temperature,
        num_queries=before[2],
        nll_before=before[0],
        nll_after=after[0],
        ece_before=before[1],
        ece_after=after[1],
        not_fitted_because=reason,
    )


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
