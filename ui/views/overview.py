"""Overview: how many runs in which state, what is running now, and the latest runs."""

import streamlit as st

from clew import names
from clew.runs import store
from clew.ui.components import links, live, markup, run_filters, runs_table, states
from clew.ui.data.runs import (
    RunQuery,
    counts,
    has_runs,
    number_of_runs,
    runs_by_id,
    runs_page,
    sparklines,
)


def render() -> None:
    """Show the page."""
    markup.style()
    title, experiment = st.columns([3, 1], vertical_alignment="bottom")
    title.title("Overview", anchor=False)
    with states.guarded("The overview"):
        if not has_runs():
            states.empty_store(store.shown(store.tracking_uri()))
            return
        with experiment:
            experiment_ids = run_filters.experiment()
        _numbers(experiment_ids)
        live.section(experiment_ids)
        st.header("Runs", anchor=False)
        _latest(run_filters.run_query(experiment_ids))


def _numbers(experiment_ids: tuple[str, ...]) -> None:
    """Show how many runs are in which state."""
    number = counts(experiment_ids)
    shown = [
        ("Runs", number.total, "All runs of the chosen experiments."),
        ("▶ Running", number.running, "They gave a sign of life within the last two minutes."),
        ("⚠ Stuck", number.stuck, "They say they are running but have been silent for long."),
        ("✓ Finished", number.finished, "Ended as planned."),
        ("✗ Failed", number.failed, "Ended by an error, or killed."),
    ]
    with st.container(horizontal=True):
        for label, value, explanation in shown:
            st.metric(label, f"{value:,}", help=explanation, border=True)


def _latest(query: RunQuery) -> None:
    """Show the runs that match, a page at a time, and what can be done with those ticked."""
    page = runs_page(query, runs_table.current_page("overview", query))
    if not page.runs:
        states.nothing("Nothing matches", "No run matches these filters; clear one of them.")
        return
    chosen = runs_table.choose(page.runs, key="overview", lines=sparklines(page.runs))
    runs_table.pager(page, number_of_runs(query), key="overview")
    _actions(chosen)


def _actions(run_ids: list[str]) -> None:
    """Offer the pages that show more of the ticked runs."""
    runs = runs_by_id(run_ids)
    trained = [run for run in runs if run.tags.get(names.TAG_KIND) == names.KIND_TRAIN]
    traced = [run for run in runs if run.tags.get(names.TAG_KIND) == names.KIND_TRACE]
    if not runs:
        st.caption("Tick runs to compare them, to read their explanations or to promote one.")
        return
    with st.container(horizontal=True):
        if len(runs) == 1:
            links.to("run", "Open this run", id=runs[0].run_id)
        if len(trained) > 1:
            ids = ",".join(run.run_id for run in trained)
            links.to("compare", f"Compare {len(trained)} runs", runs=ids)
        if traced:
            links.to("influence", "Read explanations", run=traced[0].run_id)
        if len(trained) == 1:
            links.to("models", "Promote this run", candidate=trained[0].run_id)
