"""Run: everything that was recorded for one run."""

import streamlit as st

from clew import names
from clew.ui.components import (
    address,
    claims_table,
    links,
    markup,
    run_report,
    run_results,
    runs_table,
    states,
)
from clew.ui.data.run_page import (
    by_relation,
    curves_of,
    data_of,
    files_of,
    lineage_of,
    log_of,
    metric_table,
    mlflow_page,
    repeating_commands,
    splits_by_relation,
)
from clew.ui.data.run_results import (
    best_configuration,
    extreme_values,
    keeps,
    trials_of,
    validation_of,
    worst_facts,
)
from clew.ui.data.runs import RunRecord, has_runs, run_by_id
from clew.ui.data.studies import claims_frame, study_of


def render() -> None:
    """Show the page."""
    markup.style()
    with states.guarded("The run"):
        wanted = address.text("id")
        found = run_by_id(wanted)
        if found is not None:
            _run(found)
            return
        st.title("Run", anchor=False)
        if not has_runs():
            states.empty_store()
            return
        if wanted:
            states.warning(f"No run {wanted} is in the store; it may have been deleted.")
        _choose()


def _choose() -> None:
    query = runs_table.run_query(runs_table.experiment())
    chosen = runs_table.choose(query, key="run", several=False)
    if chosen:
        address.write("id", chosen[0])
        st.rerun()


def _run(run: RunRecord) -> None:
    st.title(markup.markdown(run.name or run.run_id[:8]), anchor=False)
    _actions(run)
    left, right = st.columns([1, 1.15], gap="large")
    with left, states.guarded("The summary"):
        run_report.summary(run, data_of(run.run_id))
    with right, states.guarded("The commands"):
        run_report.commands(run, repeating_commands(run), mlflow_page(run))
    with states.guarded("The results"):
        _results(run)
    st.header("Metrics", anchor=False)
    with states.guarded("The metrics"):
        run_report.metrics(run, metric_table(run), curves_of(run))
    with states.guarded("The ranks by relation"):
        _relations(run)
    left, right = st.columns(2, gap="large")
    with left, states.guarded("The related runs"):
        st.header("Related runs", anchor=False)
        run_report.relatives(lineage_of(run))
    with right, states.guarded("The files"):
        st.header("Files", anchor=False)
        run_report.files(files_of(run.run_id))
    left, right = st.columns(2, gap="large")
    with left, states.guarded("The configuration"):
        st.header("Configuration", anchor=False)
        run_report.configuration(run)
    with right, states.guarded("The log"):
        st.header("Log", anchor=False)
        run_report.log(log_of(run.run_id))


def _actions(run: RunRecord) -> None:
    kind = run.tags.get(names.TAG_KIND)
    with st.container(horizontal=True):
        links.to("overview", "All runs")
        if kind == names.KIND_TRAIN:
            links.to("compare", "Compare", runs=run.run_id)
            links.to("models", "Promote", candidate=run.run_id)
        if kind == names.KIND_TRACE:
            links.to("influence", "Read the explanations", run=run.run_id)
        if kind == names.KIND_COMPARE:
            links.to("studies", "Studies")


def _results(run: RunRecord) -> None:
    """Show the results of the run that are not metrics, if it has any."""
    study = study_of(run.run_id) if run.tags.get(names.TAG_KIND) == names.KIND_COMPARE else None
    if study is not None and study.claims:
        st.header("Claims", anchor=False)
        claims_table.show(claims_frame([study]))
    if keeps(run, names.ARTIFACT_VALIDATION, names.VALIDATION_JSON):
        st.header("Test of explanations", anchor=False)
        run_results.validation(validation_of(run.run_id))
    if keeps(run, names.ARTIFACT_TUNE, names.TRIALS_CSV):
        st.header("Search", anchor=False)
        run_results.search(run, trials_of(run.run_id), best_configuration(run))
    if keeps(run, names.ARTIFACT_VALUES, names.VALUES_CSV):
        st.header("Values of facts", anchor=False)
        run_results.fact_values(extreme_values(run.run_id), worst_facts(run.run_id))


def _relations(run: RunRecord) -> None:
    splits = splits_by_relation(files_of(run.run_id))
    if not splits:
        return
    st.header("Ranks by relation", anchor=False)
    split = splits[0]
    if len(splits) > 1:
        split = st.segmented_control("Split", splits, default=split, required=True, key="split")
    run_report.relations(by_relation(run.run_id, split))
