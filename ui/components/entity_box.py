"""A box to find an entity by any part of its name, its id or a synonym."""

import streamlit as st

from clew.ui.components import states
from clew.ui.data.models import Entry, ModelNames, complete

MAX_LISTED = 10_000
"""Entries that the browser gets; in a larger graph, the server looks up what a person types."""
MAX_MATCHES = 12
SEPARATOR = "\n"
"""Between the name of an entity and its synonym, in the value of an option."""


def entity_box(
    label: str, key: str, vocabulary: ModelNames, *, start: str, placeholder: str
) -> str:
    """Show the box and return the name of the chosen entity, empty if none is.

    Args:
        label: Text above the box.
        key: Key of the box; `st.session_state[key]` is what was chosen or typed.
        vocabulary: The entities.
        start: Name of the entity that is chosen at first, if the vocabulary has it.
        placeholder: Text in the empty box.
    """
    entries = {_value(entry): entry for entry in vocabulary.entries}
    if key not in st.session_state and start in entries:
        st.session_state[key] = start
    listed = list(entries)[:MAX_LISTED]
    if (chosen := st.session_state.get(key)) in entries and chosen not in listed:
        listed.append(chosen)  # the browser sends back an option's text; this maps it to the entry
    synonyms = ", of a synonym" if vocabulary.synonyms else ""
    typed = st.selectbox(
        label,
        listed,
        index=None,
        key=key,
        format_func=lambda value: entry_text(entries[value]) if value in entries else str(value),
        filter_mode="contains",
        accept_new_options=len(entries) > MAX_LISTED,
        placeholder=placeholder,
        help=f"Type any part of a name{synonyms} or of an id; the model knows "
        f"{len(vocabulary.entities):,}.",
    )
    if not typed or typed in entries:
        return (typed or "").partition(SEPARATOR)[0]
    return _looked_up(typed, key, vocabulary)


def _value(entry: Entry) -> str:
    return f"{entry.name}{SEPARATOR}{entry.synonym}" if entry.synonym else entry.name


def _looked_up(text: str, key: str, vocabulary: ModelNames) -> str:
    matches = complete(vocabulary.entries, text, MAX_MATCHES)
    wanted = text.strip().casefold()
    exact = [entry for entry in matches if wanted in map(str.casefold, entry.texts)]
    found = {entry.name: entry for entry in exact or matches}
    if not found:
        states.note(f"No name, synonym or id contains {text!r}.")
    if len(found) < 2:
        return next(iter(found), "")
    kinds = dict.fromkeys(
        sorted((entry.kind for entry in found.values()), key=lambda k: (not k, k))
    )
    chosen = st.pills(
        "Which one?",
        [name for kind in kinds for name, entry in found.items() if entry.kind == kind],
        key=f"{key}-which",
        format_func=lambda name: entry_text(found[name]) if name in found else str(name),
    )
    return chosen or ""


def entry_text(entry: Entry) -> str:
    """Return the text of an entity: its kind and the matching synonym, if any, and its label.

    The kind comes first, because lists have no headings and cut long text.
    """
    text = shown(entry.name, entry.label)
    if entry.synonym:
        text = f"{entry.synonym} = {text}"
    return f"{entry.kind}: {text}" if entry.kind else text


def shown(name: str, label: str) -> str:
    """Return the label of an entity or a relation, and its name if that differs."""
    return label if name == label else f"{label}  ({name})"
