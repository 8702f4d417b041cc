"""Studies: claims and what was measured, by machine."""

import streamlit as st

from clew.runs import store
from clew.ui.components import basics, results
from clew.ui.components.results import claims_frame, studies

COMPARE_COMMAND = "clew compare --study experiments/studies/training.yaml"
ALL = "all machines"
VERDICTS = {
    "holds": "✓ Hold",
    "does not hold": "✗ Do not hold",
    "cannot be told": "? Cannot be told yet",
    "open": "○ Open: not measurable here",
}
"""The start of a verdict, and the label under which it is counted."""


def render() -> None:
    """Show each claim with its measurement, for one machine or for all."""
    basics.style()
    st.title("Studies", anchor=False)
    with basics.guarded("The list of studies"):
        _claims()


def _claims() -> None:
    found = studies()
    if not any(study.run_id for study in found):
        basics.nothing(
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
    results.show_claims(frame)
