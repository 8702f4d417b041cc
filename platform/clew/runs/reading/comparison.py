"""Compares runs: against a reference, over seeds, by what they cost and what differs between them.

Everything here is arithmetic on records; it reads no store.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clew import names
from clew.config.directions import direction_of
from clew.runs.reading.runs import RunRecord

SEED = f"{names.PARAMETER_PREFIX}training.seed"
MODEL_KIND = f"{names.PARAMETER_PREFIX}model.kind"
KIND = ".kind"
"""How the name of a choice ends; which further settings its section has depends on it."""
IGNORED_PARAMETERS = (SEED, f"{names.PARAMETER_PREFIX}tracking.run_name")
OPTIMIZATIONS = f"{names.PARAMETER_PREFIX}optimizations."
TRACKING = f"{names.PARAMETER_PREFIX}tracking."
"""Where and how a run is recorded, which changes nothing in what is trained."""
COST_METRICS = (
    names.TIME_TOTAL_SECONDS,
    names.TIME_EPOCH_SECONDS,
    names.EXAMPLES_PER_SECOND,
    names.GPU_PEAK_ALLOCATED_GIB,
    names.PROCESS_PEAK_GIB,
)
Doubt = Literal["", "one seed", "within the noise"]
"""Why a difference cannot be judged: one of the two has a single seed, so its scatter is unknown;
or it is no larger than the scatter over seeds."""
PRESET_ORDER = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over seeds; the deviation needs two."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """Runs that count as one: the seeds of a variant, or a single run."""

    label: str
    run_ids: tuple[str, ...]
    seeds: tuple[str, ...] = ()
    """The seed of each run; runs of one seed count once, by their mean. Empty: all differ."""

    def values(self, by_run: Mapping[str, float]) -> list[float]:
        """Return the value of each seed, from those of the runs that have one."""
        by_seed: dict[str, list[float]] = {}
        for run_id, seed in zip(self.run_ids, self.seeds or self.run_ids, strict=True):
            if math.isfinite(value := by_run.get(run_id, math.nan)):
                by_seed.setdefault(seed, []).append(value)
        return [math.fsum(values) / len(values) for values in by_seed.values()]


@dataclass(frozen=True)
class Cell:
    """A group's value of a metric beside the reference's.

    `ratio` is value / reference, `delta` value - reference, `better` whether the change is for
    the good: None where `doubt` says why that cannot be told, or where the metric does not say
    what is good. All are None for the reference itself and where either is missing.
    """

    value: Statistic | None
    ratio: float | None = None
    delta: float | None = None
    better: bool | None = None
    doubt: Doubt = ""


@dataclass(frozen=True)
class Comparison:
    """A table: a row a group, the reference first, a column a metric."""

    groups: tuple[Group, ...]
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    """By label of the group and metric."""
    reference: str
    """Label of the reference group."""


@dataclass(frozen=True)
class Preset:
    """Runs of one setting in several variants, those of the reference first."""

    runs: tuple[RunRecord, ...]
    seeds: tuple[str, ...]
    """The seeds that each variant has; empty where none is common to all."""
    apart: Mapping[str, str]
    """Parameters that tell the setting from others with several variants, with their values."""


def group_runs(runs: Sequence[RunRecord], *, by_seed: bool) -> list[Group]:
    """Return the groups: runs alike except for their seed together, or each run by itself."""
    if not by_seed:
        labels = distinct_labels(runs)
        return [Group(labels[run.run_id], (run.run_id,)) for run in runs]
    gathered: dict[tuple[object, ...], list[RunRecord]] = {}
    for run in runs:
        gathered.setdefault(_alike(run), []).append(run)
    firsts = [members[0] for members in gathered.values()]
    labels = distinct_labels(firsts)
    return [
        Group(
            labels[first.run_id],
            tuple(run.run_id for run in members),
            tuple(run.params.get(SEED, run.run_id) for run in members),
        )
        for first, members in zip(firsts, gathered.values(), strict=True)
    ]


def _alike(run: RunRecord) -> tuple[object, ...]:
    """Return what runs share that differ in nothing but the seed."""
    variant = run.tags.get(names.TAG_VARIANT)
    return (variant, *_setting(run), _settings(run))


def _settings(run: RunRecord, *, without: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """Return what determines the run besides its seed, without keys that begin with `without`."""
    left_out = (SEED, TRACKING, *without)
    return tuple(sorted(item for item in run.params.items() if not item[0].startswith(left_out)))


def distinct_labels(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return a short name for each run: its variant, with what sets it apart where needed.

    That is the other parameters that differ, else the seed, else the beginning of the id.
    """
    several = len({run.tags.get(names.TAG_DATASET) for run in runs}) > 1
    plain = {run.run_id: _plain_label(run, several=several) for run in runs}
    differing = differing_parameters(runs, ignore=IGNORED_PARAMETERS)
    telling = [key for key in differing if not key.startswith((OPTIMIZATIONS, TRACKING))]
    shown = sorted(telling, key=lambda key: _place_in_name(key, differing[key]))[:2]
    labels = {}
    for run in runs:
        start = plain[run.run_id]
        settings = [
            f"{setting_name(key)} {_file_name(differing[key][run.run_id]) or '–'}" for key in shown
        ]
        labels[run.run_id] = " · ".join([start, *settings] if _shared(plain, start) else [start])
    for addition in ("seed", "id"):
        crowded = {run.run_id for run in runs if _shared(labels, labels[run.run_id])}
        for run in runs:
            if run.run_id in crowded:
                seed = f"seed {run.params.get(SEED, '?')}"
                labels[run.run_id] += f" · {seed if addition == 'seed' else run.run_id[:6]}"
    return labels


