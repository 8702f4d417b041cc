"""Buttons that give a table away as a file."""

import streamlit as st

from ui.data.comparison import Comparison, to_csv, to_latex, to_markdown


def comparison(shown: Comparison) -> None:
    """Offer a comparison as CSV, Markdown and LaTeX."""
    with st.container(horizontal=True, vertical_alignment="center"):
        button("CSV", to_csv(shown), "comparison.csv", "text/csv")
        button("Markdown", to_markdown(shown), "comparison.md", "text/markdown")
        button("LaTeX", to_latex(shown), "comparison.tex", "application/x-tex")
        st.caption(
            "Point at a picture: the toolbar at its corner saves it as PNG.", width="content"
        )


def button(label: str, content: str, name: str, kind: str) -> None:
    """Offer text as a file."""
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")
