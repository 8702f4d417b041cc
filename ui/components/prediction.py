"""A prediction and its explanation in words, for people who do not read tables first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from clew.names import average_notes
from ui.components import glossary, markup, states
from ui.data.comparison import number_text
from ui.data.influence import ReportHead
from ui.data.paths import FactPath, evidence

TOP = 10
CHECKPOINTS = "States of the model during training over which the influence is summed."

_CARD = (
    '<div class="clew-card"><h4>{triple} <span class="clew-small clew-muted">{numbers}</span></h4>'
    '<p>{answer} {evidence}</p><p class="clew-muted clew-small">{why}</p></div>'
)
_ANSWER = "Asked for <b>{head}</b> – {relation} → <b>?</b>, the model puts <b>{tail}</b> {place}."
_NUMBER = '<span title="{help}">{label} {value}</span>'


def card(test: pd.Series, facts: pd.DataFrame, paths: Sequence[FactPath], head: ReportHead) -> None:
    """Show what the model predicts, its numbers, and in sentences what made it."""
    answer = markup.fill(
        _ANSWER,
        head=test["head"],
        relation=test["relation"],
        tail=test["tail"],
        place=place_text(float(test["rank"])),
    )
    markup.show(
        _CARD,
        triple=markup.triple(test["head"], test["relation"], test["tail"]),
        numbers=_numbers(test, head),
        answer=answer,
        evidence=evidence(test, facts, paths),
        why=summary(facts, scored(test, facts), head.train_size),
    )
    if head.validation is not None:
        states.note(head.validation.sentence)
    notes(head.settings)


def _numbers(test: pd.Series, head: ReportHead) -> Markup:
    shown = [
        ("rank", test["rank"], glossary.RANK),
        ("score", test["score"], glossary.SCORE),
        ("self-influence", test["self_influence"], glossary.SELF_INFLUENCE),
        ("checkpoints", len(head.checkpoints) or math.nan, CHECKPOINTS),
    ]
    return markup.join(
        [
            markup.fill(_NUMBER, label=label, value=number(float(value)), help=explanation)
            for label, value, explanation in shown
        ],
        " · ",
    )


def scored(test: pd.Series, facts: pd.DataFrame) -> int:
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


def summary(facts: pd.DataFrame, scored: int, train_size: int | None = None) -> str:
    """Return in a sentence how many facts helped, and how concentrated their help is.

    Args:
        facts: The facts that the report holds.
        scored: How many facts were scored for it.
        train_size: How many facts the model was trained on, if the report says so.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return "No training fact was scored."
    of = f"Of {scored:,} training facts"
    if train_size is not None and scored < train_size:
        of += f" that the filter left of {train_size:,}"
    if scored > len(values):
        return (
            f"{of}, the report holds the strongest: {helping:,} that made it more likely (▲) and "
            f"{opposing:,} that made it less likely (▼)."
        )
    text = f"{of}, {helping:,} made it more likely (▲) and {opposing:,} less likely (▼)."
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} strongest carry {share:.0%} of all help."
    return text


def notes(settings: Mapping[str, Any]) -> None:
    """Say what the numbers of an explanation are not of, where that matters."""
    for note in average_notes(settings):
        states.note(note)


def number(value: float) -> str:
    """Return a number for people, a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value.is_integer() else number_text(value, 3)
