"""Colours with a meaning: Okabe and Ito's set, which colour-blind people can distinguish.

Its blue is a little lighter here, for a contrast of at least 3.8 : 1 against the light and the dark
background. Nothing relies on colour alone: signs have symbols, states have symbols and words.
"""

import streamlit as st

FOR = "#1F88CB"
AGAINST = "#D55E00"
NEUTRAL = "#8A959B"
REFERENCE = "#7F7F7F"
HIGHLIGHT = "#E69F00"

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
CATEGORIES = (
    "#1F88CB",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#8C6D31",
    "#7F7F7F",
)


INK = {"light": "#1C2A30", "dark": "#E6EDF0"}
"""Colours of text by theme, for pictures whose text Streamlit does not colour."""


def ink() -> str:
    return INK["dark" if st.context.theme.type == "dark" else "light"]


def sign_symbol(value: float) -> str:
    return "▲" if value > 0 else "▼" if value < 0 else "·"


def sign_colour(value: float) -> str:
    return FOR if value > 0 else AGAINST if value < 0 else NEUTRAL
