"""What a study found: medians, spread, ratios, verdicts; as JSON, Markdown and a picture."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from scipy.stats import t as student_t

from clew.config.study import Claim, Measure


def metric_name(variant: str) -> str:
    """Return a variant's name without what a store refuses in the name of a metric."""
    return " ".join(re.sub(r"[^\w.\- :]|\.\.", " ", variant).split())


@dataclass(frozen=True)
class StudyReport:
    """Medians over seeds of each variant and measure, and what follows."""

    study: str
    reference: str
    variants: list[str]
    measures: list[Measure]
    machine: str
    commit: str
    num_seeds: int
    medians: dict[tuple[str, str], float]
    spreads: dict[tuple[str, str], float]
    """Largest less smallest value over seeds."""
    problems: list[str]
    run_ids: list[str]
    verdicts: list[tuple[str, float | None, str]] = field(default_factory=list)
    """Claim, what was measured (a ratio or a value), verdict."""

    def ratio(self, variant: str, metric: str, against: str | None = None) -> float | None:
        """Return a variant's median over the reference's; None where one of them is missing."""
        base = self.medians.get((against or self.reference, metric))
        value = self.medians.get((variant, metric))
        return value / base if base and value is not None else None

    def ratios(self) -> dict[str, float]:
        """Return all ratios under `ratio/<variant>/<metric>`, the variant by its `metric_name`."""
        return {
            f"ratio/{metric_name(variant)}/{measure.metric}": ratio
            for variant in self.variants
            for measure in self.measures
            if (ratio := self.ratio(variant, measure.metric)) is not None
        }

    def markdown(self) -> str:
        """Return the report as Markdown."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        seeds = f"{self.num_seeds} seed{'s' if self.num_seeds > 1 else ''}"
        yield f"Study `{self.study}`: medians over {seeds}, ± half the spread; in brackets the"
        yield f"ratio to `{self.reference}`. {self.machine}; commit {self.commit[:12]}."
        yield ""
        yield "| variant | " + " | ".join(measure.label for measure in self.measures) + " |"
        yield "|---" * (1 + len(self.measures)) + "|"
        for variant in self.variants:
            cells = (self._cell(variant, measure.metric) for measure in self.measures)
            yield f"| `{variant}` | " + " | ".join(cells) + " |"
        if self.verdicts:
            yield from ("", "| claim | measured | verdict |", "|---|---|---|")
        for text, ratio, verdict in self.verdicts:
            yield f"| {text} | {'-' if ratio is None else f'{ratio:.3g}'} | {verdict} |"
        if self.problems:
            yield from ("", "Did not finish:", *(f"- {problem}" for problem in self.problems))

    def _cell(self, variant: str, metric: str) -> str:
        if (variant, metric) not in self.medians:
            return "-"
        shown = f"{self.medians[variant, metric]:.4g}"
        if self.num_seeds > 1:
            shown += f" ± {self.spreads[variant, metric] / 2:.2g}"
        ratio = self.ratio(variant, metric)
        return shown if ratio is None or variant == self.reference else f"{shown} ({ratio:.2f})"

    def as_dict(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "study": self.study,
            "reference": self.reference,
            "machine": self.machine,
            "commit": self.commit,
            "num_seeds": self.num_seeds,
            "results": [
                {
                    "variant": variant,
                    "metric": measure.metric,
                    "median": self.medians.get((variant, measure.metric)),
                    "spread": self.spreads.get((variant, measure.metric)),
                    "ratio": self.ratio(variant, measure.metric),
                }
                for variant in self.variants
                for measure in self.measures
            ],
            "claims": [
                {"claim": text, "ratio": ratio, "verdict": verdict}
                for text, ratio, verdict in self.verdicts
            ],
            "problems": self.problems,
            "runs": self.run_ids,
        }


@dataclass(frozen=True)
class Difference:
    """How much two variants differ over the seeds that both were run with."""

    mean: float
    low: float
    """Lower end of the 95 % interval of the mean (Student's t)."""
    high: float

    @classmethod
    def paired(cls, values: Mapping[int, float], base: Mapping[int, float]) -> Self | None:
        """Return the mean difference, seed by seed; None below two common seeds."""
        differences = [values[seed] - base[seed] for seed in values.keys() & base.keys()]
        if len(differences) < 2:
            return None
        mean = statistics.fmean(differences)
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        half = error * float(student_t.ppf(0.975, len(differences) - 1))
        return cls(mean, mean - half, mean + half)

    def judge(self, claim: Claim) -> str:
        """Return `holds` if the whole interval keeps the bounds, `does not hold` if no part does.

        In between, more seeds are needed.
        """
        if claim.holds(self.low) and claim.holds(self.high):
            return "holds"
        above = claim.at_most is not None and self.low > claim.at_most
        below = claim.at_least is not None and self.high < claim.at_least
        return "does not hold" if above or below else "cannot be told from so few seeds"


def verdict_of(claim: Claim, ratio: float | None, *, has_gpu: bool) -> str:
    """Return `holds`, `does not hold`, or why this machine cannot tell."""
    if claim.needs == "gpu" and not has_gpu:
        return "cannot be shown on this machine: needs a GPU"
    if ratio is None:
        return "cannot be shown on this machine: not measured here"
    return "holds" if claim.holds(ratio) else "does not hold"


def draw(report: StudyReport, path: Path) -> None:
    """Draw each variant's ratios to the reference as bars, a panel for each measure."""
    from matplotlib.figure import Figure

    width = max(4.0, 3.2 * len(report.measures))
    figure = Figure(figsize=(width, 1.2 + 0.4 * len(report.variants)), layout="constrained")
    panels = figure.subplots(1, len(report.measures), squeeze=False, sharey=True)[0]
    for panel, measure in zip(panels, report.measures, strict=True):
        ratios = [report.ratio(variant, measure.metric) or 0.0 for variant in report.variants]
        panel.barh(report.variants, ratios, color="#4477aa")
        panel.axvline(1.0, color="black", linewidth=1)
        panel.set_title(measure.label, fontsize=9)
        panel.set_xlabel(f"ratio to {report.reference}", fontsize=8)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=120)
