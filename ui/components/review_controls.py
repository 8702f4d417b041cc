"""What a person can set on the page Reviews; every value is in the address."""

from collections.abc import Sequence
from typing import Literal

import streamlit as st

from clew.ui.components import address
from clew.ui.components.influence_controls import ALL, run_labels
from clew.ui.data.runs import RunRecord


def run_filter(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Let a person choose one trace run, or all of them.

    The chosen run is in the address under `run`, by its id: pages link here with that.
    """
    labels = run_labels(runs)
    choices = [ALL, *labels]
    linked = address.text("run")
    chosen = st.selectbox(
        "Explanations",
        choices,
        index=choices.index(linked) if linked in choices else 0,
        format_func=lambda run_id: labels.get(run_id, "all of these runs"),
        key="run",
    )
    address.write("run", None if chosen == ALL else chosen)
    return [run for run in runs if chosen in (ALL, run.run_id)]


def verdict_grouping() -> Literal["relation", "run"]:
    """Let a person choose by what verdicts are counted."""
    chosen = st.segmented_control(
        "Verdicts by",
        ["relation", "run"],
        key="by",
        default="relation",
        required=True,
        bind="query-params",
        help="relation: of the explained triple. run: the explanations that were judged.",
    )
    return "run" if chosen == "run" else "relation"
