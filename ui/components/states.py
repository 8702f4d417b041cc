"""What a page shows when there is nothing to show: no store, nothing found, something broken."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from clew.errors import ClewError
from clew.runs import store
from clew.ui.components import markup

logger = logging.getLogger(__name__)


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Show what goes wrong inside as a message, so that the rest of the page works.

    Clew's own errors say what to do. Any other error is a bug of the dashboard: its traceback goes
    to the log of the server, never into the page.
    """
    try:
        yield
    except ClewError as error:
        problem(what, str(error))
    except Exception as error:
        logger.exception("%s could not be shown", what)
        problem(
            what,
            f"an unexpected {type(error).__name__}; the log of the dashboard says more. "
            "Reload the page; if it happens again, report it with that log",
        )


def problem(what: str, message: str, *, done: str = "shown") -> None:
    """Show that something cannot be shown, or saved or started if `done` says so, and why."""
    text = message[:1].upper() + message[1:]
    st.error(f"**{markup.markdown(what)} cannot be {done}.** {markup.markdown(text)}", icon="⚠️")


def warning(message: str, *, command: str = "") -> None:
    """Show a warning without hiding the rest of the page, with a command that helps."""
    st.warning(markup.markdown(message), icon="⚠️")
    if command:
        st.code(command, language="bash", wrap_lines=True)


def note(message: str) -> None:
    """Show a note in small letters."""
    st.caption(markup.markdown(message))


def nothing(title: str, message: str, *, commands: str = "") -> None:
    """Show that there is nothing yet, and what to do."""
    with st.container(border=True):
        st.header(title, anchor=False)
        st.markdown(markup.markdown(message))
        if commands:
            st.code(commands, language="bash", wrap_lines=True)


def empty_store() -> None:
    """Show that there are no runs, with the command that makes some."""
    in_a_clone = (store.project_root() / store.PROJECT_FILE).is_file()
    nothing(
        "No runs yet",
        f"The tracking store {store.shown(store.tracking_uri())} has no runs. This command "
        "trains two models on a small bundled graph, explains predictions and compares the runs.",
        commands="make demo" if in_a_clone else "clew demo",
    )
