"""Records of how well a model's influence scores predict the effect of retraining.

`clew validate-influence` writes a record as `validation/validation.json` of a run of kind
`validate`. Every later explanation of that model contains the result for its form of score. The
dashboard reads the records too. This module does not need torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.config.services import Question, TestLoss
from clew.errors import DataError, described

SIBLINGS = "siblings"
Seeds = Literal["same", "other"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measured(_Record):
    """A mean over test triples, and the half-width of its 95 % interval (Student's t)."""

    mean: float
    half_width: float | None
    """None for a single test triple."""

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


class DatamodellingScore(_Record):
    """Rank correlation of a form's summed scores with the effect of leaving out random subsets."""

    form: str
    drop: float
    """Share of the facts that each retraining leaves out."""
    seeds: Seeds
    """Retraining with the run's own seed (`same`), or the mean over other seeds (`other`)."""
    correlation: Measured
    over_siblings: Measured | None = None
    """Difference to the correlation that counting siblings reaches on the same test triples."""


class Ceiling(_Record):
    """The correlation of perfect scores with this number of other seeds; None with too few."""

    drop: float
    correlation: float | None


class DeletionEffect(_Record):
    """Effect of deleting the strongest facts, compared with no deletion and the same seeds."""

    form: str
    num_facts: int
    """Number of facts deleted for each test triple."""
    log_probability: Measured
    """Decrease of the answer's log-probability; the mean of both answers if both are explained."""
    reciprocal_rank: Measured
    """Decrease of the answer's reciprocal rank."""


class ValidationSummary(_Record):
    """Short result of the test of one form of score, to show with an explanation."""

    run_id: str
    form: str
    lds_same_seed: float | None = None
    lds_other_seeds: float | None = None
    lds_siblings: float | None = None
    """Correlation of counting siblings: with other seeds if measured, else with the same seed."""
    lds_ceiling: float | None = None
    deletion_log_probability_drop: float | None = None

    @property
    def sentence(self) -> str:
        """The summary as a sentence; empty if the form was not tested."""
        value = self.lds_same_seed if self.lds_other_seeds is None else self.lds_other_seeds
        if value is None:
            return ""
        beside = (
            [] if self.lds_siblings is None else [f"counting siblings {_short(self.lds_siblings)}"]
        )
        beside += [] if self.lds_ceiling is None else [f"ceiling {_short(self.lds_ceiling)}"]
        compared = f" ({', '.join(beside)})" if beside else ""
        return (
            "Tested: on this data, this form of score predicts retraining with a rank correlation "
            f"of {_short(value)}{compared}."
        )


class ValidationRecord(_Record):
    """The complete result of a test of explanations."""

    schema_version: Literal[1] = 1
    source_run: str
    ensemble: tuple[str, ...] = ()
    """Runs whose scores were averaged, including the source run; empty for a single run."""
    direction: Question = "both"
    """The question that the scores explain."""
    test_loss: TestLoss = "trained"
    """The loss of that question that the scores explain."""
    data_fingerprint: str
    config_hash: str
    num_tests: int
    num_subsets: int
    num_other_seeds: int
    num_retrainings: int
    num_deletions: int | None = None
    """Number of test triples whose strongest facts were deleted; None in older records."""
    largest_difference: float
    """Largest difference of log-probabilities between the run and a retraining on all facts."""
    scores: tuple[DatamodellingScore, ...]
    ceilings: tuple[Ceiling, ...] = Field(min_length=1)
    deletions: tuple[DeletionEffect, ...]

    @property
    def drop(self) -> float:
        return max(ceiling.drop for ceiling in self.ceilings)

    def correlation(self, form: str, seeds: Seeds) -> float | None:
        """Return a form's mean datamodelling score at the largest share; None if not measured."""
        for score in self.scores:
            if (score.form, score.seeds, score.drop) == (form, seeds, self.drop):
                return score.correlation.mean
        return None

    def summary(self, form: str, run_id: str) -> ValidationSummary:
        """Return the short result of one form of score."""
        siblings = self.correlation(SIBLINGS, "other" if self.num_other_seeds else "same")
        effects = [effect for effect in self.deletions if effect.form == form]
        most = max((effect.num_facts for effect in effects), default=0)
        falls = [e.log_probability.mean for e in effects if e.num_facts == most]
        return ValidationSummary(
            run_id=run_id,
            form=form,
            lds_same_seed=self.correlation(form, "same"),
            lds_other_seeds=self.correlation(form, "other"),
            lds_siblings=siblings,
            lds_ceiling=next(c.correlation for c in self.ceilings if c.drop == self.drop),
            deletion_log_probability_drop=falls[0] if falls else None,
        )

    def markdown(self) -> Iterator[str]:
        """Yield lines of Markdown: a table of datamodelling scores and, if any, of deletions."""
        columns = list(dict.fromkeys((s.drop, s.seeds) for s in self.scores))
        yield from _head("form", [_measured(drop, seeds) for drop, seeds in columns])
        found = {(s.form, s.drop, s.seeds): _with_difference(s) for s in self.scores}
        for form in dict.fromkeys(s.form for s in self.scores):
            yield _row(form, [found[form, *column] for column in columns])
        shown = {
            c.drop: "" if c.correlation is None else f"{c.correlation:.3f}" for c in self.ceilings
        }
        if any(shown.values()):
            yield _row("ceiling", [shown[d] if seeds == "other" else "" for d, seeds in columns])
        else:
            yield from ("", "A ceiling needs at least two other seeds.")
        if not self.deletions:
            return
        numbers = sorted({effect.num_facts for effect in self.deletions})
        if self.num_deletions is not None:
            yield from ("", f"Deletions, for {self.num_deletions} test triples ranked first:")
        yield ""
        yield from _head(
            "strongest of",
            [f"{number} deleted: fall of log-probability [nats]" for number in numbers],
        )
        effects = {(e.form, e.num_facts): str(e.log_probability) for e in self.deletions}
        for form in dict.fromkeys(effect.form for effect in self.deletions):
            yield _row(form, [effects[form, number] for number in numbers])


def read_validation(path: Path) -> ValidationRecord:
    """Read a validation result."""
    try:
        return ValidationRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise DataError(f"{path}: {described(error)}; expected a validation result") from None


def chart(record: ValidationRecord) -> dict[str, object]:
    """Return a Vega-Lite chart of the datamodelling scores with their intervals."""
    values = [
        {
            "form": s.form,
            "measured": _measured(s.drop, s.seeds),
            "correlation": s.correlation.mean,
            "low": s.correlation.mean - (s.correlation.half_width or 0.0),
            "high": s.correlation.mean + (s.correlation.half_width or 0.0),
        }
        for s in record.scores
    ]
    rows = {"field": "form", "type": "nominal", "sort": None, "title": None}
    bars = {"y": rows, "x": {"field": "correlation", "type": "quantitative"}}
    ends = {"y": rows, "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    layers = [{"mark": "bar", "encoding": bars}, {"mark": "rule", "encoding": ends}]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "description": "Rank correlation of predicted and measured rise of the loss",
        "data": {"values": values},
        "facet": {"column": {"field": "measured", "type": "nominal", "title": None}},
        "spec": {"layer": layers},
    }


def _measured(drop: float, seeds: Seeds) -> str:
    return f"{drop:.0%} dropped, {seeds} seed{'s' * (seeds == 'other')}"


def _with_difference(score: DatamodellingScore) -> str:
    over = score.over_siblings
    return str(score.correlation) + (f" ({over.mean:+.3f})" if over else "")


def _head(first: str, columns: list[str]) -> Iterator[str]:
    yield _row(first, columns)
    yield "|---" * (len(columns) + 1) + "|"


def _row(first: str, cells: list[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def _short(value: float) -> str:
    """Return a correlation with two digits and without a leading zero: .35, -.02."""
    return f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1)  # + 0.0: no -.00
