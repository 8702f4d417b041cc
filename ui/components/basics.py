"""What every page uses: text as HTML, messages, colours, the address, links, who saves.

Only this module makes HTML from text that comes from data, and it escapes all values: names of
entities, runs and models can look like HTML or Markdown. Widgets keep their values in the address
themselves (`bind="query-params"`); the functions here are for the rest, such as chosen runs.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import streamlit as st
from markupsafe import Markup, escape
from streamlit.delta_generator import DeltaGenerator

from clew.errors import ClewError, ConfigError, of_the_system, spaced
from clew.runs import store
from clew.ui import access

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")

TRIPLE = Markup(
    '<span class="clew-triple"><b>{head}</b>'
    '<span class="clew-relation">{relation}</span><b>{tail}</b></span>'
)
FOR = "#1F88CB"
AGAINST = "#D55E00"
REFERENCE = "#7F7F7F"

VERDICT_COLOURS = {"plausible": "#009E73", "implausible": "#D55E00", "unsure": "#999999"}
VERDICT_SYMBOLS = {"plausible": "✓", "implausible": "✗", "unsure": "?"}
OPINION_SYMBOLS = VERDICT_SYMBOLS | {"convincing": "✓", "right": "✓", "wrong": "✗"}
"""Symbols of verdicts about an explanation or a fact."""
STATE_SYMBOLS = {
    "running": "▶",
    "stuck": "⚠",
    "finished": "✓",
    "failed": "✗",
    "stopped": "■",
    "scheduled": "…",
}
COLOURS = ("#1F88CB", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31", "#7F7F7F")
"""Colours of groups."""
logger = logging.getLogger(__name__)
PageName = Literal["overview", "compare", "influence", "reviews", "models", "studies", "ask", "run"]
ROLES_HELP = (
    "A reader reads. A reviewer also asks, uploads and reviews. A promoter also promotes, rolls "
    "back, trains, describes runs, and confirms a fact that one person marked wrong."
)


def style() -> None:
    st.html(Path(__file__).parent.parent / "assets" / "style.css")


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


def pairs(shown: Mapping[str, object]) -> None:
    """Show a table of two columns, without the rows that have no value."""
    line = '<tr><th scope="row">{label}</th><td class="clew-wrap">{value}</td></tr>'
    rows = [fill(line, label=label, value=value) for label, value in shown.items() if value]
    show('<table class="clew-facts"><tbody>{rows}</tbody></table>', rows=join(rows))


def fill(template: str, **values: object) -> Markup:
    return Markup(template).format(**values)


def join(parts: list[Markup], separator: str = "") -> Markup:
    return Markup(escape(separator)).join(parts)


def triple(head: object, relation: object, tail: object) -> Markup:
    return TRIPLE.format(head=spaced(head), relation=spaced(relation), tail=spaced(tail))


def fact(template: str, row: pd.Series, **values: object) -> Markup:
    """Return a training fact as HTML: the `sign` of its influence, its `triple`, and `values`."""
    named = triple(row["head"], row["relation"], row["tail"])
    return fill(template, sign=sign_symbol(float(row["influence"])), triple=named, **values)


def marked(text: str, passages: list[tuple[int, int]]) -> Markup:
    """Return text as HTML with marked passages, each (start, end), from left to right."""
    pieces, done = [], 0
    for start, end in passages:
        pieces += [escape(text[done:start]), fill("<mark>{text}</mark>", text=text[start:end])]
        done = end
    return join([*pieces, escape(text[done:])])


def ink() -> str:
    """Return the colour of text, for pictures whose text Streamlit does not colour."""
    return "#E6EDF0" if st.context.theme.type == "dark" else "#1C2A30"


def sign_symbol(value: float) -> str:
    return "▲" if value > 0 else "▼" if value < 0 else "·"


@contextmanager
def guarded(what: str, *, done: str = "shown") -> Iterator[None]:
    """Show what goes wrong inside as a message, so that the rest of the page works.

    Clew's own errors say what to do. Any other error is a bug of the dashboard: its traceback goes
    to the log of the server, never into the page.
    """
    try:
        yield
    except Exception as error:
        # Streamlit wraps an error that comes while it makes the key of a cache.
        for each in (error, error.__cause__):
            known = of_the_system(each) if isinstance(each, OSError) else each
            if isinstance(known, ClewError):
                problem(what, str(known), done=done)
                return
        logger.exception("%s could not be shown", what)
        said = f"an unexpected {type(error).__name__}; the log of the dashboard says more. "
        said += "Reload the page; if it happens again, report it with that log"
        problem(what, said, done=done)


def problem(what: str, message: str, *, done: str = "shown") -> None:
    """Show that something cannot be shown, or saved or started if `done` says so, and why."""
    text = message[:1].upper() + message[1:]
    st.error(f"**{markdown(what)} cannot be {done}.** {markdown(text)}", icon="⚠️")


def attempt(action: Callable[..., object]) -> Callable[..., None]:
    """Return the action of a button; if it fails, a message says why."""

    def attempted(*given: object) -> None:
        try:
            action(*given)
        except ClewError as error:
            st.toast(markdown(str(error)), icon="⚠️")

    return attempted


def warning(message: str, *, command: str = "") -> None:
    """Show a warning without hiding the rest of the page, with a command that helps."""
    st.warning(markdown(message), icon="⚠️")
    code(command)


def code(command: str) -> None:
    """Show a command, if there is one."""
    if command:
        st.code(command, language="bash", wrap_lines=True)


def note(message: str) -> None:
    st.caption(markdown(message))


def nothing(title: str, message: str, *, commands: str = "") -> None:
    """Show that there is nothing yet, and what to do."""
    with st.container(border=True):
        st.header(title, anchor=False)
        st.markdown(markdown(message))
        code(commands)


def empty_store() -> None:
    """Show that there are no runs, with the command that makes some."""
    in_a_clone = (store.project_root() / store.PROJECT_FILE).is_file()
    nothing(
        "No runs yet",
        f"The tracking store {store.in_use()} has no runs. This command "
        "trains two models on a small bundled graph, explains predictions and compares the runs.",
        commands="make demo" if in_a_clone else "clew demo",
    )


def columns(
    widths: Sequence[float], *, key: str, gap: Literal["small", "medium"] = "small"
) -> list[DeltaGenerator]:
    """Return columns; for this key, the style sheet sets how narrow they can be."""
    with st.container(key=f"beside-{key}"):
        return st.columns(widths, gap=gap)


def tiles(shown: Iterable[tuple[str, str, str]], *, border: bool = True) -> None:
    """Show numbers beside each other, each with its label and its meaning."""
    with st.container(horizontal=True):
        for label, value, meaning in shown:
            st.metric(label, value, help=meaning or None, border=border)


def choice(
    label: str, options: Sequence[str], key: str, *, place: Any = st, first: str = "", **look: Any
) -> str:
    """Let a person choose one of a few options, at first the first; it is in the address."""
    first = first or options[0]
    look = {"default": first, "required": True, "bind": "query-params", **look}
    return str(place.segmented_control(label, options, key=key, **look) or first)


def search_box(place: Any, label: str, key: str, **look: Any) -> str:
    """Let a person type in a place of the page what to search for; it is in the address."""
    look = {"placeholder": "part of a name or id", **look}
    return str(place.text_input(label, key=key, bind="query-params", type="search", **look))


def address(key: str) -> str:
    """Return a value from the address, empty if it is not there."""
    return st.query_params.get(key, "").strip()


def address_number(key: str) -> int | None:
    """Return a whole number from the address, None for anything else."""
    value = address(key)
    return int(value) if value.isdecimal() and len(value) < 10 else None


def write_address(key: str, value: str | int | Sequence[str] | None) -> None:
    """Put a value into the address; an empty value removes the key."""
    line = "" if value is None else str(value)
    if isinstance(value, list | tuple):
        line = ",".join(value)
    if not line:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != line:
        st.query_params[key] = line


def link(page: PageName, label: str, **parameters: str) -> None:
    """Show a link; `label` can be any text."""
    st.page_link(
        st.Page(lambda: None, title=page.capitalize(), url_path=page, default=page == "overview"),
        label=f"{markdown(label)} →",
        query_params={key: value for key, value in parameters.items() if value},
    )


def name_box() -> str:
    """Show the name under which things are saved, or let a person give one; return the name."""
    if found := access.person():
        st.caption(f"Saved as {markdown(found)}")
        return found
    about = "Saved with your entries, so that others can ask you."
    return st.text_input("Your name", key="reviewer", persist_state="session", help=about).strip()


def require() -> None:
    """Stop the page unless nobody has to sign in, or the person has signed in and has a role."""
    try:
        allowed = access.settings()
    except ConfigError as error:
        problem("The dashboard", str(error))
        st.stop()
    if allowed is None:
        return
    if not st.user.get("is_logged_in"):
        st.title("Clew", anchor=False)
        st.write("Reviews and promotions are recorded with your e-mail address.")
        st.button("Sign in", type="primary", on_click=st.login)
        st.stop()
    role = access.role_of(st.user.to_dict(), allowed)
    if role is None:
        st.title("Clew", anchor=False)
        who = markdown(access.person() or "You")
        st.error(f"{who} may not use this dashboard; ask the person who runs it.")
        st.button("Sign out", on_click=st.logout)
        st.stop()
    with st.sidebar:
        st.caption(f"Signed in as {markdown(access.person())}, {role}", help=ROLES_HELP)
        st.button("Sign out", on_click=st.logout)
