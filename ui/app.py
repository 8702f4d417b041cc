"""The dashboard: page set-up and navigation, nothing else."""

import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import get_args

import streamlit as st

from clew.errors import ClewError
from clew.ui.components import basics

ASSETS = Path(__file__).parent / "assets"
PAGES = get_args(basics.PageName)
# The time a browser needs to fetch the files of the first page from this process. (This is a
# comment, because Streamlit shows a bare string in its script on the page.)
SECONDS_TO_DRAW = 0.3
HIDDEN = ("run",)  # opened from other pages, not in the menu


def render(page: str) -> None:
    """Render a page; its first call imports the page's modules."""
    import_module(f"clew.ui.views.{page}").render()


@st.cache_resource(show_spinner=False)
def fetch_pages() -> None:
    """Import all pages once, in the background, so that the next page opens faster.

    The runs for the preset of Compare are read first. The page itself reports any error.
    """

    def fetch() -> None:
        with suppress(ClewError):
            import_module("clew.ui.components.comparison_table").preset()
        for name in PAGES:
            import_module(f"clew.ui.views.{name}")

    later = threading.Timer(SECONDS_TO_DRAW, fetch)
    later.name, later.daemon = "pages", True
    later.start()


st.set_page_config(page_title="Clew", page_icon=str(ASSETS / "icon.png"), layout="wide")
st.logo(str(ASSETS / "logo.svg"), size="large")
basics.style()
basics.require()
st.navigation(
    [
        st.Page(
            partial(render, name),
            title=name.capitalize(),
            url_path=name,
            default=name == "overview",
            visibility="hidden" if name in HIDDEN else "visible",
        )
        for name in PAGES
    ],
    position="top",
).run()
fetch_pages()
