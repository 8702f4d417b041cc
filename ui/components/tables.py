"""Tables as high as their rows, and tables in which a person ticks rows.

In the latter, each row represents a value, such as a run's id.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack

import pandas as pd
import streamlit as st
from streamlit.elements.arrow import DataframeStateInput

ROW_HEIGHT, LOW_ROW_HEIGHT = 36, 34
HEADER_HEIGHT = 38

Value = TypeVar("Value")


class Look(TypedDict, total=False):
    """The look of a table: arguments of `st.dataframe` with these names."""

    alt: str
    column_config: dict[str, Any]
    placeholder: str


def show(frame: pd.DataFrame, *, most: int | None = None, **look: Unpack[Look]) -> None:
    """Show a table; it scrolls if it would be higher than `most` pixels."""
    height = _height(frame, ROW_HEIGHT, most)
    st.dataframe(frame, hide_index=True, row_height=ROW_HEIGHT, height=height, **look)


def ticked(
    frame: pd.DataFrame,
    values: Sequence[Value],
    *,
    key: str,
    several: bool = False,
    first: Value | None = None,
    most: int | None = None,
    **look: Unpack[Look],
) -> list[Value]:
    """Show a table and return the values of the ticked rows; `first` is ticked at first."""
    event = st.dataframe(
        frame,
        key=key,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row" if several else "single-row",
        selection_default=_ticked_rows(values, first),
        row_height=ROW_HEIGHT,
        height=_height(frame, ROW_HEIGHT, most),
        **look,
    )
    return [values[row] for row in event.selection.rows if row < len(values)]


def tick_one(
    frame: pd.DataFrame,
    values: Sequence[Value],
    *,
    key: str,
    chosen: Value | None,
    take: Callable[[Value | None], None],
    row_height: int = LOW_ROW_HEIGHT,
    most: int | None = None,
    **look: Unpack[Look],
) -> None:
    """Show a table whose ticked row is known elsewhere, such as from the address.

    `chosen` is the value of that row. `take` is called with the value that a person ticks, or with
    None when they untick it.
    """

    def choose() -> None:
        rows = st.session_state[key].selection.rows
        take(values[rows[0]] if rows and rows[0] < len(values) else None)

    st.dataframe(
        frame,
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode="single-row",
        selection_default=_ticked_rows(values, chosen),
        row_height=row_height,
        height=_height(frame, row_height, most),
        **look,
    )


def _ticked_rows(values: Sequence[Value], ticked: Value | None) -> DataframeStateInput:
    """Return the selection of a table in which one row is ticked, or none."""
    rows = [] if ticked is None else [values.index(ticked)]
    return {"selection": {"rows": rows, "columns": [], "cells": []}}


def _height(frame: pd.DataFrame, row_height: int, most: int | None) -> int | Literal["auto"]:
    if most is None:
        return "auto"
    return min(HEADER_HEIGHT + row_height * max(len(frame), 1), most)
