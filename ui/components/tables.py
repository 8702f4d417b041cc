"""Tables as high as their rows, files of them, rows to tick, and the table of all runs.

Where a person ticks rows, each row represents a value, such as a run's id.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import pandas as pd
import streamlit as st
from streamlit.elements.arrow import DataframeStateInput

from clew import names
from clew.runs.reading.metrics import headline_key, number_text
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import RunPage, RunQuery
from clew.spreadsheets import csv_text
from clew.ui.components import basics, glossary
from clew.ui.components.runs import (
    choices,
    experiments,
    number_of_runs,
    runs_page,
    sparklines,
    variants_of,
)

ROW_HEIGHT, LOW_ROW_HEIGHT = 36, 34
HEADER_HEIGHT = 38

Value = TypeVar("Value")


class Look(TypedDict, total=False):
    """The look of a table: arguments of `st.dataframe` with these names."""

    alt: str
    column_config: dict[str, Any]
    placeholder: str


def show(frame: pd.DataFrame, *, most: int | None = None, **look: Unpack[Look]) -> None:
    """Show a table; it scrolls if it would be higher than `most` pixels."""
    height = _height(frame, ROW_HEIGHT, most)
    st.dataframe(frame, hide_index=True, row_height=ROW_HEIGHT, height=height, **look)


def ticked(
    frame: pd.DataFrame,
    values: Sequence[Value],
    *,
    key: str,
    several: bool = False,
    first: Value | None = None,
    most: int | None = None,
    **look: Unpack[Look],
) -> list[Value]:
    """Show a table and return the values of the ticked rows; `first` is ticked at first."""
    event = st.dataframe(
        frame,
        key=key,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row" if several else "single-row",
        selection_default=_ticked_rows(values, first),
        row_height=ROW_HEIGHT,
        height=_height(frame, ROW_HEIGHT, most),
        **look,
    )
    return [values[row] for row in event.selection.rows if row < len(values)]


def tick_one(
    frame: pd.DataFrame,
    values: Sequence[Value],
    *,
    key: str,
    chosen: Value | None,
    take: Callable[[Value | None], None],
    row_height: int = LOW_ROW_HEIGHT,
    most: int | None = None,
    **look: Unpack[Look],
) -> None:
    """Show a table whose ticked row is known elsewhere, such as from the address.

    `chosen` is the value of that row. `take` is called with the value that a person ticks, or with
    None when they untick it.
    """

    def choose() -> None:
        rows = st.session_state[key].selection.rows
        take(values[rows[0]] if rows and rows[0] < len(values) else None)

    st.dataframe(
        frame,
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode="single-row",
        selection_default=_ticked_rows(values, chosen),
        row_height=row_height,
        height=_height(frame, row_height, most),
        **look,
    )


def _ticked_rows(values: Sequence[Value], ticked: Value | None) -> DataframeStateInput:
    """Return the selection of a table in which one row is ticked, or none."""
    rows = [] if ticked is None else [values.index(ticked)]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}


def _height(frame: pd.DataFrame, row_height: int, most: int | None) -> int | Literal["auto"]:
    if most is None:
        return "auto"
    return min(HEADER_HEIGHT + row_height * max(len(frame), 1), most)


def export(frame: pd.DataFrame, name: str) -> None:
    """Offer a table as CSV with its headings; spreadsheets do not read its texts as formulas."""

    def content() -> str:
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        return csv_text([str(column) for column in frame.columns], rows)

    download("CSV", content, name, "text/csv")


def heading(column: str, unit: str = "") -> str:
    words = column.replace("_", " ").capitalize()
    return f"{words} [{unit}]" if unit else words


def download(label: str, content: str | bytes | Callable[[], str], name: str, kind: str) -> None:
    """Offer a file; if `content` is a function, it is called when the file is downloaded."""
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")


MAX_HEIGHT = 560
NAME_PIXELS = 320
"""Wide enough for the name of an explanation: a triple of usual length."""
ORDERS = {
    "newest first": "attributes.start_time DESC",
    "oldest first": "attributes.start_time ASC",
    "best validation MRR": "metrics.`valid/mrr` DESC",
    "fewest bits per byte": "metrics.`valid/bits_per_byte` ASC",
    "smallest validation MAE": "metrics.`valid/mae` ASC",
    "fastest epoch": "metrics.`time/epoch_seconds` ASC",
    "least GPU memory": "metrics.`memory/gpu_peak_allocated_gib` ASC",
}
KINDS = (
    names.KIND_TRAIN,
    names.KIND_TRACE,
    names.KIND_EVALUATE,
    names.KIND_PROMOTE,
    names.KIND_COMPARE,
    names.KIND_VALIDATE,
    names.KIND_TUNE,
    names.KIND_VALUE,
)
STATES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
ALL = "all"
NUMBERS = {
    names.TIME_EPOCH_SECONDS: "Epoch [s]",
    names.EXAMPLES_PER_SECOND: "Examples/s",
    names.GPU_PEAK_ALLOCATED_GIB: "GPU [GiB]",
    names.PROCESS_PEAK_GIB: "Process [GiB]",
}


def experiment() -> tuple[str, ...]:
    """Let a person choose an experiment; return its id, empty for all of them."""
    found = {experiment.name: experiment.experiment_id for experiment in experiments()}
    chosen = st.selectbox(
        "Experiment",
        [ALL, *found],
        key="experiment",
        bind="query-params",
        help="A named set of runs.",
    )
    return (found[chosen],) if chosen in found else ()


def run_query(experiment_ids: tuple[str, ...], *, kinds: bool = True) -> RunQuery:
    """Let a person narrow the runs down, and return what they want to see."""
    places = st.columns([2.4, 1.2, 1.3, 1.3, 1.7, 1.2][: 6 if kinds else 5])
    text = places[0].text_input(
        "Search",
        key="search",
        bind="query-params",
        type="search",
        placeholder="part of a name, or a run id",
    )
    state = places[1].selectbox("State", [ALL, *STATES], key="state", bind="query-params")
    variants = [ALL, *choices(experiment_ids, names.TAG_VARIANT)]
    variant = places[2].selectbox("Variant", variants, key="variant", bind="query-params")
    datasets = [ALL, *choices(experiment_ids, names.TAG_DATASET)]
    dataset = places[3].selectbox("Data", datasets, key="data", bind="query-params")
    order = places[4].selectbox("Order", list(ORDERS), key="order", bind="query-params")
    kind = names.KIND_TRAIN
    if kinds:
        kind = places[5].selectbox("Kind", [ALL, *KINDS], key="kind", bind="query-params")
    return RunQuery(
        experiment_ids=experiment_ids,
        text=text,
        kind=_unless_all(kind),
        dataset=_unless_all(dataset),
        variant=_unless_all(variant),
        status=STATES.get(state, ""),
        order_by=ORDERS[order],
    )


def _unless_all(value: str) -> str:
    return "" if value == ALL else value


def run_frame(
    runs: Sequence[RunRecord], lines: Mapping[str, Sequence[float]] | None = None
) -> pd.DataFrame:
    """Return the table of the runs, with their ids as index."""
    rows = []
    variants = variants_of(runs)
    for run in runs:
        state = state_of(run)
        row: dict[str, object] = {
            "State": f"{basics.STATE_SYMBOLS[state]} {state}",
            "Run": run.name or run.run_id[:8],
            "Kind": run.tags.get(names.TAG_KIND, ""),
            "Variant": variants[run.run_id],
            "Data": run.tags.get(names.TAG_DATASET, ""),
            "Quality, last": _headline(run),
        }
        if lines is not None:
            row["Trend"] = list(lines.get(run.run_id, []))
        row |= {header: run.metrics.get(key) for key, header in NUMBERS.items()}
        row |= {
            "Started (UTC)": utc(run.started_ms) if run.started_ms else None,
            "Took": duration(run),
        }
        rows.append(row)
    return pd.DataFrame(rows, index=[run.run_id for run in runs])


def _headline(run: RunRecord) -> str:
    key = headline_key(run)
    value = run.metrics.get(key)
    return (
        "" if value is None else f"{glossary.words(key).label.split(',')[0]} {number_text(value)}"
    )


def utc(milliseconds: int) -> datetime:
    """Return an MLflow time in UTC, without a zone: the column's name has it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def duration(run: RunRecord) -> str:
    if run.ended_ms is None or not run.started_ms:
        return ""
    return seconds_text((run.ended_ms - run.started_ms) / 1000)


