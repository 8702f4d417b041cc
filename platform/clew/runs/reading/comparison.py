"""Compares runs: with a reference, over seeds, by their costs and by their different parameters.

A comparison is written as CSV, Markdown or LaTeX. The functions compute with records and do not
read the store.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from clew import names
from clew.names import direction_of
from clew.runs.reading.metrics import Estimate, number_text
from clew.runs.reading.runs import RunRecord
from clew.spreadsheets import csv_text

SEED = f"{names.PARAMETER_PREFIX}training.seed"
EPOCHS = f"{names.PARAMETER_PREFIX}training.num_epochs"
MODEL_KIND = f"{names.PARAMETER_PREFIX}model.kind"
KIND = ".kind"
"""Suffix of parameters that select a kind, which determines the other settings of a section."""
IGNORED_PARAMETERS = (SEED, f"{names.PARAMETER_PREFIX}tracking.run_name")
OPTIMIZATIONS = f"{names.PARAMETER_PREFIX}optimizations."
TRACKING = f"{names.PARAMETER_PREFIX}tracking."
"""Prefix of the parameters about how a run is recorded, which do not change the training."""
NO_TRAINING = tuple(
    f"{names.PARAMETER_PREFIX}{start}"
    for start in (
        *("tracking.", "evaluation.", "influence."),
        *("training.checkpoint_", "training.log_", "training.num_threads", "training.num_workers"),
        *("training.persistent_", "training.pin_", "training.prefetch_"),
    )
)
"""Prefixes of parameters that do not change what is learned."""
COST_METRICS = (
    names.TIME_TOTAL_SECONDS,
    names.TIME_EPOCH_SECONDS,
    names.EXAMPLES_PER_SECOND,
    names.GPU_PEAK_ALLOCATED_GIB,
    names.PROCESS_PEAK_GIB,
)
Doubt = Literal["", "no common seed", "one seed", "within the noise"]
"""Why a difference cannot be judged. `one seed`: both have only one seed in common, so the
variation is unknown. `within the noise`: the 95 % interval of the difference contains zero."""
PRESET_ORDER = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds; the deviation needs at least two seeds."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """Runs that are compared as one: the seeds of a variant, or a single run."""

    label: str
    run_ids: tuple[str, ...]
    seeds: tuple[str, ...] = ()
    """The seed of each run; runs with the same seed are averaged. Empty if all seeds differ."""

    def by_seed(self, by_run: Mapping[str, float]) -> dict[str, float]:
        """Return one value per seed, from the runs that have one."""
        by_seed: dict[str, list[float]] = {}
        for run_id, seed in zip(self.run_ids, self.seeds or self.run_ids, strict=True):
            if run_id in by_run:
                by_seed.setdefault(seed, []).append(by_run[run_id])
        found = {seed: _finite_or_first(values) for seed, values in by_seed.items()}
        return {seed: statistics.fmean(values) for seed, values in found.items()}


@dataclass(frozen=True)
class Cell:
    """A group's value of a metric, compared with the reference.

    `ratio` is value / reference, the geometric mean over the seeds that both have, and `delta` the
    mean of value - reference over them. `better` says whether the change
    is an improvement; it is None if `doubt` says why this cannot be judged, or if neither direction
    of the metric is better. All three are None for the reference itself and if one of the two
    values is missing or not finite.
    """

    value: Statistic | None
    ratio: float | None = None
    delta: float | None = None
    better: bool | None = None
    doubt: Doubt = ""


@dataclass(frozen=True)
class Comparison:
    """A table with one row per group, the reference first, and one column per metric."""

    groups: tuple[Group, ...]
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    """Cells by the label of the group and the metric."""
    reference: str
    """Label of the reference group."""


@dataclass(frozen=True)
class Preset:
    """Runs of several variants with otherwise equal settings, the reference variant first."""

    runs: tuple[RunRecord, ...]
    seeds: tuple[str, ...]
    """The seeds that all variants have; empty if there is no common seed."""
    apart: tuple[str, ...]
    """The settings that differ from other settings with several variants."""


def group_runs(runs: Sequence[RunRecord], *, by_seed: bool) -> list[Group]:
    """Return groups of runs that differ only in their seed, or one group per run."""
    gathered: dict[object, list[RunRecord]] = {}
    for run in runs:
        alike = run.tags.get(names.TAG_VARIANT), *_setting(run)
        gathered.setdefault(alike if by_seed else run.run_id, []).append(run)
    labels = distinct_labels([members[0] for members in gathered.values()])
    groups = []
    for members in gathered.values():
        ids = tuple(run.run_id for run in members)
        seeds = tuple(run.params.get(SEED, run.run_id) for run in members)
        groups.append(Group(labels[ids[0]], ids, seeds))
    return groups


def _setting(run: RunRecord, *without: str) -> tuple[object, ...]:
    """Return what was trained on what; of the parameters not those of seed, tracking, `without`."""
    tags = (names.TAG_TASK, names.TAG_DATASET, names.TAG_DATA_FINGERPRINT, names.TAG_DEVICE)
    left_out = (SEED, TRACKING, *without)
    params = sorted(item for item in run.params.items() if not item[0].startswith(left_out))
    return (*(run.tags.get(tag) for tag in tags), *params)


def distinct_labels(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return a short, unique name for each run.

    The name is the run's variant (or its own name). If several runs share it, parameters that
    differ are added. If names are still equal, the seed and then the start of the id are added.
    """
    several = len({run.tags.get(names.TAG_DATASET) for run in runs}) > 1
    labels: dict[str, str] = {}
    for run in runs:
        data, variant = run.tags.get(names.TAG_DATASET, "?"), run.tags.get(names.TAG_VARIANT)
        label = f"{data} {variant}" if variant and several else variant
        labels[run.run_id] = label or run.name or run.run_id[:8]
    seeds = {run.run_id: [f"seed {run.params.get(SEED, '?')}"] for run in runs}
    ids = {run.run_id: [run.run_id[:6]] for run in runs}
    for more in (told_apart(runs, most=2), seeds, ids):
        times = Counter(labels.values())
        for run_id, label in labels.items():
            if times[label] > 1:
                labels[run_id] = " · ".join([label, *more[run_id]])
    return labels


