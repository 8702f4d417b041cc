"""Influence: which training facts are behind a prediction."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from clew import names
from clew.runs import store
from clew.runs.influence_forms import SELF_INFLUENCE, Form
from clew.runs.reading.explanation import SharedExplanation
from clew.runs.reading.facts import Agreement, agreement, scored
from clew.runs.reading.reports import ReportFiles
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.runs.window_report import SequenceInfluenceReport
from clew.ui import access
from clew.ui.components import (
    basics,
    charts,
    explanations,
    facts,
    glossary,
    graph,
    reviews,
    run_table,
    tables,
    windows,
)
from clew.ui.components.runs import runs_page

NUM_TRACE_RUNS = 50
ORDERS = {"as in the file": "file", "best rank first": "rank", "self-influence": "self_influence"}
TESTS_HEIGHT = 242
SCORE = "Model's score"
MAX_MOVED = 200
QUESTION = ("score", "direction", "test_loss")
IN_REPORT = "training facts in this report"


def render() -> None:
    title, chooser = st.columns([1, 3.6], vertical_alignment="bottom")
    title.title("Influence", anchor=False)
    with basics.guarded("The list of explanations"):
        found = runs_page(RunQuery(kind=names.KIND_TRACE), size=NUM_TRACE_RUNS).runs
        ended = (run for run in found if run.status != "RUNNING")
        runs = sorted(ended, key=lambda run: run.status != "FINISHED")
        if not runs:
            basics.nothing(
                "No explanations yet",
                f"The tracking store {store.in_use()} has no finished trace run. This command "
                "makes one; or ask a question on the page Ask and press Why?",
                commands="clew tracin --model models:/NAME@champion --test head,relation,tail",
            )
        with basics.guarded("This explanation"):
            with chooser:
                source = _source(runs)
            if isinstance(source, dict):
                _report("", explanations.report_of_upload(source), runs)
            elif source:
                _report(source, explanations.report_of_run(source), runs)


def _report(run_id: str, files: ReportFiles, runs: list[RunRecord]) -> None:
    """Show the text or the frames of a report, or the test triple that a person chooses.

    `run_id` is empty for files from the disk.
    """
    if files.text is not None:
        windows.show_text(explanations.text_report_of(files), key=run_id)
        return
    if files.sequence is not None:
        windows.show_sequence(SequenceInfluenceReport.read(files.sequence), files.picture)
        return
    head = explanations.report_head(files)
    place = _test_triple(head.tests, head.form)
    if place is None:
        return
    found, key = explanations.explained(run_id, files, place), f"{run_id}-{place}"
    facts.card(found)
    with st.container(key="trust"):
        facts.trust(found.head, run_id, found.test)
    left, more, share = st.columns([4, 1, 0.7])
    with share.popover("Share", width="stretch"), basics.guarded("What can be shared"):
        facts.share(found, lambda: explanations.shared(run_id, files, place))
    sections = ["Paths", "Training facts", "Groups", "Another run"]
    sections += ["Check it", "Review"] * bool(run_id)
    first = sections[0] if found.paths.found and not basics.address("fact") else sections[1]
    look = {"place": left, "label_visibility": "collapsed"}  # only screen readers read it
    section = basics.choice("Show", sections, "view", first=first, **look)
    with basics.guarded(section):
        match section:
            case "Paths":
                graph.show_paths(found, key=key)
            case "Training facts":
                _facts(found, more, key=key)
            case "Groups":
                _groups(found, more)
            case "Another run":
                _compare(run_id, found, runs)
            case "Check it":
                facts.check(run_id, found.test)
            case "Review":
                left, right = basics.columns([1, 1.15], key="review")
                with left:
                    graph.show_paths(found, key=key)
                with right:
                    above = st.container()  # filled last, so that it counts the review just saved
                    following = reviews.next_to_judge(run_id, head.tests, place)
                    told = explanations.strongest(found.facts, "influence", reviews.NUM_FACTS)
                    reviews.form(run_id, found.test, told, following)
                    with above:
                        reviews.earlier(run_id, found.test)


def _facts(found: SharedExplanation, more: DeltaGenerator, *, key: str) -> None:
    head = found.head
    with more.popover("Filter facts", width="stretch"):
        wanted = _fact_filter(found.facts)
        number = st.slider("Facts in the graph", 4, 60, 16, 2, key="edges", bind="query-params")
    shown = explanations.passing(found.facts, wanted, IN_REPORT)
    if shown.empty:
        return
    column = wanted.column(found.facts)
    key = f"{key}-{hash(wanted)}"
    left, right = basics.columns([1, 1.3], key="facts")
    with left:
        drawn, place = explanations.strongest(shown, column, number), facts.selected(shown)
        by_strength = drawn[column].abs().sort_values(ascending=False, kind="stable").index
        graph.show(
            found,
            drawn.loc[by_strength],
            column=column,
            selected=() if place is None else (place,),
            key=f"{key}-graph",
            take=facts.select,
            alt="Graph of the test triple and its strongest training facts",
            panel=right.container(),
        )
    with right:
        facts.table(shown, column, head.form, fall=head.label.fall, key=key)
    facts.details(shown, column, head.form)


def _groups(found: SharedExplanation, more: DeltaGenerator) -> None:
    test, listed = found.test, found.facts
    with more.popover("Filter facts", width="stretch"):
        wanted = _fact_filter(listed)
    many = "Many facts of one kind can matter together, even if each is weak."
    by = basics.choice("Group by", ["relation", "shared entity"], "group", help=many)
    shown = explanations.passing(listed, wanted, IN_REPORT)
    if shown.empty:
        return
    groups = explanations.grouped(shown, by, test)
    chart = charts.group_bars(groups, found.head.form.heading)
    st.vega_lite_chart(chart, width="stretch", alt=f"Bars: influence of the facts by {by}")
    absent = scored(test, listed) - len(listed)
    if absent > 0:
        said = f"Sums of the {len(listed):,} facts in this report; the other {absent:,} scored "
        basics.note(f"{said}facts are not in it. A report made with --top-k=0 has all of them.")


def _compare(run_id: str, found: SharedExplanation, runs: list[RunRecord]) -> None:
    tasks = {run.run_id: run.tags.get(names.TAG_TASK) for run in runs}
    alike = [run for run in runs if tasks.get(run_id) in (None, tasks[run.run_id])]
    others = [run for run in alike if run.run_id != run_id]
    about = "The same test triple in another run."
    other_id = _run("Compare with", others, "other", optional=True, help=about)
    if not other_id:
        return
    files = explanations.report_of_run(other_id)
    head = explanations.report_head(files)
    place = explanations.same_test(head.tests, found.test)
    if place is None:
        basics.note("That run does not explain this triple.")
        return
    pairs = ((key, found.head.settings.get(key), head.settings.get(key)) for key in QUESTION)
    if apart := [f"{key} {own} here, {there} there" for key, own, there in pairs if own != there]:
        basics.note(f"They were made differently: {'; '.join(apart)}.")
    _agreement(agreement(found.facts, explanations.facts_of(files, place)))


def _agreement(found: Agreement) -> None:
    spearman = "–" if found.spearman is None else f"{found.spearman:.3f}"
    shown = [("Spearman", spearman, glossary.SPEARMAN)]
    shown.append(("Common facts", f"{len(found.facts):,}", "Facts that both reports contain."))
    for size, share in found.overlap.items():
        shown.append((f"Top {size} in both", f"{share:.0%}", glossary.OVERLAP))
    basics.tiles(shown)
    if found.facts.empty:
        return
    near = found.facts[["position", "other_position"]].min(axis=1) <= MAX_MOVED
    moved = found.facts[near].sort_values("moved", key=abs, ascending=False, kind="stable")
    position = NumberColumn(help="Among the facts in both, from the most helpful one on.")
    columns: tables.Columns = {
        "Training fact": (charts.fact_texts(moved), TextColumn(width="large")),
        "Position here": (moved["position"], position),
        "Position there": (moved["other_position"], position),
        "Moved": (moved["moved"], NumberColumn(format="%+d", help="Places lower in the other.")),
    }
    tables.show(columns, alt="The facts that moved most", most=charts.HEIGHT)


def _source(runs: Sequence[RunRecord]) -> str | dict[str, bytes]:
    """Let a person choose a trace run or files from disk; return its id or the files by name."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with right.popover("Open files", width="stretch"):
        wanted = "influence.json, with influence.parquet if you have it; or the JSON file of a "
        wanted += "traced text or image sequence, from this computer"
        kinds, is_off = ["json", "parquet"], not access.may("upload")
        chosen = st.file_uploader(
            wanted, kinds, accept_multiple_files=True, key="files", disabled=is_off
        )
    if chosen:
        return {file.name: file.getvalue() for file in chosen}
    with left:
        return _run("Explanations", runs, "run", help="The latest trace runs, newest first.")


