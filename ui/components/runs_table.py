"""Tables of runs: filters (with values in the address), columns, and ticked rows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import streamlit as st

from clew import names
from clew.ui.components import glossary, palette, states, tables
from clew.ui.data.runs import (
    RunPage,
    RunQuery,
    RunRecord,
    choices,
    experiments,
    headline_key,
    number_of_runs,
    number_text,
    runs_page,
    sparklines,
    state_of,
    variants_of,
)

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


def frame_of(
    runs: Sequence[RunRecord], lines: Mapping[str, Sequence[float]] | None = None
) -> pd.DataFrame:
    """Return the table of the runs, with their ids as index."""
    rows = []
    variants = variants_of(runs)
    for run in runs:
        state = state_of(run)
        row: dict[str, object] = {
            "State": f"{palette.STATE_SYMBOLS[state]} {state}",
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


def columns(frame: pd.DataFrame) -> dict[str, Any]:
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


def choose(
    query: RunQuery, *, key: str, trends: bool = False, several: bool = True
) -> list[str] | None:
    """Show the runs that match, a page at a time; return the ids of those that are ticked.

    If no run matches, show a message and return None.
    """
    page = runs_page(query, _current_page(key, query))
    if not page.runs:
        states.nothing("Nothing matches", "No run matches these filters; clear one of them.")
        return None
    frame = frame_of(page.runs, sparklines(page.runs) if trends else None)
    frame = frame.dropna(axis="columns", how="all")
    ids = [run.run_id for run in page.runs]
    ticked = tables.ticked(
        frame,
        ids,
        alt="Runs",
        key=f"{key}-{hash(tuple(ids))}",
        several=several,
        column_config=columns(frame),
        placeholder="–",
        most=MAX_HEIGHT,
    )
    _pager(page, number_of_runs(query), key=key)
    return ticked


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