def seconds_text(seconds: float) -> str:
    """Return seconds in a readable form: 42 s, 3 min 5 s, 2 h 4 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def run_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return how the columns of a table of runs are shown."""
    config: dict[str, Any] = {
        "State": st.column_config.TextColumn(
            width="small",
            help="running: not ended. stuck: marked as running, but its heartbeats stopped two "
            "minutes ago or more. finished, failed, stopped (by a person or a search): how it "
            "ended.",
        ),
        "Run": st.column_config.TextColumn(width=NAME_PIXELS),
        "Kind": st.column_config.TextColumn(
            width="small",
            help="train: a training. trace: explanations. evaluate: a ranking of test "
            "data. promote: a promotion. compare: a study of several trainings.",
        ),
        "Variant": st.column_config.TextColumn(
            width="small",
            help="Precision and other options: ckpt is gradient checkpointing, compile is "
            "torch.compile. For an explanation, the variant of the explained model.",
        ),
        "Data": st.column_config.TextColumn(width="small"),
        "Quality, last": st.column_config.TextColumn(
            width="small",
            help="Last value of the task's main metric. Compare shows the best value by default.",
        ),
        "Trend": st.column_config.LineChartColumn(
            width="small",
            help="That metric on the validation data, from the first value to the last.",
        ),
        "Started (UTC)": st.column_config.DatetimeColumn(format="MMM D, HH:mm", width="small"),
        "Took": st.column_config.TextColumn(width="small"),
    }
    for key, header in NUMBERS.items():
        config[header] = st.column_config.NumberColumn(
            format="%.4g", help=glossary.words(key).help, width="small"
        )
    return {name: shown for name, shown in config.items() if name in frame.columns}