def _run(
    label: str, runs: Sequence[RunRecord], key: str, *, help: str, optional: bool = False
) -> str:
    """Let a person choose a run, empty for none; it is in the address.

    Names from data appear only in select boxes and tables, which show plain text.
    """
    box, linked = f"{key}-box", basics.address(key)
    labels = {"": "nothing"} if optional else {}
    labels |= run_table.run_labels(runs, linked=linked)
    options = list(labels)
    wanted = linked if linked or optional else st.session_state.get(box)
    st.session_state[box] = wanted if wanted in options else next(iter(options), None)

    def write() -> None:
        basics.write_address(key, st.session_state[box])
        if key == "run":
            reviews.open_test(None)

    named = labels.__getitem__
    return st.selectbox(label, options, 0, named, key=box, on_change=write, help=help) or ""


def _test_triple(tests: pd.DataFrame, form: Form) -> int | None:
    """Let a person choose a test triple from a table; return its place in the report."""
    linked = basics.address("test")
    if linked and basics.address_number("test") not in tests.index:
        basics.note(f"This report has no triple {linked}, which the address names.")
    if len(tests) == 1:
        return int(str(tests.index[0]))
    label = f"Explained triples: {len(tests):,}"
    with st.expander(label, expanded=bool(basics.address("find") or basics.address("testrel"))):
        first, second, third = st.columns([2.4, 1.6, 1.6])
        text = basics.search_box(first, "Search test triples", "find")
        relation = _relation(second, "Relation", tests, key="testrel")
        order = third.selectbox("Order", list(ORDERS), key="testorder", bind="query-params")
        found = explanations.filter_rows(
            tests, explanations.FactFilter(text=text, relation=relation)
        )
        if found.empty:
            st.info("No test triple matches; clear the search or the relation.")
            return None
        if (by := ORDERS[order]) != "file":
            found = found.sort_values(by, ascending=by == "rank", kind="stable")
        return _tests_table(found, form)


