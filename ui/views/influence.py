"""Influence: which training facts are behind a prediction."""

from collections.abc import Mapping

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clew.names import TAG_TASK
from clew.runs import store
from clew.runs.influence_forms import Form
from clew.runs.influence_report import SequenceInfluenceReport
from clew.runs.reading.facts import agreement, scored
from clew.runs.reading.reports import ReportFiles
from clew.runs.reading.runs import RunRecord
from clew.ui.components import (
    basics,
    facts,
    graph,
    influence_charts,
    influence_controls,
    review_form,
    windows,
)
from clew.ui.components.explanations import (
    facts_of,
    filter_facts,
    grouped,
    paths_of,
    report_head,
    report_of_run,
    report_of_upload,
    same_test,
    trace_runs,
    triple_at,
    value_column,
    with_validation,
)
from clew.ui.components.graph import kinds_of, shared
from clew.ui.components.runs import variants_of
from clew.ui.components.windows import text_report_of

TRACE_COMMAND = "clew tracin --model models:/NAME@champion --test head,relation,tail"


def render() -> None:
    """Show the page."""
    basics.style()
    title, chooser = st.columns([1, 3.6], vertical_alignment="bottom")
    title.title("Influence", anchor=False)
    with basics.guarded("The list of explanations"):
        runs = trace_runs()
        if not runs:
            basics.nothing(
                "No explanations yet",
                f"The tracking store {store.in_use()} has no finished trace run. This command "
                "makes one; or ask a question on the page Ask and press Why?",
                commands=TRACE_COMMAND,
            )
        with basics.guarded("This explanation"):
            with chooser:
                source = influence_controls.source(runs)
            if isinstance(source, dict):
                _report("", report_of_upload(source), runs)
            elif source:
                _report(source, report_of_run(source), runs)


def _report(run_id: str, files: ReportFiles, runs: list[RunRecord]) -> None:
    """Show the text or the frames of a report, or the test triple that a person chooses.

    `run_id` is empty for files from the disk.
    """
    if files.text is not None:
        windows.show_text(text_report_of(files), key=run_id)
        return
    if files.sequence is not None:
        windows.show_sequence(SequenceInfluenceReport.read(files.sequence), files.picture)
        return
    head = report_head(files)
    if run_id:
        head = with_validation(head)
    if head.problem:
        basics.warning(
            f"{head.problem}. This page shows the other files, without ranks and scores."
        )
    place = influence_controls.test_triple(head.tests, head.form)
    if place is None:
        return
    test, found = triple_at(head, place), facts_of(files, place)
    paths = paths_of(files, place)
    kinds = kinds_of(head)
    facts.card(test, found, paths, head, kinds)
    left, more, share = st.columns([4, 1, 0.7])
    with share.popover("Share", width="stretch"), basics.guarded("What can be shared"):
        facts.share(shared(run_id, head, test, found, paths))
    with left:
        section = influence_controls.section(reviewable=bool(run_id), paths=bool(paths))
    with basics.guarded(section):
        match section:
            case "Paths":
                key = f"{run_id}-{place}"
                graph.show_paths(test, found, paths, key=key, kinds=kinds, form=head.form)
            case "Training facts":
                _facts(test, found, more, kinds, head.form, key=f"{run_id}-{place}")
            case "Groups":
                _groups(test, found, more, head.form)
            case "Another run":
                _compare(run_id, test, found, runs)
            case "Review":
                above = st.container()  # filled last, so that it counts the review just saved
                review_form.form(run_id, test, found)
                with above:
                    review_form.earlier(run_id, test)


def _facts(
    test: pd.Series,
    found: pd.DataFrame,
    more: DeltaGenerator,
    kinds: Mapping[str, str],
    form: Form,
    *,
    key: str,
) -> None:
    with more.popover("Filter facts", width="stretch"):
        wanted = influence_controls.fact_filter(found)
        drawn, number = influence_controls.picture()
    shown = filter_facts(found, wanted)
    if shown.empty:
        basics.note(
            f"None of the {len(found):,} training facts in this report passes these filters; clear "
            "one of them."
        )
        return
    column = value_column(found, cosine=wanted.cosine)
    key = f"{key}-{hash(wanted)}"
    left, right = basics.columns([1, 1.3], key="facts")
    with left:
        if drawn == "bars":
            facts.bars(shown, column, form)
        else:
            facts.picture(test, shown, column, number=number, key=key, kinds=kinds)
    with right:
        facts.table(shown, column, form, key=key)
    facts.details(shown, column, form)


def _groups(test: pd.Series, found: pd.DataFrame, more: DeltaGenerator, form: Form) -> None:
    with more.popover("Filter facts", width="stretch"):
        wanted = influence_controls.fact_filter(found)
    by = influence_controls.grouping()
    groups = grouped(filter_facts(found, wanted), by, str(test["head"]), str(test["tail"]))
    if groups.empty:
        basics.note(
            f"None of the {len(found):,} training facts in this report passes these filters; clear "
            "one of them."
        )
        return
    chart = influence_charts.group_bars(groups, form.heading)
    st.altair_chart(chart, width="stretch", alt=f"Bars: influence of the facts by {by}")
    absent = scored(test, found) - len(found)
    if absent > 0:
        basics.note(
            f"Sums of the {len(found):,} facts in this report; the other {absent:,} scored facts "
            "are not in it. A report made with --top-k=0 has all of them."
        )


def _compare(run_id: str, test: pd.Series, found: pd.DataFrame, runs: list[RunRecord]) -> None:
    task = next((run.tags.get(TAG_TASK) for run in runs if run.run_id == run_id), None)
    alike = [run for run in runs if task is None or run.tags.get(TAG_TASK) == task]
    other_id = influence_controls.other_run(alike, run_id)
    if not other_id:
        return
    files = report_of_run(other_id)
    place = same_test(report_head(files).tests, test)
    if place is None:
        basics.note("That run does not explain this triple.")
        return
    variants = variants_of(runs)
    labels = {run.run_id: variants[run.run_id] or run.name for run in runs}
    names = (labels.get(run_id, "this one"), labels.get(other_id, "the other"))
    if names[0] == names[1]:
        names = ("this run", "the other run")
    influence_charts.show_agreement(agreement(found, facts_of(files, place)), names)
