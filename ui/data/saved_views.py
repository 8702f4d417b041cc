"""Saved views of the page Compare."""

from collections.abc import Mapping

import streamlit as st

from clew.runs import store
from clew.runs.reading.saved_views import (
    SavedView,
    SavedViews,
    delete_view,
    list_views,
    save_view,
)

__all__ = ["SavedView", "SavedViews"]


@st.cache_data(ttl=5, max_entries=16, show_spinner=False)
def _views(uri: str) -> SavedViews:
    return list_views()


def views() -> SavedViews:
    """Return all saved views."""
    return _views(store.tracking_uri())


def save(name: str, parameters: Mapping[str, str], person: str, *, replaces: str) -> None:
    """Save a view, see `clew.runs.reading.saved_views.save_view`."""
    try:
        save_view(name, parameters, person, replaces=replaces)
    finally:
        _views.clear(store.tracking_uri())


def delete(name: str) -> None:
    """Delete a view, see `clew.runs.reading.saved_views.delete_view`."""
    try:
        delete_view(name)
    finally:
        _views.clear(store.tracking_uri())