def _tests_table(found: pd.DataFrame, form: Form) -> int:
    places = [int(place) for place in found.index]
    linked = basics.address_number("test")
    place = linked if linked in places else places[0]

    def take(ticked: int | None) -> None:
        reviews.open_test(place if ticked is None else ticked)

    own = NumberColumn(help=SELF_INFLUENCE, format="%.3g")
    scored_facts = NumberColumn(help="Training facts whose influence was computed.")
    tables.tick_one(
        {
            "Head": (found["head"], None),
            "Relation": (found["relation"], None),
            "Tail": (found["tail"], None),
            "Rank": (found["rank"], NumberColumn(help=glossary.RANK, format="%.4g")),
            SCORE: (found["score"], NumberColumn(help=glossary.SCORE, format="%.3f")),
            form.self_heading: (found["self_influence"], own),
            "Facts scored": (found["candidates"], scored_facts),
        },
        places,
        key=f"tests-{hash(tuple(places))}-{place}",
        chosen=place,
        take=take,
        alt="Explained triples",
        most=TESTS_HEIGHT,
    )
    tables.export(found, "explained_triples.csv")
    return place


def _fact_filter(found: pd.DataFrame) -> explanations.FactFilter:
    first, second = st.columns(2, vertical_alignment="bottom")
    text = basics.search_box(first, "Search facts", "factfind")
    relation = _relation(second, "Relation of facts", found, key="rel")
    side = basics.choice("Side", explanations.SIDES, "side")
    with st.container(horizontal=True):
        hidden = st.toggle(
            "Hide siblings", key="siblings", bind="query-params", help=glossary.SIBLINGS
        )
        cosine = windows.choose_cosine(found)
    return explanations.FactFilter(text, relation, side, hide_siblings=hidden, cosine=cosine)


def _relation(place: DeltaGenerator, label: str, triples: pd.DataFrame, *, key: str) -> str:
    relations = [run_table.ALL, *sorted(triples["relation"].astype(str).unique())]
    chosen = place.selectbox(label, relations, key=key, bind="query-params")
    return "" if chosen == run_table.ALL else chosen