def setting_name(key: str) -> str:
    """Return a parameter's name without its section; of a choice the section says more."""
    section, _, name = key.removeprefix(names.PARAMETER_PREFIX).rpartition(".")
    return section if key.endswith(KIND) and section else name


def _place_in_name(key: str, by_run: Mapping[str, str]) -> tuple[bool, ...]:
    """Return where a parameter stands in the names of runs: which model it is comes first.

    Then come other choices; what only some of the runs have follows from a choice, and is last.
    """
    return key != MODEL_KIND, not key.endswith(KIND), "" in by_run.values()


def _file_name(value: str) -> str:
    """Return a value, of an absolute path the last part alone."""
    return value.rpartition("/")[2] if value.startswith("/") else value


def _shared(labels: Mapping[str, str], label: str) -> bool:
    return list(labels.values()).count(label) > 1


def _plain_label(run: RunRecord, *, several: bool) -> str:
    variant = run.tags.get(names.TAG_VARIANT)
    if not variant:
        return run.name or run.run_id[:8]
    return f"{run.tags.get(names.TAG_DATASET, '?')} {variant}" if several else variant


def statistic(values: Iterable[float | None]) -> Statistic | None:
    """Return mean and deviation of the values that are there."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if not found:
        return None
    mean = math.fsum(found) / len(found)
    if len(found) == 1:
        return Statistic(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)
    return Statistic(mean, math.sqrt(variance), len(found))


def compare(
    groups: Sequence[Group],
    values: Mapping[str, Mapping[str, float]],
    *,
    reference: str,
) -> Comparison:
    """Compare groups; `values` holds for each metric the value of each run.

    Args:
        groups: What is compared.
        values: metric -> run id -> value.
        reference: Label of the group that the others are held against.
    """
    ordered = sorted(groups, key=lambda group: group.label != reference)
    cells: dict[tuple[str, str], Cell] = {}
    for key, by_run in values.items():
        base = statistic(ordered[0].values(by_run))
        for group in ordered:
            found = statistic(group.values(by_run))
            itself = group.label == ordered[0].label
            cells[group.label, key] = Cell(found) if itself else _against(found, base, key)
    return Comparison(tuple(ordered), tuple(values), cells, ordered[0].label)


def _against(value: Statistic | None, base: Statistic | None, key: str) -> Cell:
    if value is None or base is None:
        return Cell(value)
    delta = value.mean - base.mean
    ratio = value.mean / base.mean if base.mean else None
    direction = direction_of(key)
    if direction is None:
        return Cell(value, ratio, delta)
    if value.deviation is None or base.deviation is None:
        return Cell(value, ratio, delta, doubt="one seed")
    if abs(delta) <= max(value.deviation, base.deviation):
        return Cell(value, ratio, delta, doubt="within the noise")
    return Cell(value, ratio, delta, better=(delta > 0) == (direction == "larger"))


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the labels that no other point beats, by rising cost.

    A point is (cost, quality): less cost and more quality are better.
    """
    front: list[str] = []
    best = -math.inf
    for label, (_, quality) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if quality > best:
            front.append(label)
            best = quality
    return front