def told_apart(runs: Sequence[RunRecord], *, most: int) -> dict[str, list[str]]:
    """Return, for each run, the settings of the training that differ, the most telling first.

    The variant names the optimizations, so these are left out.
    """
    differing = differing_parameters(runs)
    telling = [key for key in differing if not key.startswith((OPTIMIZATIONS, *NO_TRAINING))]
    # The kind of model first, then other kinds; what only some runs have follows from the kind.
    shown = sorted(
        telling, key=lambda k: (k != MODEL_KIND, not k.endswith(KIND), "" in differing[k].values())
    )[:most]
    found: dict[str, list[str]] = {run.run_id: [] for run in runs}
    for key in shown:
        section, _, name = key.removeprefix(names.PARAMETER_PREFIX).rpartition(".")
        name = section if name == "kind" and section else name
        for run_id, value in differing[key].items():
            found[run_id].append(f"{name} {re.sub('^/(.*/)?', '', value) or '–'}")
    return found


def statistic(values: Iterable[float | None]) -> Statistic | None:
    """Return the mean and deviation of the finite values; the first value if none is finite."""
    found = _finite_or_first([value for value in values if value is not None])
    if not found:
        return None
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return Statistic(statistics.fmean(found), deviation, len(found))


def _finite_or_first(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)] or values[:1]


def compare(
    groups: Sequence[Group], values: Mapping[str, Mapping[str, float]], *, reference: str
) -> Comparison:
    """Compare groups of runs with a reference group."""
    ordered = sorted(groups, key=lambda group: group.label != reference)
    cells: dict[tuple[str, str], Cell] = {}
    for key, by_run in values.items():
        base = ordered[0].by_seed(by_run)
        cells[ordered[0].label, key] = Cell(statistic(base.values()))
        for group in ordered[1:]:
            cells[group.label, key] = _against(group.by_seed(by_run), base, key)
    return Comparison(tuple(ordered), tuple(values), cells, ordered[0].label)


