"""Data of the page Compare: chosen runs against a reference, over seeds; and saved views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from clew import names
from clew.config.directions import direction_of
from clew.runs.reading import saved_views
from clew.runs.reading.comparison import (
    COST_METRICS,
    IGNORED_PARAMETERS,
    MODEL_KIND,
    Cell,
    Comparison,
    Group,
    Preset,
    Statistic,
    all_parameters,
    compare,
    differing_parameters,
    distinct_labels,
    find_preset,
    group_runs,
    pareto_front,
    setting_name,
)
from clew.runs.reading.metrics import TEST_PREFIX, Pick, pick_values, smooth
from clew.runs.reading.saved_views import SavedView, SavedViews
from clew.runs.reading.search import search_runs
from clew.runs.reading.tables import (
    delta_text,
    ratio_text,
    statistic_text,
    to_csv,
    to_latex,
    to_markdown,
)
from clew.ui import access
from clew.ui.data.runs import RunQuery, RunRecord, headline_key, histories, runs_page

__all__ = [
    "IGNORED_PARAMETERS",
    "MODEL_KIND",
    "Cell",
    "Comparison",
    "Group",
    "Pick",
    "Preset",
    "SavedView",
    "SavedViews",
    "Statistic",
    "delta_text",
    "differing_parameters",
    "distinct_labels",
    "pareto_front",
    "ratio_text",
    "setting_name",
    "statistic_text",
    "to_csv",
    "to_latex",
    "to_markdown",
]

NUM_PRESET_CANDIDATES = 100
MAX_PRESET_RUNS = 24
FINISHED = RunQuery(kind=names.KIND_TRAIN, status="FINISHED", order_by="attributes.end_time DESC")
QUALITY_PREFIXES = ("valid/", TEST_PREFIX)


@dataclass(frozen=True)
class Setting:
    """How runs are compared."""

    quality: str
    """The metric that the pictures show; empty if no run has one."""
    reference: str
    """Id of a run of the reference group."""
    pick: Pick = "best"
    step: int | None = None
    by_seed: bool = True
    further: tuple[str, ...] = ()
    """More quality metrics for the table."""

    @property
    def qualities(self) -> list[str]:
        """All quality metrics, each once."""
        return [key for key in dict.fromkeys([self.quality, *self.further]) if key]


def picked_texts(setting: Setting) -> dict[str, str]:
    """Return, for each quality metric, which value of its curve is compared."""

    def text(key: str) -> str:
        if setting.pick == "step":
            return f"value at step {setting.step:,}"
        best = setting.pick == "best" and direction_of(key) and not key.startswith(TEST_PREFIX)
        return "best value" if best else "last value"

    return {key: text(key) for key in setting.qualities}


# Reading this many runs takes up to a second. They are read again when another run has finished,
# or after ten minutes, because runs can be deleted.
@st.cache_data(ttl=600, max_entries=8, show_spinner=False)
def _preset(latest: str) -> Preset | None:
    found = search_runs(FINISHED, limit=NUM_PRESET_CANDIDATES)
    return find_preset(found.runs, limit=MAX_PRESET_RUNS)


def preset() -> Preset | None:
    """Return the preset "FP32 / FP16 / checkpointing" of the latest runs, None if there is none."""
    latest = runs_page(FINISHED, size=1).runs
    return _preset(latest[0].run_id) if latest else None


def reference_of(runs: Sequence[RunRecord]) -> str:
    """Return the id of the default reference: the first run in float32, or else the first run."""
    plain = (run for run in runs if run.tags.get(names.TAG_VARIANT) == "fp32")
    return next(plain, runs[0]).run_id


def quality_metrics(runs: Sequence[RunRecord]) -> list[str]:
    """Return the quality metrics that any of the runs has: headlines, validation, test."""
    keys = {key for run in runs for key in run.metrics if key.startswith(QUALITY_PREFIXES)}
    headlines = [headline_key(run) for run in runs]
    return sorted(keys, key=lambda key: (key not in headlines, key.startswith(TEST_PREFIX), key))


def curve_metrics(runs: Sequence[RunRecord]) -> list[str]:
    return sorted({key for run in runs for key in run.metrics})


def compared(runs: Sequence[RunRecord], setting: Setting) -> Comparison:
    """Compare the runs in cost and quality."""
    groups = group_runs(runs, by_seed=setting.by_seed)
    chosen = (group.label for group in groups if setting.reference in group.run_ids)
    present = {key for run in runs for key in run.metrics}
    values = {
        key: {run.run_id: run.metrics[key] for run in runs if key in run.metrics}
        for key in COST_METRICS
        if key in present
    }
    for key in setting.qualities:
        values[key] = pick_values(histories(runs, key), key, setting.pick, setting.step)
    return compare(groups, values, reference=next(chosen, groups[0].label))


def curves(
    runs: Sequence[RunRecord], key: str, *, weight: float, groups: Sequence[Group]
) -> pd.DataFrame:
    """Return smoothed curves with the names of run and group in the columns `run` and `group`."""
    frame = smooth(histories(runs, key), weight)
    labels = distinct_labels(runs)
    group_of = {run_id: group.label for group in groups for run_id in group.run_ids}
    return frame.assign(
        run=frame["run_id"].map(labels).astype(str),
        group=frame["run_id"].map(group_of).astype(str),
    )


def points(comparison: Comparison, cost_key: str, quality_key: str) -> pd.DataFrame:
    """Return cost and quality of each group that has both, and whether no other group beats it.

    `front` is False for all if neither larger nor smaller values of the quality are better, and for
    the test split, which chooses nothing.
    """
    rows = []
    for group in comparison.groups:
        cost = _value(comparison, group, cost_key)
        quality = _value(comparison, group, quality_key)
        if cost is not None and quality is not None:
            rows.append((group.label, cost.mean, quality.mean, cost.deviation, quality.deviation))
    columns = ["group", "cost", "quality", "cost_deviation", "quality_deviation"]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[1:], float))
    direction = direction_of(quality_key)
    if direction is None or quality_key.startswith(TEST_PREFIX):
        return frame.assign(front=False)
    sign = 1.0 if direction == "larger" else -1.0
    places = {row[0]: (row[1], sign * row[2]) for row in rows}
    return frame.assign(front=frame["group"].isin(pareto_front(places)))


def memory(comparison: Comparison) -> pd.DataFrame:
    """Return peak memory by group and kind; rows `group, kind, gib`."""
    kinds = {names.GPU_PEAK_ALLOCATED_GIB: "GPU", names.PROCESS_PEAK_GIB: "process"}
    rows = [
        (group.label, kind, value.mean)
        for group in comparison.groups
        for key, kind in kinds.items()
        if (value := _value(comparison, group, key)) is not None
    ]
    return pd.DataFrame(rows, columns=["group", "kind", "gib"])


def _value(comparison: Comparison, group: Group, key: str) -> Statistic | None:
    cell = comparison.cells.get((group.label, key))
    return None if cell is None else cell.value


def parameter_table(
    runs: Sequence[RunRecord],
    groups: Sequence[Group],
    *,
    ignore: Sequence[str],
    everything: bool,
) -> pd.DataFrame:
    """Return the parameters that differ, or all: one row each, and one column per group."""
    by_id = {run.run_id: run for run in runs}
    firsts = {group.label: by_id[group.run_ids[0]] for group in groups}
    shown = differing_parameters(list(firsts.values()), ignore=ignore)
    if everything:
        shown = all_parameters(list(firsts.values()), ignore=ignore)
    frame = pd.DataFrame(
        {label: [run.params.get(key, "") for key in shown] for label, run in firsts.items()}
    )
    frame.insert(0, "parameter", [key.removeprefix(names.PARAMETER_PREFIX) for key in shown])
    return frame


@st.cache_data(ttl=5, show_spinner=False)
def views() -> SavedViews:
    return saved_views.list_views()


def save_view(name: str, parameters: Mapping[str, str], person: str, *, replaces: str) -> None:
    """Save a view, see `clew.runs.reading.saved_views.save_view`."""
    person = access.authorize("save views") or person
    try:
        saved_views.save_view(name, parameters, person, replaces=replaces)
    finally:
        views.clear()


def delete_view(name: str) -> None:
    """Delete a view, see `clew.runs.reading.saved_views.delete_view`."""
    access.authorize("save views")
    try:
        saved_views.delete_view(name)
    finally:
        views.clear()
