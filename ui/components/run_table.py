"""The table of all runs: search, order, columns and pages, and rows to tick."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import DatetimeColumn, LineChartColumn, NumberColumn, TextColumn

from clew import names
from clew.errors import UsageError
from clew.runs.reading import comparison
from clew.runs.reading.metrics import headline_key, number_text
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import STATES, RunQuery
from clew.ui.components import basics, glossary
from clew.ui.components import runs as stored
from clew.ui.components.tables import Columns, seconds_text, ticked, utc, with_values

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
ALL = "all"
GROUP_PAGE = 300
"""How many runs are grouped at once."""
SEARCH_HELP = (
    "Settings by their short names, metrics, tags, and parts of names, all of which must hold: "
    "`embedding_dim=400 mrr>0.9 data:umls conve`. Others: `variant:`, `kind:` (`train`, `trace`, "
    f"`promote` ...), `user:`, `note:`, `parent:` a run's id, `state:` {', '.join(STATES)}. `:` is "
    "a part of the value, `=` all of it; quotes keep words together."
)


def experiment() -> tuple[str, ...]:
    """Let a person choose an experiment; return its id, empty for all of them."""
    found = stored.experiments()
    options, about = [ALL, *found], "A named set of runs."
    chosen = st.selectbox("Experiment", options, key="experiment", bind="query-params", help=about)
    return (found[chosen],) if chosen in found else ()


def run_query(experiment_ids: tuple[str, ...], *, kind: str = "") -> RunQuery:
    """Let a person search for runs and order them."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    example = "embedding_dim=400 mrr>0.9 data:umls"
    text = basics.search_box(left, "Search", "search", placeholder=example, help=SEARCH_HELP)
    order = right.selectbox("Order", list(ORDERS), key="order", bind="query-params")
    return RunQuery(experiment_ids, text=text, kind=kind, order_by=ORDERS[order])


def column_name(key: str) -> str:
    return glossary.label(key).removeprefix(names.PARAMETER_PREFIX)


def values_of(runs: Sequence[RunRecord], key: str) -> list[Any]:
    """Return what each run recorded under a key, as numbers if all of it is numbers."""
    parts = [(run.metrics, run.params, run.tags) for run in runs]
    found: list[Any] = [next((p[key] for p in each if key in p), None) for each in parts]
    try:
        return [None if value is None else float(value) for value in found]
    except ValueError:
        return found


