"""Chosen runs against a reference, over seeds: the numbers, the table and its files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import streamlit as st
from markupsafe import Markup

from clew import names
from clew.errors import counted
from clew.names import direction_of
from clew.runs.reading import comparison
from clew.runs.reading.metrics import TEST_PREFIX, Pick, headline_key, pick_values, smooth
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery, search_runs
from clew.ui.components import basics, glossary, tables
from clew.ui.components.runs import histories, runs_page

NUM_PRESET_CANDIDATES = 50
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
        best = setting.pick == "best" and direction_of(key) and not key.startswith(TEST_PREFIX)
        return "best value" if best else "last value"

    return {key: text(key) for key in setting.qualities}


# Reading this many runs takes up to a second. They are read again when another run has finished,
# or after ten minutes, because runs can be deleted.
@st.cache_data(ttl=600, max_entries=8, show_spinner=False)
def _preset(latest: str) -> comparison.Preset | None:
    found = search_runs(FINISHED, limit=NUM_PRESET_CANDIDATES)
    return comparison.find_preset(found.runs, limit=MAX_PRESET_RUNS)


def preset() -> comparison.Preset | None:
    """Return the preset "FP32 / FP16 / checkpointing" of the latest runs, None if there is none."""
    latest = runs_page(FINISHED, size=1).runs
    return _preset(latest[0].run_id) if latest else None


def reference_of(runs: Sequence[RunRecord]) -> str:
    """Return the id of the default reference: the first run in float32, or else the first run."""
    return next((run for run in runs if run.tags.get(names.TAG_VARIANT) == "fp32"), runs[0]).run_id


def quality_metrics(runs: Sequence[RunRecord]) -> list[str]:
    """Return the quality metrics that any of the runs has: headlines, validation, test."""
    keys = {key for run in runs for key in run.metrics if key.startswith(QUALITY_PREFIXES)}
    headlines = [headline_key(run) for run in runs]
    return sorted(keys, key=lambda key: (key not in headlines, key.startswith(TEST_PREFIX), key))


def compared(runs: Sequence[RunRecord], setting: Setting) -> comparison.Comparison:
    groups = comparison.group_runs(runs, by_seed=setting.by_seed)
    chosen = (group.label for group in groups if setting.reference in group.run_ids)
    values = {
        key: {run.run_id: run.metrics[key] for run in runs if key in run.metrics}
        for key in comparison.COST_METRICS
    }
    values = {key: found for key, found in values.items() if found}
    for key in setting.qualities:
        values[key] = pick_values(histories(runs, key), key, setting.pick)
    return comparison.compare(groups, values, reference=next(chosen, groups[0].label))


def curves(
    runs: Sequence[RunRecord], key: str, *, weight: float, groups: Sequence[comparison.Group]
) -> pd.DataFrame:
    """Return smoothed curves with the names of run and group in the columns `run` and `group`."""
    frame = smooth(histories(runs, key), weight)
    labels = comparison.distinct_labels(runs)
    group_of = {run_id: group.label for group in groups for run_id in group.run_ids}
    return frame.assign(
        run=frame["run_id"].map(labels).astype(str), group=frame["run_id"].map(group_of).astype(str)
    )


def points(found: comparison.Comparison, cost_key: str, quality_key: str) -> pd.DataFrame:
    """Return cost and quality of each group that has both, and whether no other group beats it.

    `front` is False for all if neither larger nor smaller values of the quality are better, and for
    the test split, which chooses nothing.
    """
    rows = [
        (group.label, cost.mean, quality.mean, cost.deviation, quality.deviation)
        for group in found.groups
        if (cost := _value(found, group, cost_key))
        and (quality := _value(found, group, quality_key))
    ]
    columns = ["group", "cost", "quality", "cost_deviation", "quality_deviation"]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[1:], float))
    direction = direction_of(quality_key)
    if direction is None or quality_key.startswith(TEST_PREFIX):
        return frame.assign(front=False)
    sign = 1.0 if direction == "larger" else -1.0
    places = {row[0]: (row[1], sign * row[2]) for row in rows}
    return frame.assign(front=frame["group"].isin(comparison.pareto_front(places)))


def _value(
    found: comparison.Comparison, group: comparison.Group, key: str
) -> comparison.Statistic | None:
    """Return what a picture can show, a finite value."""
    cell = found.cells.get((group.label, key))
    return cell.value if cell and cell.value and math.isfinite(cell.value.mean) else None


def parameter_table(runs: Sequence[RunRecord], groups: Sequence[comparison.Group]) -> pd.DataFrame:
    """Return the parameters that differ: one row each, and one column per group."""
    by_id = {run.run_id: run for run in runs}
    firsts = {group.label: by_id[group.run_ids[0]] for group in groups}
    shown = comparison.differing_parameters(list(firsts.values()))
    columns = {label: [row[run.run_id] for row in shown.values()] for label, run in firsts.items()}
    frame = pd.DataFrame(columns)
    frame.insert(0, "parameter", [key.removeprefix(names.PARAMETER_PREFIX) for key in shown])
    return frame


Change = Literal["ratio", "delta", "both"]
CHANGES: dict[str, Change] = {"ratios": "ratio", "differences": "delta", "both": "both"}

_TABLE = (
    '<div class="clew-scroll" tabindex="0" role="region" aria-label="Comparison">'
    '<table class="clew-table">'
    "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
)
_HEAD = '<th scope="col" title="{help}">{label}<br><span class="clew-unit">{unit}</span></th>'
_ROW = '<tr class="{kind}"><td>{name}<br><span class="clew-unit">{runs}</span></td>{cells}</tr>'
_CELL = '<td>{value}<br><span class="clew-change {kind}">{change}</span></td>'


def show(found: comparison.Comparison, change: Change, picked: Mapping[str, str]) -> None:
    """Show the table, and offer it as CSV, Markdown and LaTeX.

    `picked` says, for a metric with a curve, which of its values is shown.
    """
    st.html(html(found, change, picked))
    labels = {
        key: ", ".join(filter(None, (glossary.label(key), picked.get(key))))
        for key in found.metrics
    }
    with st.container(horizontal=True, vertical_alignment="center"):
        for name, ending, text in (
            ("CSV", "csv", comparison.to_csv(found, labels)),
            ("Markdown", "md", comparison.to_markdown(found, labels)),
            ("LaTeX", "tex", comparison.to_latex(found, labels)),
        ):
            tables.download(name, text, f"comparison.{ending}")
        st.caption(
            "Point at a picture: the toolbar at its corner saves it as PNG.", width="content"
        )


def html(found: comparison.Comparison, change: Change, picked: Mapping[str, str]) -> Markup:
    """Return the table as HTML; every name in it is escaped."""
    head = [basics.fill('<th scope="col">Variant<br><span class="clew-unit">runs</span></th>')]
    for key in found.metrics:
        words = glossary.words(key)
        below = " · ".join(filter(None, (words.unit, picked.get(key)))) or "\u00a0"
        head.append(basics.fill(_HEAD, help=words.help, label=words.label, unit=below))
    rows = [_row(found, group, change) for group in found.groups]
    return basics.fill(_TABLE, head=basics.join(head), body=basics.join(rows))


def _row(found: comparison.Comparison, group: comparison.Group, change: Change) -> Markup:
    is_reference = group.label == found.reference
    kind, before = ("clew-reference", "reference · ") if is_reference else ("", "")
    runs = before + counted(len(group.run_ids), "run")
    cells = basics.join([_cell(found.cells[group.label, key], change) for key in found.metrics])
    return basics.fill(_ROW, kind=kind, name=group.label, runs=runs, cells=cells)


def _cell(cell: comparison.Cell, change: Change) -> Markup:
    value = comparison.statistic_text(cell.value) or "–"
    shown = {
        "ratio": comparison.ratio_text(cell),
        "delta": comparison.delta_text(cell),
        "both": f"{comparison.ratio_text(cell)}  {comparison.delta_text(cell)}".strip(),
    }[change]
    if cell.doubt:
        doubtful = " · ".join(filter(None, (shown, cell.doubt)))
        return basics.fill(_CELL, value=value, kind="clew-muted", change=doubtful)
    marks = {None: ("", ""), True: ("✓ ", "clew-for"), False: ("✗ ", "clew-against")}
    symbol, kind = marks[cell.better]
    return basics.fill(_CELL, value=value, kind=kind, change=f"{symbol}{shown}" or "\u00a0")
