"""The state of a page in its address, so that a person can send a link to what they see.

Widgets keep their values there themselves (`bind="query-params"`). This module is for the rest,
such as chosen runs or a selected fact.
"""

from collections.abc import Sequence

import streamlit as st


def text(key: str) -> str:
    """Return a value from the address, empty if it is not there."""
    return st.query_params.get(key, "").strip()


def texts(key: str) -> list[str]:
    """Return a list from the address, which separates the values by commas."""
    return [part for part in text(key).split(",") if part]


def number(key: str) -> int | None:
    """Return a whole number from the address, None for anything else."""
    value = text(key)
    return int(value) if value.isdecimal() and len(value) < 10 else None


def write(key: str, value: str | int | Sequence[str] | None) -> None:
    """Put a value into the address; an empty value removes the key."""
    line = ",".join(value) if isinstance(value, list | tuple) else str(value or "")
    if value == 0:
        line = "0"
    if not line:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != line:
        st.query_params[key] = line