def differing_parameters(
    runs: Sequence[RunRecord], *, ignore: Iterable[str] = ()
) -> dict[str, dict[str, str]]:
    """Return the parameters that are not equal in all runs: name -> run id -> value.

    A run without the parameter has an empty value.
    """
    rows = all_parameters(runs, ignore=ignore)
    return {key: row for key, row in rows.items() if len(set(row.values())) > 1}


def all_parameters(
    runs: Sequence[RunRecord], *, ignore: Iterable[str] = ()
) -> dict[str, dict[str, str]]:
    """Return all parameters: name -> run id -> value, empty where a run has none."""
    keys = sorted({key for run in runs for key in run.params} - set(ignore))
    return {key: {run.run_id: run.params.get(key, "") for run in runs} for key in keys}


def find_preset(runs: Sequence[RunRecord], *, limit: int) -> Preset | None:
    """Choose the runs that answer "which precision and memory options": variants of one setting.

    Among finished training runs, the newest setting that has two variants or more; a setting is
    everything but seed and optimizations. Of each variant the same seeds, float32 first; where no
    seed is common to all, the same number of runs. None: no setting has two variants.

    Args:
        runs: Any runs, the newest first; of two with one seed the newer counts.
        limit: The most runs; each variant keeps one at least.
    """
    settings: dict[tuple[object, ...], dict[str, dict[str, RunRecord]]] = {}
    for run in runs:
        if run.status == "FINISHED" and names.TAG_VARIANT in run.tags:
            variants = settings.setdefault(_setting(run), {})
            seeds = variants.setdefault(run.tags[names.TAG_VARIANT], {})
            seeds.setdefault(run.params.get(SEED, ""), run)
    several = [variants for variants in settings.values() if len(variants) > 1]
    if not several:
        return None
    ordered = [seeds for _, seeds in sorted(several[0].items(), key=lambda v: _variant_order(v[0]))]
    each = max(1, min(limit // len(ordered), *map(len, ordered)))
    common = [seed for seed in ordered[0] if all(seed in seeds for seeds in ordered)][:each]
    chosen = [seeds[seed] for seeds in ordered for seed in common or itertools.islice(seeds, each)]
    firsts = [next(iter(next(iter(variants.values())).values())) for variants in several]
    differing = differing_parameters(firsts, ignore=IGNORED_PARAMETERS)
    apart = {
        key: by_run[firsts[0].run_id]
        for key, by_run in differing.items()
        if not key.startswith((OPTIMIZATIONS, TRACKING))
    }
    return Preset(tuple(chosen), tuple(sorted(common)), apart)


def _setting(run: RunRecord) -> tuple[object, ...]:
    tags = (names.TAG_TASK, names.TAG_DATASET, names.TAG_DATA_FINGERPRINT, names.TAG_DEVICE)
    return (*(run.tags.get(tag) for tag in tags), _settings(run, without=(OPTIMIZATIONS,)))


def _variant_order(variant: str) -> tuple[int, int, str]:
    precision = variant.split("+", maxsplit=1)[0].split("-", maxsplit=1)[0]
    place = PRESET_ORDER.index(precision) if precision in PRESET_ORDER else len(PRESET_ORDER)
    return (place, len(variant), variant)
