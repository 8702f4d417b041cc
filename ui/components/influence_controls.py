"""What a person can set on the page Influence; every value but an uploaded file is in the address.

Names from data appear in select boxes and tables only, which show text as it is.
"""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from clew import names
from ui.components import address, glossary
from ui.components.runs_table import utc
from ui.data.influence import (
    FactFilter,
    ReportFiles,
    Side,
    filter_tests,
    report_of_run,
    report_of_upload,
)
from ui.data.runs import RunRecord

ALL = "all"
ORDERS = {"as in the file": "file", "best rank first": "rank", "self-influence": "self_influence"}
SIDES: dict[str, Side] = {"all": "all", "▲ helping": "proponents", "▼ opposing": "opponents"}
TESTS_HEIGHT = 242
ROW_HEIGHT = 34


def run_label(run: RunRecord) -> str:
    """Return a trace run in one line."""
    variant = run.tags.get(names.TAG_VARIANT, "")
    data = run.tags.get(names.TAG_DATASET, "")
    parts = (run.name or run.run_id[:8], variant, data, f"{utc(run.started_ms):%Y-%m-%d %H:%M}")
    return " · ".join(part for part in parts if part)


def report(runs: Sequence[RunRecord]) -> tuple[str, ReportFiles] | None:
    """Let a person choose a trace run or files; return its id (empty for files) and the files."""
    above = st.container()
    with st.expander("Open files from this computer instead"):
        chosen = st.file_uploader(
            "influence.json, with influence.parquet or .csv if you have them; or "
            "text_influence.json",
            type=["json", "parquet", "csv"],
            accept_multiple_files=True,
            key="files",
        )
    if chosen:
        return "", report_of_upload({file.name: file.getvalue() for file in chosen})
    with above:
        run_id = _run("Explanations", runs, "run", help="The latest trace runs, newest first.")
    return (run_id, report_of_run(run_id)) if run_id else None


def other_run(runs: Sequence[RunRecord], run_id: str) -> str:
    """Let a person choose a second trace run to compare with, empty for none."""
    others = [run for run in runs if run.run_id != run_id]
    return _run(
        "Compare with", others, "other", optional=True, help="The same test triple in another run."
    )


def _run(
    label: str, runs: Sequence[RunRecord], key: str, *, help: str, optional: bool = False
) -> str:
    labels = {run.run_id: run_label(run) for run in runs}
    linked = address.text(key)
    if linked and linked not in labels:  # older than the list: still a good address
        labels[linked] = f"run {linked}"
    options = ["", *labels] if optional else list(labels)
    chosen = st.selectbox(
        label,
        options,
        index=options.index(linked) if linked in options else 0 if options else None,
        format_func=lambda run_id: labels.get(run_id, "nothing"),
        key=f"{key}-box",
        help=help,
    )
    if chosen != linked and (linked or optional or key in st.query_params):
        address.write(key, chosen)
        for place in ("test", "fact") if key == "run" else ():
            address.write(place, None)
    return chosen or ""


def test_triple(tests: pd.DataFrame) -> int | None:
    """Let a person choose a test triple from a table; return its place in the report."""
    first, second, third = st.columns([2.4, 1.6, 1.6])
    text = first.text_input(
        "Search test triples",
        key="find",
        bind="query-params",
        type="search",
        placeholder="part of a name or id",
    )
    relations = [ALL, *sorted(tests["relation"].astype(str).unique())]
    relation = second.selectbox("Relation", relations, key="testrel", bind="query-params")
    order = third.selectbox("Order", list(ORDERS), key="testorder", bind="query-params")
    found = filter_tests(
        tests, text=text, relation="" if relation == ALL else relation, order=ORDERS[order]
    )
    if found.empty:
        st.info("No test triple matches; clear the search or the relation.")
        return None
    return _tests_table(found)


def _tests_table(found: pd.DataFrame) -> int:
    places = [int(place) for place in found.index]
    linked = address.number("test")
    place = linked if linked in places else places[0]
    key = f"tests-{hash(tuple(places))}-{place}"

    def choose() -> None:
        rows = st.session_state[key].selection.rows
        address.write("test", places[rows[0]] if rows else place)
        address.write("fact", None)

    frame = found[["head", "relation", "tail", "rank", "score", "self_influence", "candidates"]]
    st.dataframe(
        frame.rename(
            columns={"self_influence": "Self-influence", "candidates": "Facts scored"}
        ).rename(columns=str.capitalize),
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode="single-row",
        selection_default={
            "selection": {"rows": [places.index(place)], "columns": [], "cells": []}
        },
        column_config={
            "Rank": st.column_config.NumberColumn(help=glossary.RANK, format="%.4g"),
            "Score": st.column_config.NumberColumn(help=glossary.SCORE, format="%.3f"),
            "Self-influence": st.column_config.NumberColumn(
                help=glossary.SELF_INFLUENCE, format="%.3g"
            ),
            "Facts scored": st.column_config.NumberColumn(
                help="Training facts whose influence was computed."
            ),
        },
        row_height=ROW_HEIGHT,
        height=min(38 + ROW_HEIGHT * len(found), TESTS_HEIGHT),
        placeholder="–",
    )
    return place


def section(*, reviewable: bool) -> str:
    """Let a person choose what of an explanation is shown."""
    sections = ["Training facts", "Groups", "Another run", *(["Review"] if reviewable else [])]
    chosen = st.segmented_control(
        "Show",
        sections,
        key="view",
        default=sections[0],
        required=True,
        bind="query-params",
        label_visibility="collapsed",
    )
    return chosen or sections[0]


def fact_filter(facts: pd.DataFrame) -> FactFilter:
    """Let a person narrow the training facts down."""
    first, second, third, fourth = st.columns([2, 1.5, 1.9, 1.7], vertical_alignment="bottom")
    text = first.text_input(
        "Search facts",
        key="factfind",
        bind="query-params",
        type="search",
        placeholder="part of a name or id",
    )
    relations = [ALL, *sorted(facts["relation"].astype(str).unique())]
    relation = second.selectbox("Relation of facts", relations, key="rel", bind="query-params")
    side = third.segmented_control(
        "Side", list(SIDES), key="side", default="all", required=True, bind="query-params"
    )
    with fourth.container(horizontal=True):
        siblings = st.toggle(
            "Hide siblings",
            key="siblings",
            bind="query-params",
            help="Leave out facts with the same head and relation as the test triple: they share "
            "its question and are often trivially influential.",
        )
        cosine = st.toggle(
            "Cosine",
            key="cosine",
            bind="query-params",
            disabled="cosine" not in facts,
            help=glossary.COSINE,
        )
    return FactFilter(
        text=text,
        relation="" if relation == ALL else relation,
        side=SIDES[side or "all"],
        hide_siblings=siblings,
        cosine=cosine,
    )


def picture() -> tuple[str, int]:
    """Let a person choose the picture, and how many facts a graph shows."""
    first, second, _ = st.columns([1, 2, 2], vertical_alignment="center")
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
    """Let a person choose by what facts are summed."""
    chosen = st.segmented_control(
        "Group by",
        ["relation", "shared entity"],
        key="group",
        default="relation",
        required=True,
        bind="query-params",
        help="Many facts of one kind may matter together although none stands out.",
    )
    return chosen or "relation"
