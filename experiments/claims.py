"""Judges claims about a study by the values that `clew compare --output` measured.

    python -m experiments.claims                             # the claims of the guides
    python -m experiments.claims CLAIMS.yaml RESULTS.json    # your own

`experiments/studies/claims/` has the claims of the guides, a file for each study.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from clew.config.base import Section
from clew.config.load import read_section
from clew.config.study import load_study
from clew.errors import ClewError, ConfigError, DataError, described, quoted
from clew.runs.reading.metrics import Estimate
from clew.workflows.compare import shown

STUDIES = Path(__file__).parent / "studies"
METHOD = (
    "Differences and values have the same interval without logarithms. A claim holds if the whole "
    "interval keeps its bounds, does not hold if no part of it does, and cannot be told in between."
)
MEMORY = {"memory/process_": "process memory", "memory/gpu_": "GPU memory"}
"""Prefix of a metric to the kind of memory that it measures; a claim's text must name the kind."""


def memory_of(metric: str) -> str | None:
    """Return which kind of memory a metric measures; None if it measures something else."""
    return next((kind for start, kind in MEMORY.items() if metric.startswith(start)), None)


class Claim(Section):
    """A statement about a variant: bounds on how it compares with the reference."""

    variant: str
    """Variant that the claim is about."""
    metric: str
    """Metric that the claim is about. If it measures memory, the text must say which kind."""
    at_least: float | None = None
    """The measured value should be at least this."""
    at_most: float | None = None
    """The measured value should be at most this."""
    text: str
    """The claim in words."""
    source: str = ""
    """Where the claim was published, and its wording there."""
    needs: Literal["any", "gpu"] = "any"
    """Hardware that is needed to confirm or refute the claim."""
    about: Literal["ratio", "value", "difference"] = "ratio"
    """Whether the bound applies to the ratio to the reference, to the variant's own value, or to
    the difference from the reference. The whole 95 % interval over rounds must satisfy it."""
    against: str | None = None
    """Variant to compare with, instead of the study's reference."""

    def holds(self, measured: float) -> bool:
        """Return whether a number keeps the bounds."""
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )

    @model_validator(mode="after")
    def _has_bounds(self) -> Self:
        low, high = self.at_least, self.at_most
        if low is None and high is None:
            raise ValueError(f"claim {quoted(self.text)}: give at_least or at_most")
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"claim {quoted(self.text)}: at_least {low} is more than at_most {high}; "
                "correct one of them"
            )
        memory = memory_of(self.metric)
        if memory is not None and memory not in self.text:
            raise ValueError(f"claim {quoted(self.text)}: the text must name {memory}")
        return self


class Claims(Section):
    """A file of claims about one study."""

    study: str
    """YAML file of the study, or the name of a study that ships with Clew."""
    claims: list[Claim] = Field(min_length=1)
    """The claims, in the order in which they are shown."""

    @property
    def study_name(self) -> str:
        """The study's name, without the size that it was run with."""
        return load_study(self.study).name.partition(" (")[0]

    @model_validator(mode="after")
    def _fit_the_study(self) -> Self:
        study = load_study(self.study)
        metrics = [measure.metric for measure in study.measures]
        for claim in self.claims:
            for variant in filter(None, (claim.variant, claim.against)):
                if variant not in study.variants:
                    raise ValueError(
                        f"claim about variant {quoted(variant)}; valid: {', '.join(study.variants)}"
                    )
            if claim.metric not in metrics:
                raise ValueError(
                    f"claim about {quoted(claim.metric)}; measured: {', '.join(metrics)}"
                )
        return self


class Measured(BaseModel):
    """What one variant measured of one metric, by seed."""

    variant: str
    metric: str
    values: dict[int, float]


class Results(BaseModel):
    """The part of a study's result file that claims are judged by."""

    study: str
    reference: str
    has_gpu: bool
    results: list[Measured]


@dataclass(frozen=True)
class Verdict:
    """A claim with its estimate."""

    claim: Claim
    estimate: Estimate | None
    """None if nothing was measured that could confirm or refute the claim."""
    verdict: str


def load_claims(path: Path) -> Claims:
    """Read a file of claims and check it against its study.

    Raises:
        ConfigError: If the file, a key or a bound is not valid, or a claim does not fit the study.
    """
    return read_section(Claims, path, source=str(path))


def load_results(path: Path) -> Results:
    """Read a result file of `clew compare`.

    Raises:
        DataError: If the file cannot be read, or is not a study's result.
    """
    try:
        return Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f"{path}: not a result of clew compare ({described(error)})") from None


def judge(claims: Claims, results: Results) -> list[Verdict]:
    """Return a verdict on each claim, as described in `METHOD`.

    Raises:
        ConfigError: If the results are those of another study.
    """
    if results.study.partition(" (")[0] != claims.study_name:
        raise ConfigError(
            f"the claims are about the study {quoted(claims.study_name)}, and the results are of "
            f"{quoted(results.study)}; give two files of one study"
        )
    values = {(found.variant, found.metric): found.values for found in results.results}
    return [_judged(claim, results, values) for claim in claims.claims]


def _judged(
    claim: Claim, results: Results, values: dict[tuple[str, str], dict[int, float]]
) -> Verdict:
    if claim.needs == "gpu" and not results.has_gpu:
        return Verdict(claim, None, "open: needs a GPU")
    own = values.get((claim.variant, claim.metric), {})
    base = values.get((claim.against or results.reference, claim.metric), {})
    if claim.about == "value":
        estimate = Estimate.of_values(list(own.values()))
    elif claim.about == "difference":
        seeds = sorted(own.keys() & base.keys())
        estimate = Estimate.of_values([own[seed] - base[seed] for seed in seeds])
    else:
        estimate = Estimate.of_ratios(own, base)
    if estimate is None:
        return Verdict(claim, None, "open: not measured here")
    memory = memory_of(claim.metric)
    return Verdict(claim, estimate, _said(claim, estimate) + (f" ({memory})" if memory else ""))


def _said(claim: Claim, estimate: Estimate) -> str:
    if claim.holds(estimate.low) and claim.holds(estimate.high):
        return "holds"
    above = claim.at_most is not None and estimate.low > claim.at_most
    below = claim.at_least is not None and estimate.high < claim.at_least
    if above or below:
        return "does not hold"
    return f"cannot be told from {estimate.rounds} round{'s' if estimate.rounds > 1 else ''}"


def main(arguments: list[str]) -> None:
    """Print a table of verdicts for each pair of a claims' file and a result file."""
    pairs = [
        (STUDIES / "claims" / f"{path.stem}.yaml", path)
        for path in sorted((STUDIES / "results").glob("*.json"))
    ]
    if arguments:
        if len(arguments) != 2:
            sys.exit(f"expected CLAIMS.yaml RESULTS.json or nothing, not {' '.join(arguments)}")
        pairs = [(Path(arguments[0]), Path(arguments[1]))]
    for claims, results in pairs:
        try:
            found = load_results(results)
            verdicts = judge(load_claims(claims), found)
        except ClewError as error:
            sys.exit(str(error))
        print(f"{found.study}\n\n| claim | measured | verdict |\n|---|---|---|")
        for verdict in verdicts:
            measured = "-" if verdict.estimate is None else shown(verdict.estimate)
            print(f"| {verdict.claim.text} | {measured} | {verdict.verdict} |")
        print()
    print(METHOD)


if __name__ == "__main__":
    main(sys.argv[1:])
