"""The controls of the page Influence; every value except an uploaded file is in the address.

Names from data appear only in select boxes and tables, which show plain text.
"""

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from clew import names
from clew.runs.influence_forms import SELF_INFLUENCE, Form
from clew.runs.reading.runs import RunRecord
from clew.ui import access
from clew.ui.components import basics, glossary, tables
from clew.ui.components.explanations import FactFilter, Side, filter_tests
from clew.ui.components.runs import variants_of
from clew.ui.components.tables import utc

ALL = "all"
ORDERS = {"as in the file": "file", "best rank first": "rank", "self-influence": "self_influence"}
SIDES: dict[str, Side] = {"all": "all", "▲ helping": "proponents", "▼ opposing": "opponents"}
TESTS_HEIGHT = 242
SCORE = "Model's score"


def run_labels(runs: Sequence[RunRecord], *, linked: str = "") -> dict[str, str]:
    """Return each run in one line: its name, its model's variant, its data, and when it started.

    The run in `linked` has a line too, even if it is older than the list.
    """
    variants = variants_of(runs)
    parts = {
        run.run_id: (
            run.name or run.run_id[:8],
            variants[run.run_id],
            run.tags.get(names.TAG_DATASET, ""),
            f"{utc(run.started_ms):%Y-%m-%d %H:%M}",
        )
        for run in runs
    }
    labels = {run_id: " · ".join(filter(None, found)) for run_id, found in parts.items()}
    return labels | ({linked: f"run {linked}"} if linked and linked not in labels else {})


