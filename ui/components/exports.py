"""Buttons that give a table away as a file."""

from collections.abc import Mapping

import streamlit as st

from ui.components import glossary
from ui.data.comparison import Comparison, to_csv, to_latex, to_markdown


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


def button(label: str, content: str, name: str, kind: str) -> None:
    """Offer text as a file."""
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")
