"""A prediction and its explanation in words, for people who do not read tables first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from clew.names import average_notes
from clew.ui.components import glossary, identifiers, markup, states
from clew.ui.data.comparison import number_text
from clew.ui.data.influence import ReportHead
from clew.ui.data.paths import FactPath, answer, evidence, scored, summary
from clew.ui.data.sharing import NO_KINDS

CHECKPOINTS = "States of the model during training over which the influence is summed."

_CARD = (
    '<div class="clew-card"><h2>{triple} <span class="clew-small clew-muted">{numbers}</span></h2>'
    '<p class="clew-small clew-ids">{ids}</p>'
    '<p>{answer} {evidence}</p><p class="clew-muted clew-small">{why}</p></div>'
)
_NUMBER = '<span title="{help}">{label} {value}</span>'


def card(
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
    head: ReportHead,
    kinds: Mapping[str, str] = NO_KINDS,
) -> None:
    """Show what the model predicts, its numbers, and in sentences what made it."""
    markup.show(
        _CARD,
        triple=markup.triple(test["head"], test["relation"], test["tail"]),
        numbers=_numbers(test, head),
        ids=identifiers.line(test, kinds),
        answer=answer(test, head.settings),
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


def notes(settings: Mapping[str, Any]) -> None:
    """Say what the numbers of an explanation are not of, where that matters."""
    for note in average_notes(settings):
        states.note(note)


def number(value: float | None) -> str:
    """Return a number for people, a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value.is_integer() else number_text(value, 3)