def source(runs: Sequence[RunRecord]) -> str | dict[str, bytes]:
    """Let a person choose a trace run or files from disk; return its id or the files by name."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with right.popover("Open files", width="stretch"):
        chosen = st.file_uploader(
            "influence.json, with influence.parquet or .csv if you have them; or the JSON file of "
            "a traced text or image sequence, from this computer",
            type=["json", "parquet", "csv"],
            accept_multiple_files=True,
            key="files",
            disabled=not access.may("upload"),
        )
    if chosen:
        return {file.name: file.getvalue() for file in chosen}
    with left:
        return _run("Explanations", runs, "run", help="The latest trace runs, newest first.")


def other_run(runs: Sequence[RunRecord], run_id: str) -> str:
    """Let a person choose a second trace run to compare with, empty for none."""
    others = [run for run in runs if run.run_id != run_id]
    return _run(
        "Compare with", others, "other", optional=True, help="The same test triple in another run."
    )


def _run(
    label: str, runs: Sequence[RunRecord], key: str, *, help: str, optional: bool = False
) -> str:
    box, linked = f"{key}-box", basics.address(key)
    labels = run_labels(runs, linked=linked)
    options = ["", *labels] if optional else list(labels)
    wanted = linked if linked or optional else st.session_state.get(box)
    st.session_state[box] = wanted if wanted in options else next(iter(options), None)

    def write() -> None:
        basics.write_address(key, st.session_state[box])
        for place in ("test", "fact", "path") if key == "run" else ():
            basics.write_address(place, None)

    chosen = st.selectbox(
        label,
        options,
        format_func=lambda run_id: labels.get(run_id, "nothing"),
        key=box,
        on_change=write,
        help=help,
    )
    return chosen or ""


def test_triple(tests: pd.DataFrame, form: Form) -> int | None:
    """Let a person choose a test triple from a table; return its place in the report."""
    if len(tests) == 1:
        return int(str(tests.index[0]))
    label = f"Explained triples: {len(tests):,}"
    with st.expander(label, expanded=bool(basics.address("find") or basics.address("testrel"))):
        return _choose_test(tests, form)


def _choose_test(tests: pd.DataFrame, form: Form) -> int | None:
    first, second, third = st.columns([2.4, 1.6, 1.6])
    text = first.text_input(
        "Search test triples",
        key="find",
        bind="query-params",
        type="search",
        placeholder="part of a name or id",
    )
    relation = _relation(second, "Relation", tests, key="testrel")
    order = third.selectbox("Order", list(ORDERS), key="testorder", bind="query-params")
    found = filter_tests(tests, text=text, relation=relation, order=ORDERS[order])
    if found.empty:
        st.info("No test triple matches; clear the search or the relation.")
        return None
    return _tests_table(found, form)


def _tests_table(found: pd.DataFrame, form: Form) -> int:
    places = [int(place) for place in found.index]
    linked = basics.address_number("test")
    place = linked if linked in places else places[0]
    frame = found[["head", "relation", "tail", "rank", "score", "self_influence", "candidates"]]
    called = {"score": SCORE, "self_influence": form.self_heading, "candidates": "Facts scored"}
    tables.tick_one(
        frame.rename(columns=called).rename(columns=lambda name: f"{name[:1].upper()}{name[1:]}"),
        places,
        key=f"tests-{hash(tuple(places))}-{place}",
        chosen=place,
        take=lambda ticked: open_test(place if ticked is None else ticked),
        alt="Explained triples",
        column_config={
            "Rank": st.column_config.NumberColumn(help=glossary.RANK, format="%.4g"),
            SCORE: st.column_config.NumberColumn(help=glossary.SCORE, format="%.3f"),
            form.self_heading: st.column_config.NumberColumn(help=SELF_INFLUENCE, format="%.3g"),
            "Facts scored": st.column_config.NumberColumn(
                help="Training facts whose influence was computed."
            ),
        },
        most=TESTS_HEIGHT,
        placeholder="–",
    )
    tables.export(found, "explained_triples.csv")
    return place


def open_test(place: int) -> None:
    """Let the page explain another test triple, without a selected fact or path."""
    basics.write_address("test", place)
    basics.write_address("fact", None)
    basics.write_address("path", None)


def section(*, reviewable: bool, paths: bool) -> str:
    """Let a person choose which part of an explanation is shown: paths first, if there are any."""
    sections = ["Paths", "Training facts", "Groups", "Another run"]
    sections += ["Review"] if reviewable else []
    first = sections[0] if paths and not basics.address("fact") else sections[1]
    chosen = st.segmented_control(
        "Show",
        sections,
        key="view",
        default=first,
        required=True,
        bind="query-params",
        label_visibility="collapsed",
    )
    return chosen or first


def fact_filter(facts: pd.DataFrame) -> FactFilter:
    """Let a person narrow the training facts down."""
    first, second = st.columns(2, vertical_alignment="bottom")
    text = first.text_input(
        "Search facts",
        key="factfind",
        bind="query-params",
        type="search",
        placeholder="part of a name or id",
    )
    relation = _relation(second, "Relation of facts", facts, key="rel")
    chosen_side = side()
    with st.container(horizontal=True):
        siblings = st.toggle(
            "Hide siblings",
            key="siblings",
            bind="query-params",
            help="Leave out facts that have the same relation and head, or the same relation and "
            "tail, as the test triple. They answer the same question, so their influence is often "
            "trivial.",
        )
        by_cosine = cosine(facts)
    return FactFilter(
        text=text, relation=relation, side=chosen_side, hide_siblings=siblings, cosine=by_cosine
    )


def _relation(place: DeltaGenerator, label: str, triples: pd.DataFrame, *, key: str) -> str:
    """Let a person choose a relation; return it, empty for all of them."""
    relations = [ALL, *sorted(triples["relation"].astype(str).unique())]
    chosen = place.selectbox(label, relations, key=key, bind="query-params")
    return "" if chosen == ALL else chosen


def side() -> Side:
    """Let a person choose helping facts, opposing facts, or both."""
    chosen = st.segmented_control(
        "Side", list(SIDES), key="side", default="all", required=True, bind="query-params"
    )
    return SIDES[chosen or "all"]


def cosine(found: pd.DataFrame) -> bool:
    """Let a person choose the cosine instead of the influence, if there is one."""
    return st.toggle(
        "Cosine",
        key="cosine",
        bind="query-params",
        disabled="cosine" not in found,
        help=glossary.COSINE,
    )


def picture() -> tuple[str, int]:
    """Let a person choose the picture, and how many facts a graph shows."""
    first, second = st.columns([1, 2], vertical_alignment="center")
    form = first.segmented_control(
        "Picture",
        ["graph", "bars"],
        key="picture",
        default="graph",
        required=True,
        bind="query-params",
        label_visibility="collapsed",
    )
    if form == "bars":
        return "bars", 0
    number = second.slider("Facts in the graph", 4, 60, 16, 2, key="edges", bind="query-params")
    return "graph", number


def grouping() -> str:
    """Let a person choose how facts are grouped."""
    chosen = st.segmented_control(
        "Group by",
        ["relation", "shared entity"],
        key="group",
        default="relation",
        required=True,
        bind="query-params",
        help="Many facts of one kind can matter together, even if each is weak.",
    )
    return chosen or "relation"
