"""A prediction and its explanation in words, for people who do not read tables first."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from clew.names import average_notes
from ui.components import glossary, markup, states
from ui.data.comparison import number_text
from ui.data.influence import ReportHead

TOP = 10
CHECKPOINTS = "States of the model during training over which the influence is summed."

_CARD = (
    '<div class="clew-card"><h4>{triple}</h4><p>{answer}</p><p class="clew-muted">{why}</p></div>'
)
_ANSWER = "Asked for <b>{head}</b> – {relation} → <b>?</b>, the model puts <b>{tail}</b> {place}."


def card(test: pd.Series, facts: pd.DataFrame) -> None:
    """Show what the model predicts, and in a sentence what made it."""
    answer = markup.fill(
        _ANSWER,
        head=test["head"],
        relation=test["relation"],
        tail=test["tail"],
        place=place_text(float(test["rank"])),
    )
    triple = markup.triple(test["head"], test["relation"], test["tail"])
    markup.show(_CARD, triple=triple, answer=answer, why=summary(facts, _scored(test, facts)))


def _scored(test: pd.Series, facts: pd.DataFrame) -> int:
    """Return how many facts were scored; a report may hold the strongest of them alone."""
    candidates = test["candidates"]
    return max(len(facts), 0 if pd.isna(candidates) else int(candidates))


def place_text(rank: float) -> str:
    """Return a rank in words."""
    if not math.isfinite(rank):
        return "at a rank that this file does not say"
    if rank == 1:
        return "first"
    shown = f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f} (tied)"
    return f"at rank {shown}"


def summary(facts: pd.DataFrame, scored: int) -> str:
    """Return in a sentence how many facts helped, and how concentrated their help is.

    Args:
        facts: The facts that the report holds.
        scored: How many facts were scored for it.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return "No training fact was scored."
    if scored > len(values):
        return (
            f"Of {scored:,} training facts, the report holds the strongest: {helping:,} that made "
            f"it more likely (▲) and {opposing:,} that made it less likely (▼)."
        )
    text = f"Of {len(values):,} training facts, {helping:,} made it more likely (▲) and "
    text += f"{opposing:,} less likely (▼)."
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} strongest carry {share:.0%} of all help."
    return text


def numbers(test: pd.Series, head: ReportHead) -> None:
    """Show the numbers of the prediction, each with its meaning."""
    shown = [
        ("Rank", test["rank"], glossary.RANK),
        ("Score", test["score"], glossary.SCORE),
        ("Self-influence", test["self_influence"], glossary.SELF_INFLUENCE),
        ("Checkpoints", len(head.checkpoints) or math.nan, CHECKPOINTS),
    ]
    with st.container(horizontal=True):
        for label, value, explanation in shown:
            st.metric(label, number(float(value)), help=explanation)
    if head.validation is not None:
        states.note(head.validation.sentence)
    notes(head.settings)


def notes(settings: Mapping[str, Any]) -> None:
    """Say what the numbers of an explanation are not of, where that matters."""
    for note in average_notes(settings):
        states.note(note)


def number(value: float) -> str:
    """Return a number for people, a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value.is_integer() else number_text(value, 3)
