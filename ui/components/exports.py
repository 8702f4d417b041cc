"""Buttons that give a table away as a file."""

from collections.abc import Callable, Mapping

import pandas as pd
import streamlit as st

from clew.ui.components import glossary
from clew.ui.data.comparison import Comparison, csv_text, to_csv, to_latex, to_markdown


def comparison(shown: Comparison, picked: Mapping[str, str]) -> None:
    """Offer a comparison as CSV, Markdown and LaTeX.

    `picked` says of a metric with a curve which of its values is shown.
    """
    labels = {
        key: ", ".join(filter(None, (glossary.label(key), picked.get(key))))
        for key in shown.metrics
    }
    with st.container(horizontal=True, vertical_alignment="center"):
        button("CSV", to_csv(shown, labels), "comparison.csv", "text/csv")
        button("Markdown", to_markdown(shown, labels), "comparison.md", "text/markdown")
        button("LaTeX", to_latex(shown, labels), "comparison.tex", "application/x-tex")
        st.caption(
            "Point at a picture: the toolbar at its corner saves it as PNG.", width="content"
        )


def table(frame: pd.DataFrame, name: str) -> None:
    """Offer a table as CSV under its headings; no spreadsheet takes a text in it for a formula."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    headings = [str(column) for column in frame.columns]
    button("CSV", lambda: csv_text(headings, rows), name, "text/csv")


def heading(column: str, unit: str = "") -> str:
    """Return the name of a column as people read it, with its unit if it has one."""
    words = column.replace("_", " ").capitalize()
    return f"{words} [{unit}]" if unit else words


def button(label: str, content: str | bytes | Callable[[], str], name: str, kind: str) -> None:
    """Offer a file; what is called for its text is called when it is wanted."""
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")
