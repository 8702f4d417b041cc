"""Links from one page to another; the address says what the other page shows."""

from typing import Literal

import streamlit as st

from clew.ui.components import markup

PageName = Literal["overview", "compare", "influence", "reviews", "models", "studies", "ask", "run"]


def _nothing() -> None:
    """Replace the page's function, because a link needs only the address."""


def to(page: PageName, label: str, **parameters: str) -> None:
    """Show a link; `label` can be any text."""
    st.page_link(
        st.Page(_nothing, title=page.capitalize(), url_path=page, default=page == "overview"),
        label=f"{markup.markdown(label)} →",
        query_params={key: value for key, value in parameters.items() if value},
    )
