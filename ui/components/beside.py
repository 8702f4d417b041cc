"""Columns that are side by side, or below one another if the window is too narrow."""

from collections.abc import Sequence
from typing import Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def columns(
    widths: Sequence[float], *, key: str, gap: Literal["small", "medium"] = "small"
) -> list[DeltaGenerator]:
    """Return columns; the style sheet sets how narrow they can be.

    Args:
        widths: Shares of the width.
        key: Names the place in the page.
        gap: Space between columns.
    """
    with st.container(key=f"beside-{key}"):
        return st.columns(widths, gap=gap)
