"""One box to find an entity by any part of its name or its id."""

import streamlit as st

from clew.ui.components import states
from clew.ui.data.models import Terms, complete

MAX_LISTED = 2000
"""Names that the browser gets; of a larger graph, what a person types is looked up here."""
MAX_MATCHES = 12


def entity_box(label: str, key: str, terms: Terms, *, start: str, placeholder: str) -> str:
    """Show the box and return the name of the chosen entity, empty if none is.

    Args:
        label: What stands above the box.
        key: Its key; `st.session_state` holds under it what was chosen or typed.
        terms: Names of the entities with their labels.
        start: Name that is chosen at first, if it is one of them.
        placeholder: What stands in the empty box.
    """
    labels = dict(terms)
    if key not in st.session_state and start in labels:
        st.session_state[key] = start
    listed = list(labels)[:MAX_LISTED]
    if (chosen := st.session_state.get(key)) in labels and chosen not in listed:
        listed.append(chosen)  # the browser sends back the text of an option; this says whose it is
    typed = st.selectbox(
        label,
        listed,
        index=None,
        key=key,
        format_func=lambda name: shown(str(name), labels.get(name, str(name))),
        filter_mode="contains",
        accept_new_options=len(labels) > MAX_LISTED,
        placeholder=placeholder,
        help=f"Type any part of a name or of an id; the model knows {len(labels):,}.",
    )
    if not typed or typed in labels:
        return typed or ""
    return _looked_up(typed, key, terms)


def _looked_up(text: str, key: str, terms: Terms) -> str:
    """Return the entity that a typed text means; let a person choose among several."""
    matches = complete(terms, text, MAX_MATCHES)
    exact = [term for term in matches if text.strip().casefold() in map(str.casefold, term)]
    found = dict(exact or matches)
    if not found:
        states.note(f"No name and no id holds {text!r}.")
    if len(found) < 2:
        return next(iter(found), "")
    chosen = st.pills(
        "Which one?",
        list(found),
        key=f"{key}-which",
        format_func=lambda name: shown(str(name), found.get(name, str(name))),
    )
    return chosen or ""


def shown(name: str, label: str) -> str:
    """Return an entity or a relation as a person reads it."""
    return label if name == label else f"{label}  ({name})"