def _against(own: Mapping[str, float], base: Mapping[str, float], key: str) -> Cell:
    value = statistic(own.values())
    finite = [seed for seed in own if seed in base and math.isfinite(own[seed] - base[seed])]
    delta = Estimate.of_values([own[seed] - base[seed] for seed in finite])
    if delta is None:
        apart = own and base and not own.keys() & base.keys()
        return Cell(value, doubt="no common seed" if apart else "")
    ratio = Estimate.of_ratios({s: own[s] for s in finite}, {s: base[s] for s in finite})
    direction = direction_of(key)
    doubt: Doubt = ""
    if direction and delta.low <= 0 <= delta.high:
        doubt = "one seed" if delta.rounds == 1 else "within the noise"
    better = (delta.value > 0) == (direction == "larger") if direction and not doubt else None
    return Cell(value, ratio.value if ratio else None, delta.value, better, doubt)


def unequal_budgets(runs: Sequence[RunRecord]) -> list[str]:
    """Say what differs between runs besides their settings, and what it does to a comparison."""

    def data(run: RunRecord) -> str:
        whole = run.tags.get(names.TAG_DATA_FINGERPRINT, "")
        return whole and f"{run.tags.get(names.TAG_DATASET, '')} {whole[:6]}"

    facts: list[tuple[str, Callable[[RunRecord], str], str]] = [
        ("trained for different numbers of epochs", lambda run: run.params.get(EPOCHS, ""),
         "longer training can be all that is better"),
        ("use different data", data, "compare only their costs"),
        ("ran on different hardware", lambda run: run.tags.get(names.TAG_HARDWARE, ""),
         "compare only their quality"),
        ("ran different code", lambda run: run.tags.get(names.TAG_COMMIT, "")[:8],
         "a difference can come from it"),
    ]  # fmt: skip
    found = [(what, sorted({*map(read, runs)} - {""}), so) for what, read, so in facts]
    return [f"These runs {what} ({', '.join(v)}): {so}." for what, v, so in found if len(v) > 1]


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the labels of the Pareto-optimal points, in ascending order of cost.

    A point is (cost, quality): lower cost and higher quality are better.
    """
    front: list[str] = []
    best = -math.inf
    for label, (_, quality) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if quality > best:
            front.append(label)
            best = quality
    return front


def differing_parameters(runs: Sequence[RunRecord]) -> dict[str, dict[str, str]]:
    """Return the parameters that differ between runs: name -> run id -> value.

    The value is empty for a run without the parameter.
    """
    keys = sorted({key for run in runs for key in run.params} - {*IGNORED_PARAMETERS})
    rows = {key: {run.run_id: run.params.get(key, "") for run in runs} for key in keys}
    return {key: row for key, row in rows.items() if len(set(row.values())) > 1}


def find_preset(runs: Sequence[RunRecord], *, limit: int) -> Preset | None:
    """Choose runs that compare precision and memory options: several variants of one setting.

    A setting is all parameters except the seed and the optimizations. The newest setting with at
    least two variants among finished training runs is chosen. Each variant has the same seeds, or
    the same number of runs if the variants have no seed in common; float32 comes first. Return None
    if no setting has two variants.

    Args:
        runs: Any runs, the newest first; of two runs with the same seed, the newer counts.
        limit: Maximum number of runs; each variant keeps at least one run.
    """
    settings: dict[tuple[object, ...], dict[str, dict[str, RunRecord]]] = {}
    for run in runs:
        if run.status == "FINISHED" and names.TAG_VARIANT in run.tags:
            variants = settings.setdefault(_setting(run, OPTIMIZATIONS), {})
            seeds = variants.setdefault(run.tags[names.TAG_VARIANT], {})
            seeds.setdefault(run.params.get(SEED, ""), run)
    several = [variants for variants in settings.values() if len(variants) > 1]
    if not several:
        return None
    ordered = [several[0][variant] for variant in sorted(several[0], key=_variant_order)]
    each = max(1, min(limit // len(ordered), *map(len, ordered)))
    common = [seed for seed in ordered[0] if all(seed in seeds for seeds in ordered)][:each]
    chosen = [seeds[seed] for seeds in ordered for seed in common or [*seeds][:each]]
    firsts = [next(iter(next(iter(variants.values())).values())) for variants in several]
    apart = told_apart(firsts, most=3)[firsts[0].run_id]
    return Preset(tuple(chosen), tuple(sorted(common)), tuple(apart))


def _variant_order(variant: str) -> tuple[int, int, str]:
    precision = variant.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    place = PRESET_ORDER.index(precision) if precision in PRESET_ORDER else len(PRESET_ORDER)
    return (place, len(variant), variant)


def statistic_text(value: Statistic | None) -> str:
    """Return `mean ± deviation`, or only the mean if the values do not vary."""
    if value is None:
        return ""
    if value.deviation is None or value.deviation <= 1e-9 * abs(value.mean):
        return number_text(value.mean)
    return f"{number_text(value.mean)} ± {number_text(value.deviation, 2)}"


def ratio_text(cell: Cell) -> str:
    """Return the ratio, such as `×0.58`; empty if there is no ratio."""
    return "" if cell.ratio is None else f"×{cell.ratio:.3f}"


def delta_text(cell: Cell) -> str:
    """Return the signed difference; empty if there is none."""
    if cell.delta is None:
        return ""
    sign = "+" if cell.delta > 0 else "−" if cell.delta < 0 else "±"
    return f"{sign}{number_text(abs(cell.delta), 3)}"


def to_csv(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return CSV with one row per group, and mean, deviation, ratio and delta of each metric.

    `labels` are the names of the metrics with their units.
    """
    parts = ("mean", "std", "ratio", "delta")
    header = ["group", "runs", "run_ids"]
    header += [f"{labels[metric]} {part}" for metric in comparison.metrics for part in parts]
    rows = []
    for group in comparison.groups:
        row: list[object] = [group.label, len(group.run_ids), " ".join(group.run_ids)]
        for metric in comparison.metrics:
            cell = comparison.cells[group.label, metric]
            value = cell.value
            row += [value and value.mean, value and value.deviation, cell.ratio, cell.delta]
        rows.append(row)
    return csv_text(header, rows)


