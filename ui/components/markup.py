"""HTML with text from data: only this module makes HTML, and it escapes all values.

Names of entities, runs and models come from files. They can look like HTML or Markdown, and must be
shown as plain text.
"""

import re
from pathlib import Path

import streamlit as st
from markupsafe import Markup, escape

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_STYLE = Path(__file__).parent.parent / "assets" / "style.css"

TRIPLE = Markup(
    '<span class="clew-triple"><b>{head}</b>'
    '<span class="clew-relation">{relation}</span><b>{tail}</b></span>'
)


def style() -> None:
    """Load the style sheet."""
    st.html(_STYLE)


def markdown(text: object) -> str:
    """Return text on one line, escaped so that Markdown shows it unchanged.

    A word joiner after a colon prevents that `:smile:` becomes a picture.
    """
    line = " ".join(str(text).split())
    return _PUNCTUATION.sub(r"\\\1", line).replace(r"\:", "\\:\u2060")


def show(template: str, **values: object) -> None:
    """Show HTML; the values are escaped, except those that are `Markup` already."""
    st.html(fill(template, **values))


def show_list(items: list[Markup]) -> None:
    """Show pieces of HTML, each an `<li>`, as a list; nothing if there are none."""
    if items:
        show('<ul class="clew-checks">{items}</ul>', items=join(items))


def fill(template: str, **values: object) -> Markup:
    return Markup(template).format(**values)


def join(parts: list[Markup], separator: str = "") -> Markup:
    """Return pieces of HTML one after the other."""
    return Markup(escape(separator)).join(parts)


def minute(created: str) -> str:
    return created[:16].replace("T", " ")


def triple(head: object, relation: object, tail: object) -> Markup:
    return TRIPLE.format(head=head, relation=relation, tail=tail)


def marked(text: str, passages: list[tuple[int, int]]) -> Markup:
    """Return text as HTML with marked passages, each (start, end), from left to right."""
    pieces, done = [], 0
    for start, end in passages:
        pieces += [escape(text[done:start]), fill("<mark>{text}</mark>", text=text[start:end])]
        done = end
    return join([*pieces, escape(text[done:])])