def _differences(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the settings of each training run that tell it apart, with its seed if it needs it."""
    # Other kinds of runs have no settings, so that every setting would differ from them.
    trained = [
        run for run in runs if run.tags.get(names.TAG_KIND, names.KIND_TRAIN) == names.KIND_TRAIN
    ]
    apart = dict.fromkeys((run.run_id for run in runs), "") | {
        run_id: " · ".join(setting for setting in settings if not setting.endswith(" –"))
        for run_id, settings in comparison.told_apart(trained, most=4).items()
    }
    alike = Counter((run.name, apart[run.run_id]) for run in runs)
    for run in runs:
        if comparison.SEED in run.params and alike[run.name, apart[run.run_id]] > 1:
            more = f" · seed {run.params[comparison.SEED]}"
            apart[run.run_id] = f"{apart[run.run_id]}{more}".removeprefix(" · ")
    return apart


def _headline(run: RunRecord) -> str:
    """Return the name and the last value of the metric that matters most; empty without one."""
    key = headline_key(run)
    if key not in run.metrics:
        return ""
    return f"{glossary.words(key).label.split(',')[0]} {number_text(run.metrics[key])}"


HELP = {
    "State": "running: not ended. stuck: marked as running, but its heartbeats stopped two minutes "
    "ago or more. finished, failed, stopped (by a person or a search): how it ended.",
    "Differs in": "Settings that differ among these runs.",
    "Kind": "train: a training run. trace: explanations. evaluate: a ranking of test data. "
    "promote: a promotion. compare: a study of several training runs.",
    "Variant": "Precision and other options: ckpt is gradient checkpointing, compile is "
    "torch.compile. For an explanation, the variant of the explained model.",
    "Quality, last": "Last value of the task's main metric. Compare shows the best by default.",
}
"""What the columns of the table of runs mean."""
WIDTHS: dict[str, Any] = {"Run": NAME_PIXELS, "Differs in": "medium"}
WIDTHS["Quality, last"] = 130  # for `Bits per byte 0.1234`


def run_table(
    runs: Sequence[RunRecord],
    lines: Mapping[str, Sequence[float]] | None = None,
    chosen: Sequence[str] = (),
) -> Columns:
    """Return the table of the runs with the `chosen` columns, without those that have no value."""
    variants, apart = stored.variants_of(runs), _differences(runs)
    texts = {
        "State": [f"{basics.STATE_SYMBOLS[state]} {state}" for state in map(state_of, runs)],
        "Run": [stored.name_of(run) for run in runs],
        "Differs in": [apart[run.run_id] for run in runs],
        "Kind": [run.tags.get(names.TAG_KIND, "") for run in runs],
        "Variant": [variants[run.run_id] for run in runs],
        "Data": [run.tags.get(names.TAG_DATASET, "") for run in runs],
        "Quality, last": [_headline(run) for run in runs],
    }
    columns: Columns = {}
    for heading, values in texts.items():
        width = WIDTHS.get(heading, "small")
        columns[heading] = (values, TextColumn(width=width, help=HELP.get(heading)))
    if lines is not None:
        about = "That metric on the validation data, from the first value to the last."
        trends = [list(lines.get(run.run_id, [])) for run in runs]
        columns["Trend"] = (trends, LineChartColumn(width="small", help=about))
    for key in chosen:
        found = values_of(runs, key)
        number = NumberColumn(format="%.4g", help=basics.markdown(glossary.words(key).help))
        columns[column_name(key)] = (found, number if float in map(type, found) else None)
    times = [utc(run.started_ms) if run.started_ms else None for run in runs]
    columns["Started (UTC)"] = (
        pd.Series(times, dtype="datetime64[ns]"),
        DatetimeColumn(format="MMM D, HH:mm", width="small"),
    )
    columns["Took"] = ([duration(run) for run in runs], TextColumn(width="small"))
    return with_values(columns)


def duration(run: RunRecord) -> str:
    if run.ended_ms is None or not run.started_ms:
        return ""
    return seconds_text((run.ended_ms - run.started_ms) / 1000)


def group_table(
    groups: Sequence[comparison.Group], runs: Mapping[str, RunRecord], chosen: Sequence[str]
) -> Columns:
    """Return the table of the groups: of each metric its mean and deviation over the seeds."""
    firsts = [runs[group.run_ids[0]] for group in groups]
    columns: Columns = {
        "Setting": ([group.label for group in groups], TextColumn(width=NAME_PIXELS)),
        "Seeds": ([len(set(group.seeds)) for group in groups], NumberColumn(width="small")),
        "Data": ([run.tags.get(names.TAG_DATASET, "") for run in firsts], None),
    }
    for key in dict.fromkeys([*map(headline_key, firsts), *chosen]):
        by_run = {run_id: run.metrics[key] for run_id, run in runs.items() if key in run.metrics}
        means = [
            comparison.statistic_text(comparison.statistic(group.by_seed(by_run).values()))
            for group in groups
        ]
        shown = means if by_run else values_of(firsts, key)
        about = basics.markdown(glossary.words(key).help)
        columns[column_name(key)] = (shown, TextColumn(help=about))
    return with_values(columns)


def choose_runs(query: RunQuery, *, key: str, trends: bool = False) -> list[str] | None:
    """Show the runs that match, a page at a time; return the ids of those that are ticked.

    If no run matches, or the search cannot be understood, show a message and return None.
    """
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    keys = stored.known_keys()
    every, about = sorted(keys.metrics | keys.params | keys.tags), "any metric, setting or tag"
    usual = [key for key in comparison.COST_METRICS if key in keys.metrics]
    chosen = left.multiselect(
        "Columns", every, usual, key="columns", bind="query-params", placeholder=about
    )
    about = "Runs that differ only in seed are one row: mean ± standard deviation over the seeds."
    grouped = right.toggle("Seeds in one row", key="rows", bind="query-params", help=about)
    size = GROUP_PAGE if grouped else stored.PAGE_SIZE
    state = f"{key}-page-{size}-{query}"  # each search has its own page
    try:
        page = stored.runs_page(query, st.session_state.setdefault(state, 0), size=size)
        if not page.runs and page.offset:  # runs have ended or been deleted since
            st.session_state[state] = 0
            page = stored.runs_page(query, size=size)
    except UsageError as error:
        basics.show('<p class="clew-against" role="alert">{said}</p>', said=error)
        return None
    if not page.runs:
        unmatched = "No run matches this search; shorten it."
        none = "The chosen experiments have no such runs."
        basics.nothing("Nothing matches", unmatched if query.text else none)
        return None
    rows = [[run.run_id] for run in page.runs]
    if grouped:
        groups = comparison.group_runs(page.runs, by_seed=True)
        rows = [list(group.run_ids) for group in groups]
        table = group_table(groups, {run.run_id: run for run in page.runs}, chosen)
    else:
        table = run_table(page.runs, stored.sparklines(page.runs) if trends else None, chosen)
    own = f"{key}-{hash(str(rows))}"
    marked = ticked(table, rows, key=own, several=True, most=MAX_HEIGHT, alt="Runs")

    def turn(by: int) -> None:
        st.session_state[state] = max(0, st.session_state.get(state, 0) + by)

    begin, end = page.offset + 1, page.offset + len(page.runs)
    total = stored.number_of_runs(query) if page.more else end
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("◀ Back", f"{key}-newer", on_click=turn, args=(-1,), disabled=not page.offset)
        st.button("Next ▶", f"{key}-older", on_click=turn, args=(1,), disabled=not page.more)
        st.caption(f"{begin:,} to {end:,} of {total:,} runs", width="content")
    return [run_id for row in marked for run_id in row]


def run_labels(runs: Sequence[RunRecord], *, linked: str = "") -> dict[str, str]:
    """Return each run in one line: its name, its model's variant, its data, and when it started.

    The run in `linked` has a line too, even if it is older than the list.
    """
    variants = stored.variants_of(runs)
    labels = {}
    for run in runs:
        data, started = run.tags.get(names.TAG_DATASET, ""), f"{utc(run.started_ms):%Y-%m-%d %H:%M}"
        parts = (stored.name_of(run), variants[run.run_id], data, started)
        labels[run.run_id] = " · ".join(filter(None, parts))
    return labels | ({linked: f"run {linked}"} if linked and linked not in labels else {})
