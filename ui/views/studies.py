"""Studies: variants and how they compare with a reference, by machine."""

import streamlit as st

from clew.runs import store
from clew.runs.reading.run_details import shipped_studies
from clew.ui.components import basics, results

ALL = "all machines"


def render() -> None:
    """Show what each variant measured, for one machine or for all."""
    st.title("Studies", anchor=False)
    with basics.guarded("The list of studies"):
        if not (found := results.studies()):
            basics.nothing(
                "No studies of your own yet",
                f"The tracking store {store.in_use()} has no finished study. The results below "
                "come with Clew; each names the machine it was measured on. This command measures "
                "the optimizations of training on this machine:",
                commands="clew compare --study experiments/studies/training.yaml",
            )
            found = shipped_studies()
        machines = sorted({study.machine for study in found})
        machine = st.selectbox("Machine", [ALL, *machines], key="machine", bind="query-params")
        results.show_studies([study for study in found if machine in (ALL, study.machine)])
