"""Tables as high as their rows, files of them, and rows to tick.

Where a person ticks rows, each row represents a value, such as a run's id.
"""

import mimetypes
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pandas as pd
import streamlit as st
from streamlit.elements.arrow import DataframeStateInput

from clew.runs.reading.picture import PLAIN
from clew.spreadsheets import csv_text

ROW_HEIGHT, LOW_ROW_HEIGHT = 36, 34
HEADER_HEIGHT = 38

Value = TypeVar("Value")
Columns = dict[str, tuple[Any, Any]]
"""A table by its headings: the values of a column, and its configuration or None."""


def _arguments(
    table: pd.DataFrame | Columns, row_height: int, most: int | None, look: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `st.dataframe`; a table scrolls if it is higher than `most`."""
    if isinstance(table, dict):
        configured = {name: config for name, (_, config) in table.items() if config is not None}
        look = {"column_config": configured, **look}
        plain = {
            name: values.to_numpy() if isinstance(values, pd.Series) else values
            for name, (values, _) in table.items()
        }
        table = pd.DataFrame(plain)
    height = min(HEADER_HEIGHT + row_height * max(len(table), 1), most) if most else "auto"
    fixed = {"hide_index": True, "row_height": row_height, "height": height, "placeholder": "–"}
    return {"data": table, **fixed, **look}


def show(table: pd.DataFrame | Columns, *, most: int | None = None, **look: Any) -> None:
    """Show a table; it scrolls if it would be higher than `most` pixels."""
    st.dataframe(**_arguments(table, ROW_HEIGHT, most, look))


def ticked(
    table: pd.DataFrame | Columns,
    values: Sequence[Value],
    *,
    key: str,
    several: bool = False,
    first: Value | None = None,
    most: int | None = None,
    **look: Any,
) -> list[Value]:
    """Show a table and return the values of the ticked rows; `first` is ticked at first."""
    given, chosen = _arguments(table, ROW_HEIGHT, most, look), _ticked_rows(values, first)
    given["selection_mode"] = "multi-row" if several else "single-row"
    event = st.dataframe(**given, key=key, on_select="rerun", selection_default=chosen)
    return [values[row] for row in event.selection.rows if row < len(values)]


def tick_one(
    table: pd.DataFrame | Columns,
    values: Sequence[Value],
    *,
    key: str,
    chosen: Value | None,
    take: Callable[[Value | None], None],
    grey: Sequence[bool] = (),
    row_height: int = LOW_ROW_HEIGHT,
    most: int | None = None,
    **look: Any,
) -> None:
    """Show a table whose ticked row is known elsewhere, such as from the address.

    `chosen` is the value of that row. `take` is called with the value that a person ticks, or with
    None when they untick it. `grey` says which rows are less certain than the others.
    """

    def choose() -> None:
        rows = st.session_state[key].selection.rows
        take(values[rows[0]] if rows and rows[0] < len(values) else None)

    given = _arguments(table, row_height, most, look) | {"selection_mode": "single-row"}
    if any(grey):
        colours = [f"color: {PLAIN.colour}" if is_grey else "" for is_grey in grey]
        given["data"] = given["data"].style.apply(lambda column: colours)
    first = _ticked_rows(values, chosen)
    st.dataframe(**given, key=key, on_select=choose, selection_default=first)


def _ticked_rows(values: Sequence[Value], ticked: Value | None) -> DataframeStateInput:
    """Return the selection of a table in which one row is ticked, or none."""
    rows = [] if ticked is None else [values.index(ticked)]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}


def export(frame: pd.DataFrame, name: str) -> None:
    """Offer a table as CSV with its headings; spreadsheets do not read its texts as formulas."""

    def content() -> str:
        rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
        return csv_text([str(column) for column in frame.columns], rows)

    download("CSV", content, name)


def heading(column: str, unit: str = "") -> str:
    words = column.replace("_", " ").capitalize()
    return f"{words} [{unit}]" if unit else words


def download(label: str, content: str | bytes | Callable[[], str], name: str) -> None:
    """Offer a file; if `content` is a function, it is called when the file is downloaded."""
    kind = mimetypes.guess_type(name)[0]
    st.download_button(f"⤓ {label}", content, name, kind, key=f"download-{name}", on_click="ignore")


def with_values(columns: Columns) -> Columns:
    return {name: each for name, each in columns.items() if pd.Series(each[0]).notna().any()}


def utc(milliseconds: int) -> datetime:
    """Return an MLflow time in UTC, without a zone: the column's name has it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def seconds_text(seconds: float) -> str:
    """Return seconds in a readable form: 42 s, 3 min 5 s, 2 h 4 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"
