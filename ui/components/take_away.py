"""What can be shared of an explanation."""

import re

import streamlit as st

from clew.ui.components.exports import button
from clew.ui.data.sharing import SharedExplanation, html_report, trapi_json


def explanation(shown: SharedExplanation) -> None:
    """Offer an explanation as a page to mail and as a TRAPI message."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", shown.title).strip("-")[:80] or "explanation"
    button("Report to mail (HTML)", lambda: html_report(shown), f"{name}.html", "text/html")
    button("TRAPI message (JSON)", lambda: trapi_json(shown), f"{name}.json", "application/json")
    st.caption("The report is one file: picture, paths, facts, how far to trust them.")
