"""Buttons that give a table away as a file."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from clew.ui.data.comparison import csv_text


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
