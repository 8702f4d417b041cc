"""The explanation of an image sequence: the prediction, its frames, and the training windows."""

from pathlib import Path

import pandas as pd
import streamlit as st

from clew.runs.influence_forms import ESTIMATE, SELF_INFLUENCE, Form
from clew.ui.components import exports, glossary, markup, palette, prediction, states
from clew.ui.data.windows import SequenceInfluenceReport, sequence_windows

FRAMES = "Frames of this window, then of training windows."
_CARD = (
    '<div class="clew-card"><h2>Window that ends at frame {frame} of {group}</h2>'
    "<p>The model predicts <b>{predicted} {unit}</b>; the target is <b>{true} {unit}</b>.</p>"
    '<p class="clew-muted">Of {count} training windows, those are listed that lowered (▲) or '
    "raised (▼) the error of this prediction most.</p></div>"
)


def show(report: SequenceInfluenceReport, picture: Path | None) -> None:
    """Show an explanation, with the picture of its frames if there is one."""
    markup.show(
        _CARD,
        frame=f"{report.last_frame:,}",
        group=report.group,
        predicted=f"{report.prediction:.4g}",
        true=f"{report.target:.4g}",
        unit=report.unit,
        count=f"{report.num_windows:,}",
    )
    numbers(report)
    windows = sequence_windows(report)
    headings = {str(name): exports.heading(str(name)) for name in windows}
    headings |= {"target": exports.heading("target", report.unit), "influence": report.form.heading}
    windows = windows.rename(columns=headings)
    if windows.empty:
        states.note(f"None of the {report.num_scored:,} scored training windows is listed.")
        return
    left, right = st.columns([1, 1.2])
    with left:
        table(windows, report.form)
        exports.table(windows, "windows.csv")
    with right:
        if picture is None:
            states.note("The picture of the frames is missing from this report.")
        else:
            st.image(str(picture), caption=FRAMES, alt=FRAMES)


def numbers(report: SequenceInfluenceReport) -> None:
    """Show the numbers of the explanation, each with its meaning."""
    with st.container(horizontal=True):
        st.metric("Loss", prediction.number(report.loss), help="Of this window, after training.")
        st.metric(
            report.form.self_heading,
            prediction.number(report.self_influence),
            help=SELF_INFLUENCE,
        )
        st.metric("Checkpoints", str(len(report.steps)), help=prediction.CHECKPOINTS)
    st.caption(f"{report.form.sentence} {ESTIMATE}")
    for note in report.notes():
        states.note(note)


def table(windows: pd.DataFrame, form: Form) -> None:
    shown, score = windows.copy(), glossary.score("influence", form)
    shown.insert(0, "±", [palette.sign_symbol(value) for value in windows[score.label]])
    st.dataframe(
        shown,
        alt="Training windows behind the prediction",
        hide_index=True,
        column_config={
            score.label: st.column_config.NumberColumn(format="%.4g", help=score.help),
            "Cosine": st.column_config.NumberColumn(format="%.3f", help=glossary.COSINE),
        },
    )
