"""The page Ask for a language model: the prompt, settings, and the text as it is written."""

import streamlit as st

from clew.ui import access
from clew.ui.components import address, exports, markup
from clew.ui.data import questions
from clew.ui.data.jobs import Job
from clew.ui.data.questions import AskedText

PROMPT = "ask-prompt"
MOST_TOKENS = 5000
MOST_IN_ADDRESS = 1000
"""Characters of a prompt that a link can hold."""
_TEXT = (
    '<div class="clew-card"><div class="clew-text">{prompt}<mark>{written}</mark></div></div>'
    '<p class="clew-muted clew-small">Marked: what the model wrote.</p>'
)


def question(*, again: bool) -> AskedText | None:
    """Let a person give a prompt; return it once sent, or with `again` the one in the address."""
    linked = address.text("prompt")
    if PROMPT not in st.session_state:
        st.session_state[PROMPT] = linked
    prompt = st.text_area("Prompt", key=PROMPT, height=140, placeholder="Text to continue")
    first, second, third, fourth = st.columns(4)
    tokens = first.number_input(
        "Tokens to write", 1, MOST_TOKENS, 200, key="tokens", bind="query-params"
    )
    temperature = second.number_input(
        "Temperature",
        0.0,
        5.0,
        1.0,
        0.1,
        key="temperature",
        bind="query-params",
        help="0: always the likeliest token; 1: the model's probabilities.",
    )
    top_p = third.number_input(
        "Top p",
        0.01,
        1.0,
        1.0,
        0.05,
        key="p",
        bind="query-params",
        help="Draw only from the likeliest tokens with this total probability.",
    )
    seed = fourth.number_input(
        "Seed",
        0,
        2**31 - 1,
        0,
        key="seed",
        bind="query-params",
        help="The same seed gives the same text.",
    )
    sent = st.button(
        "Continue", type="primary", key="ask", disabled=not (prompt and access.may("ask"))
    )
    if again and linked:
        return AskedText(linked, tokens, temperature, top_p, seed)
    if not sent:
        return None
    address.write("prompt", prompt if len(prompt) <= MOST_IN_ADDRESS else None)
    return AskedText(prompt, tokens, temperature, top_p, seed)


def written(job: Job) -> None:
    """Show the prompt and what the model has written so far."""
    if job.state in {"running", "done"}:
        markup.show(_TEXT, prompt=questions.prompt_of(job), written=job.output().removesuffix("\n"))


def download(job: Job) -> None:
    """Offer the whole text of a finished job."""
    if job.state == "done":
        text = questions.prompt_of(job) + job.output()
        exports.button("Text", text, "text.txt", "text/plain")
