"""The report of a study: medians, and ratios to the reference with intervals."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from clew.config.study import Study, metric_name
from clew.runs.hardware import Machine
from clew.runs.reading.metrics import Estimate

METHOD = (
    "Variants take turns in rounds, one seed per round. A ratio is the geometric mean of the "
    "rounds' ratios; its 95 % interval is Student's t over their logarithms, so a slowdown of a "
    "whole round cancels."
)

Values = Mapping[tuple[str, str], Mapping[int, float]]
"""Measured values: (variant, metric) to {seed: value}."""


def in_words(machines: Iterable[Machine]) -> str:
    """Return the kinds of machines in one line."""
    return " and ".join(sorted({machine.summary for machine in machines}))


@dataclass(frozen=True)
class StudyReport:
    """The values measured for each variant in each round, with ratios."""

    study: Study
    values: Values
    machine: Machine
    commit: str
    date: str
    """UTC, ISO 8601."""
    problems: list[str]
    run_ids: list[str]
    nodes: tuple[Machine, ...] = ()
    """On a cluster, the machines that the cells ran on, instead of this one."""

    @property
    def has_gpu(self) -> bool:
        return any(machine.gpus for machine in self.nodes or (self.machine,))

    @property
    def machines(self) -> str:
        return in_words(self.nodes or (self.machine,))

    def ratio(self, variant: str, metric: str) -> Estimate | None:
        """Return a variant's ratio to the reference; None if one of the two has no values."""
        base = self.values.get((self.study.reference, metric), {})
        return Estimate.of_ratios(self.values.get((variant, metric), {}), base)

    def ratios(self) -> dict[str, float]:
        """Return all ratios as `ratio/<variant>/<metric>`, with variants named by `metric_name`."""
        return {
            f"ratio/{metric_name(variant)}/{measure.metric}": ratio.value
            for variant in self.study.variants
            for measure in self.study.measures
            if (ratio := self.ratio(variant, measure.metric)) is not None
        }

    def markdown(self) -> Iterator[str]:
        study = self.study
        seeds = f"seed{'s' if len(study.seeds) > 1 else ''} {', '.join(map(str, study.seeds))}"
        yield f"Study `{study.name}`: medians over rounds ({seeds}); in brackets the"
        yield f"ratio to `{study.reference}` and its 95 % interval. {self.machines}; commit"
        yield f"{self.commit[:12]}."
        yield ""
        yield "| variant | " + " | ".join(measure.label for measure in study.measures) + " |"
        yield "|---" * (1 + len(study.measures)) + "|"
        for variant in study.variants:
            cells = (self._cell(variant, measure.metric) for measure in study.measures)
            yield f"| `{variant}` | " + " | ".join(cells) + " |"
        yield from ("", METHOD)
        if self.problems:
            yield from ("", "Did not finish:", *(f"- {problem}" for problem in self.problems))

    def _cell(self, variant: str, metric: str) -> str:
        found = self.values.get((variant, metric))
        if not found:
            return "-"
        value = f"{statistics.median(found.values()):.4g}"
        ratio = None if variant == self.study.reference else self.ratio(variant, metric)
        return value if ratio is None else f"{value} ({shown(ratio)})"

    def as_dict(self) -> dict[str, object]:
        return {
            "study": self.study.name,
            "date": self.date,
            "commit": self.commit,
            "machine": self.machines,
            "has_gpu": self.has_gpu,
            "torch": self.machine.torch,
            "method": METHOD,
            "reference": self.study.reference,
            "seeds": self.study.seeds,
            "results": [
                {
                    "variant": variant,
                    "metric": measure.metric,
                    "label": measure.label,
                    "values": {str(seed): value for seed, value in found.items()},
                    "median": statistics.median(found.values()),
                    # The ends of an interval after one round are infinite, which JSON has not.
                    "ratio": (ratio := self.ratio(variant, measure.metric))
                    and vars(ratio) | ({"low": None, "high": None} if ratio.rounds == 1 else {}),
                }
                for variant in self.study.variants
                for measure in self.study.measures
                if (found := self.values.get((variant, measure.metric)))
            ],
            "problems": self.problems,
            "runs": self.run_ids,
        }


def shown(estimate: Estimate) -> str:
    """Return an estimate with its interval as text for tables."""
    if estimate.rounds == 1:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g}, {estimate.low:.3g} to {estimate.high:.3g}"
