"""Saved views of the page Compare."""

from collections.abc import Mapping

import streamlit as st

from clew.runs.reading.saved_views import (
    SavedView,
    SavedViews,
    delete_view,
    list_views,
    save_view,
)

__all__ = ["SavedView", "SavedViews"]


@st.cache_data(ttl=5, show_spinner=False)
def views() -> SavedViews:
    """Return all saved views."""
    return list_views()


def save(name: str, parameters: Mapping[str, str], person: str, *, replaces: str) -> None:
    """Save a view, see `clew.runs.reading.saved_views.save_view`."""
    try:
        save_view(name, parameters, person, replaces=replaces)
    finally:
        views.clear()


def delete(name: str) -> None:
    """Delete a view, see `clew.runs.reading.saved_views.delete_view`."""
    try:
        delete_view(name)
    finally:
        views.clear()
