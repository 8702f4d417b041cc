"""Buttons that download tables and other content as files."""

from collections.abc import Callable

import pandas as pd
import streamlit as st

from clew.spreadsheets import csv_text


def table(frame: pd.DataFrame, name: str) -> None:
    """Offer a table as CSV with its headings; spreadsheets do not read its texts as formulas."""

    def content() -> str:
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        return csv_text([str(column) for column in frame.columns], rows)

    button("CSV", content, name, "text/csv")


def heading(column: str, unit: str = "") -> str:
    words = column.replace("_", " ").capitalize()
    return f"{words} [{unit}]" if unit else words


def button(label: str, content: str | bytes | Callable[[], str], name: str, kind: str) -> None:
    """Offer a file; if `content` is a function, it is called when the file is downloaded."""
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")