def to_markdown(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return a Markdown table of values, each followed by its ratio to the reference."""
    special = r"([\\`*_{}\[\]<>|#$~])"
    rows = _text_rows(comparison, labels, lambda text: re.sub(special, r"\\\1", text))
    widths = "|".join(["---"] + ["---:"] * (len(rows[0]) - 1))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{widths}|", *lines[1:]]) + "\n"


def to_latex(comparison: Comparison, labels: Mapping[str, str]) -> str:
    """Return a LaTeX table (booktabs) of values, each followed by its ratio to the reference."""
    header, *rows = _text_rows(comparison, labels, str)
    widths = "l" + "r" * (len(header) - 1)
    table = pd.DataFrame(rows)
    return table.to_latex(index=False, header=header, escape=True, column_format=widths)


def _text_rows(
    comparison: Comparison, labels: Mapping[str, str], escape: Callable[[str], str]
) -> list[list[str]]:
    header = ("variant", "runs", *(labels[metric] for metric in comparison.metrics))
    rows = [[escape(text) for text in header]]
    for group in comparison.groups:
        cells = (comparison.cells[group.label, metric] for metric in comparison.metrics)
        shown = (f"{statistic_text(cell.value)} ({ratio_text(cell)})" for cell in cells)
        texts = [text.removesuffix(" ()") for text in shown]
        rows.append([escape(text) for text in (group.label, str(len(group.run_ids)), *texts)])
    return rows