def choose_runs(
    query: RunQuery, *, key: str, trends: bool = False, several: bool = True
) -> list[str] | None:
    """Show the runs that match, a page at a time; return the ids of those that are ticked.

    If no run matches, show a message and return None.
    """
    page = runs_page(query, _current_page(key, query))
    if not page.runs:
        basics.nothing("Nothing matches", "No run matches these filters; clear one of them.")
        return None
    frame = run_frame(page.runs, sparklines(page.runs) if trends else None)
    frame = frame.dropna(axis="columns", how="all")
    ids = [run.run_id for run in page.runs]
    chosen = ticked(
        frame,
        ids,
        alt="Runs",
        key=f"{key}-{hash(tuple(ids))}",
        several=several,
        column_config=run_columns(frame),
        placeholder="–",
        most=MAX_HEIGHT,
    )
    _pager(page, number_of_runs(query), key=key)
    return chosen


def _pager(page: RunPage, total: int, *, key: str) -> None:
    state = f"{key}-page"

    def turn(by: int) -> None:
        st.session_state[state] = max(0, st.session_state.get(state, 0) + by)

    first, last = page.offset + 1, page.offset + len(page.runs)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "◀ Newer", key=f"{key}-newer", on_click=turn, args=(-1,), disabled=page.offset == 0
        )
        st.button("Older ▶", key=f"{key}-older", on_click=turn, args=(1,), disabled=not page.more)
        st.caption(f"{first:,} to {last:,} of {total:,} runs", width="content")


def _current_page(key: str, filters: object) -> int:
    """Return the number of the current page; new filters start at the first page."""
    if st.session_state.get(f"{key}-filters") != filters:
        st.session_state[f"{key}-filters"] = filters
        st.session_state[f"{key}-page"] = 0
    return int(st.session_state.get(f"{key}-page", 0))
