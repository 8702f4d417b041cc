"""Overview: how many runs in which state, what is running now, and the latest runs."""

import streamlit as st

from clew import names
from clew.ui.components import links, live, markup, runs_table, states
from clew.ui.data.runs import counts, has_runs, runs_by_id


def render() -> None:
    """Show the page."""
    markup.style()
    title, experiment = st.columns([3, 1], vertical_alignment="bottom")
    title.title("Overview", anchor=False)
    with states.guarded("The overview"):
        if not has_runs():
            states.empty_store()
            return
        with experiment:
            experiment_ids = runs_table.experiment()
        _numbers(experiment_ids)
        live.section(experiment_ids)
        st.header("Runs", anchor=False)
        query = runs_table.run_query(experiment_ids)
        chosen = runs_table.choose(query, key="overview", trends=True)
        if chosen is not None:
            _actions(chosen)


def _numbers(experiment_ids: tuple[str, ...]) -> None:
    number = counts(experiment_ids)
    shown = [
        ("Runs", number.total, "All runs of the chosen experiments."),
        ("▶ Running", number.running, "Not ended, and not known to be silent."),
        ("⚠ Stuck", number.stuck, "Sent heartbeats, but is silent for over two minutes."),
        ("✓ Finished", number.finished, "Ended as planned."),
        ("■ Stopped", number.stopped, "Stopped by a person, or by the search they belong to."),
        ("✗ Failed", number.failed, "Ended by an error, or its process died."),
    ]
    with st.container(horizontal=True):
        for label, value, explanation in shown:
            st.metric(label, f"{value:,}", help=explanation, border=True)


def _actions(run_ids: list[str]) -> None:
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
