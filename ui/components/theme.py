"""What the theme that a person sees asks of pictures whose text Streamlit leaves as it is."""

import streamlit as st

INK = {"light": "#1C2A30", "dark": "#E6EDF0"}


def ink() -> str:
    """Return the colour of text in the theme of this browser."""
    return INK["dark" if st.context.theme.type == "dark" else "light"]
