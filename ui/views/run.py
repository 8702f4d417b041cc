"""Run: everything that was recorded for one run."""

import streamlit as st

from clew import names
from clew.runs.reading.run_details import splits_by_relation
from clew.runs.reading.runs import RunRecord
from clew.ui.components import basics, results, run_report, tables
from clew.ui.components.results import (
    best_configuration,
    extreme_values,
    keeps,
    study_of,
    trials_of,
    validation_of,
    worst_facts,
)
from clew.ui.components.run_report import (
    by_relation,
    curves_of,
    data_of,
    files_of,
    lineage_of,
    log_of,
    metric_table,
    mlflow_page,
    repeating_commands,
)
from clew.ui.components.runs import has_runs, run_by_id


def render() -> None:
    """Show the page."""
    basics.style()
    with basics.guarded("The run"):
        wanted = basics.address("id")
        found = run_by_id(wanted)
        if found is not None:
            _run(found)
            return
        st.title("Run", anchor=False)
        if not has_runs():
            basics.empty_store()
            return
        if wanted:
            basics.warning(f"No run {wanted} is in the store; it may have been deleted.")
        _choose()


def _choose() -> None:
    query = tables.run_query(tables.experiment())
    chosen = tables.choose_runs(query, key="run", several=False)
    if chosen:
        basics.write_address("id", chosen[0])
        st.rerun()


def _run(run: RunRecord) -> None:
    st.title(basics.markdown(run.name or run.run_id[:8]), anchor=False)
    _actions(run)
    left, right = st.columns([1, 1.15], gap="large")
    with left, basics.guarded("The summary"):
        run_report.summary(run, data_of(run.run_id))
    with right, basics.guarded("The commands"):
        run_report.commands(run, repeating_commands(run), mlflow_page(run))
    with basics.guarded("The results"):
        _results(run)
    st.header("Metrics", anchor=False)
    with basics.guarded("The metrics"):
        run_report.metrics(run, metric_table(run), curves_of(run))
    with basics.guarded("The ranks by relation"):
        _relations(run)
    left, right = st.columns(2, gap="large")
    with left, basics.guarded("The related runs"):
        st.header("Related runs", anchor=False)
        run_report.relatives(lineage_of(run))
    with right, basics.guarded("The files"):
        st.header("Files", anchor=False)
        run_report.files(files_of(run.run_id))
    left, right = st.columns(2, gap="large")
    with left, basics.guarded("The configuration"):
        st.header("Configuration", anchor=False)
        run_report.configuration(run)
    with right, basics.guarded("The log"):
        st.header("Log", anchor=False)
        run_report.log(log_of(run.run_id))


def _actions(run: RunRecord) -> None:
    kind = run.tags.get(names.TAG_KIND)
    with st.container(horizontal=True):
        basics.link("overview", "All runs")
        if kind == names.KIND_TRAIN:
            basics.link("compare", "Compare", runs=run.run_id)
            basics.link("models", "Promote", candidate=run.run_id)
        if kind == names.KIND_TRACE:
            basics.link("influence", "Read the explanations", run=run.run_id)
        if kind == names.KIND_COMPARE:
            basics.link("studies", "Studies")


def _results(run: RunRecord) -> None:
    """Show the results of the run that are not metrics, if it has any."""
    study = study_of(run.run_id) if run.tags.get(names.TAG_KIND) == names.KIND_COMPARE else None
    if study is not None and study.results:
        st.header("Study", anchor=False)
        results.show_studies([study])
    if keeps(run, names.ARTIFACT_VALIDATION, names.VALIDATION_JSON):
        st.header("Test of explanations", anchor=False)
        results.validation(validation_of(run.run_id))
    if keeps(run, names.ARTIFACT_TUNE, names.TRIALS_CSV):
        st.header("Search", anchor=False)
        results.search(run, trials_of(run.run_id), best_configuration(run))
    if keeps(run, names.ARTIFACT_VALUES, names.VALUES_CSV):
        st.header("Values of facts", anchor=False)
        results.fact_values(extreme_values(run.run_id), worst_facts(run.run_id))


def _relations(run: RunRecord) -> None:
    splits = splits_by_relation(files_of(run.run_id))
    if not splits:
        return
    st.header("Ranks by relation", anchor=False)
    split = splits[0]
    if len(splits) > 1:
        split = st.segmented_control("Split", splits, default=split, required=True, key="split")
    run_report.relations(by_relation(run.run_id, split))
