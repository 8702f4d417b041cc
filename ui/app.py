"""The dashboard: page set-up and navigation, nothing else."""

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import streamlit as st

ASSETS = Path(__file__).parent / "assets"
PAGES = {
    "overview": "Overview",
    "compare": "Compare",
    "influence": "Influence",
    "reviews": "Reviews",
    "models": "Models",
    "studies": "Studies",
    "ask": "Ask",
}


def page(name: str) -> Callable[[], None]:
    """Return what renders a page; its modules are imported when it is first opened."""

    def render() -> None:
        import_module(f"ui.views.{name}").render()

    return render


@st.cache_resource(show_spinner=False)
def fetch_pages() -> None:
    """Import all pages, once and in the background, so that the next one opens faster."""

    def fetch() -> None:
        for name in PAGES:
            import_module(f"ui.views.{name}")

    threading.Thread(target=fetch, name="pages", daemon=True).start()


st.set_page_config(page_title="Clew", page_icon=str(ASSETS / "icon.png"), layout="wide")
st.logo(str(ASSETS / "logo.svg"), size="large")
st.navigation(
    [
        st.Page(page(name), title=title, url_path=name, default=name == "overview")
        for name, title in PAGES.items()
    ],
    position="top",
).run()
fetch_pages()
