"""Studies: claims and what was measured, by machine; and the memory planner."""

import streamlit as st

from clew.runs import store
from clew.ui.components import address, claims_table, job_view, markup, plan_controls, states
from clew.ui.data.studies import (
    claims_frame,
    configuration,
    configurations,
    fitting_changes,
    kind_changes,
    plan,
    studies,
)

COMPARE_COMMAND = "clew compare --study experiments/studies/training.yaml"
DEFAULT_CONFIG = "experiments/link_prediction/umls.yaml"
SECTIONS = ("Claims", "Memory")
ALL = "all machines"
VERDICTS = {
    "holds": "✓ Hold",
    "does not hold": "✗ Do not hold",
    "cannot be told": "? Cannot be told yet",
    "open": "○ Open: not measurable here",
}
"""The start of a verdict, and the label under which it is counted."""


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Studies", anchor=False)
    section = st.segmented_control(
        "Show",
        SECTIONS,
        key="view",
        default=SECTIONS[0],
        required=True,
        bind="query-params",
        label_visibility="collapsed",
    )
    if section == "Memory":
        with states.guarded("The memory planner"):
            _memory()
        return
    with states.guarded("The list of studies"):
        _claims()


def _claims() -> None:
    found = studies()
    if not any(study.run_id for study in found):
        states.nothing(
            "No studies of your own yet",
            f"The tracking store {store.shown(store.tracking_uri())} has no finished study. The "
            "results below come with Clew; each names the machine it was measured on. This command "
            "tests the claims about the optimizations on this machine:",
            commands=COMPARE_COMMAND,
        )
    machines = sorted({study.machine for study in found})
    machine = st.selectbox("Machine", [ALL, *machines], key="machine", bind="query-params")
    shown = [study for study in found if machine in (ALL, study.machine)]
    frame = claims_frame(shown)
    for column, (start, label) in zip(st.columns(len(VERDICTS)), VERDICTS.items(), strict=True):
        column.metric(label, int(frame["verdict"].str.startswith(start).sum()))
    claims_table.show(frame)


def _memory() -> None:
    paths = configurations()
    first = paths.index(DEFAULT_CONFIG) if DEFAULT_CONFIG in paths else 0  # its data are bundled
    chosen = st.selectbox("Configuration", paths, first, key="config", bind="query-params")
    with states.guarded("This configuration"):
        config = configuration(chosen)
        kind = plan_controls.model_kind(config)
        model = kind_changes(chosen, kind)
        wanted = plan_controls.request(f"{chosen} {kind}", configuration(chosen, model))
        if wanted is not None:
            changes = fitting_changes(chosen, model | wanted.changes)
            job = plan(
                chosen,
                changes,
                device=wanted.device,
                memory_gib=wanted.memory_gib,
                sizes=wanted.sizes,
            )
            address.write("plan", job.job_id)
            st.rerun()
    planned = address.text("plan")
    if planned:
        job_view.show(planned, result=plan_controls.budget)
    else:
        states.note("Nothing is trained: the model runs on tensors without data.")
