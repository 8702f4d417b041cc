"""A prediction and its explanation in words, for people who do not start with tables; as files."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from markupsafe import Markup, escape

from clew.biolink.curies import page_of
from clew.biolink.terms import is_denied
from clew.names import average_notes
from clew.runs.influence_forms import ESTIMATE, SELF_INFLUENCE
from clew.ui.components import exports, glossary, markup, states
from clew.ui.data.influence import FactPath, ReportHead, answer, evidence, scored, summary
from clew.ui.data.runs import number_text
from clew.ui.data.sharing import NO_KINDS, SharedExplanation, html_report, trapi_json

CHECKPOINTS = "Saved states of the model over which the influence is summed."

_CARD = (
    '<div class="clew-card"><h2>{triple} <span class="clew-small clew-muted">{numbers}</span></h2>'
    '<p class="clew-small clew-ids">{ids}</p>'
    '<p>{answer} {evidence}</p><p class="clew-muted clew-small">{why} '
    '<span title="{meaning}">{form}</span></p></div>'
)
_NUMBER = '<span title="{help}">{label} {value}</span>'
_LINK = '<a href="{page}" target="_blank" rel="noreferrer">{text}</a>'


def card(
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
    head: ReportHead,
    kinds: Mapping[str, str] = NO_KINDS,
) -> None:
    """Show what the model predicts, the numbers, and the reasons in sentences."""
    markup.show(
        _CARD,
        triple=markup.triple(test["head"], test["relation"], test["tail"]),
        numbers=_numbers(test, head),
        ids=identifiers(test, kinds),
        answer=answer(test, head.settings),
        evidence=evidence(test, facts, paths),
        why=summary(facts, scored(test, facts), head.train_size),
        form=f"{head.form.named}, an estimate.",
        meaning=f"{head.form.sentence} {ESTIMATE}",
    )
    if head.validation is not None:
        states.note(head.validation.sentence)
    notes(head.settings)


def _numbers(test: pd.Series, head: ReportHead) -> Markup:
    form = head.form
    shown = [
        ("rank", test["rank"], glossary.RANK),
        ("model's score", test["score"], glossary.SCORE),
        (form.self_heading.lower(), test["self_influence"], SELF_INFLUENCE),
        ("checkpoints", len(head.checkpoints) or math.nan, CHECKPOINTS),
    ]
    return markup.join(
        [
            markup.fill(_NUMBER, label=label, value=number(float(value)), help=explanation)
            for label, value, explanation in shown
        ],
        " · ",
    )


def identifiers(test: pd.Series, kinds: Mapping[str, str]) -> Markup:
    """Return the identifiers of a triple's ends, with their kinds; empty if they add nothing.

    An identifier of a known database is a link to its page there.
    """
    ends = (
        _identifier(str(test[f"{end}_id"]), str(test[end]), kinds.get(str(test[f"{end}_id"]), ""))
        for end in ("head", "tail")
    )
    return markup.join([end for end in ends if end], " · ")


def _identifier(key: str, name: str, kind: str) -> Markup:
    page = page_of(key)
    shown = markup.fill(_LINK, page=page, text=key) if page else escape(key)
    parts = [shown] if page or key != name else []
    return markup.join([*parts, escape(kind)] if kind else parts, ", ")


def share(shown: SharedExplanation) -> None:
    """Offer an explanation as an HTML page and as a TRAPI message."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", shown.title).strip("-")[:80] or "explanation"
    page, message = "Report to mail (HTML)", "TRAPI message (JSON)"
    exports.button(page, lambda: html_report(shown), f"{name}.html", "text/html")
    if not is_denied(str(shown.test["relation_id"])):  # TRAPI cannot state a denial
        exports.button(message, lambda: trapi_json(shown), f"{name}.json", "application/json")
    st.caption("The report is one file: picture, paths, facts, how far to trust them.")


def notes(settings: Mapping[str, Any]) -> None:
    """Show a note if the numbers of an explanation are not those of the averaged parameters."""
    for note in average_notes(settings):
        states.note(note)


def number(value: float | None) -> str:
    """Return a number in a readable form, a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value.is_integer() else number_text(value, 3)
