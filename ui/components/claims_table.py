"""The claims of studies, with what was measured."""

import pandas as pd
import streamlit as st

from clew.ui.components import states


def show(frame: pd.DataFrame) -> None:
    """Show claims, one per row."""
    st.dataframe(
        frame,
        column_order=[
            *("study", "claim", "verdict", "measured", "low", "high", "about", "bounds", "machine"),
            *(["source"] if frame["source"].any() else []),
        ],
        alt="Claims of the studies",
        placeholder="–",
        hide_index=True,
        width="stretch",
        column_config={
            "study": st.column_config.TextColumn("Study"),
            "claim": st.column_config.TextColumn("Claim", width="large"),
            "bounds": st.column_config.TextColumn("Bounds"),
            "about": st.column_config.TextColumn(
                "Measured as",
                help="ratio: divided by the value of the study's reference. difference: from that "
                "value. value: the variant's own.",
            ),
            "measured": st.column_config.NumberColumn("Measured", format="%.3g"),
            "low": st.column_config.NumberColumn("95 % from", format="%.3g"),
            "high": st.column_config.NumberColumn("95 % to", format="%.3g"),
            "verdict": st.column_config.TextColumn("Verdict"),
            "source": st.column_config.TextColumn("Printed in"),
            "machine": st.column_config.TextColumn("Machine"),
        },
    )
    states.note(
        "Measured: the ratio to the study's reference, the difference from it, or the value "
        "itself, with its 95 % interval over rounds. A claim holds if the whole "
        "interval is within its bounds; a larger saving than claimed holds too."
    )
