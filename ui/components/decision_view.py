"""Disagreements of reviewers: a list, the verdicts side by side, and the form to decide."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st
from markupsafe import Markup

from clew.ui.components import (
    address,
    markup,
    palette,
    review_form,
    review_tables,
    sign_in,
    tables,
)
from clew.ui.data.reviews import CHOICES, Decision, Disagreement, Opinion

MAX_SIDE_BY_SIDE = 4
KINDS = {"explanation": "explanation", "fact": "training fact"}
MEANINGS = review_form.MEANINGS | {
    "unsure": "It is unclear.",
    "wrong": "Leave the fact out of the next training.",
    "right": "Keep the fact in the training.",
}
_OPINION = (
    '<div class="clew-card"><h4><span class="clew-mark">{symbol}</span> {said}</h4>'
    '<p class="clew-muted clew-small">{who} · {when}{about}</p>'
    '<p class="clew-text">{comment}</p></div>'
)


def choose(found: Sequence[Disagreement]) -> Disagreement | None:
    """Show the disagreements in a table; return the one that the address names.

    A ticked row is put into the address, so that a colleague can get a link to it.
    """
    by_key = {each.key: each for each in found}
    wanted = address.text("decide")
    tables.tick_one(
        pd.DataFrame(
            {
                "State": [_state(each) for each in found],
                "About": [KINDS[each.about] for each in found],
                "Triple": [review_tables.triple_text(each.triple) for each in found],
                "Reviewers say": [_in_short(each.opinions) for each in found],
            }
        ),
        list(by_key),
        key=f"disagreements-{hash(tuple(by_key))}",
        chosen=wanted if wanted in by_key else None,
        take=partial(address.write, "decide"),
        row_height=tables.ROW_HEIGHT,
        column_config={
            "Triple": st.column_config.TextColumn(width="large"),
            "Reviewers say": st.column_config.TextColumn(width="large"),
        },
    )
    return by_key.get(wanted)


def _state(found: Disagreement) -> str:
    if found.decision is None:
        return "? open"
    again = ", reviewed since" if found.newer else ""
    return f"{palette.OPINION_SYMBOLS[found.decision.verdict]} {found.decision.verdict}{again}"


def _in_short(opinions: Sequence[Opinion]) -> str:
    return " · ".join(
        f"{palette.OPINION_SYMBOLS[each.said]} {each.review.reviewer}" for each in opinions
    )


def side_by_side(found: Disagreement) -> None:
    """Show what each reviewer says, and what was decided so far."""
    triple = found.triple
    title = markup.triple(
        triple.head_label or triple.head,
        triple.relation_label or triple.relation,
        triple.tail_label or triple.tail,
    )
    st.html(title)
    for first in range(0, len(found.opinions), MAX_SIDE_BY_SIDE):
        shown = found.opinions[first : first + MAX_SIDE_BY_SIDE]
        for column, opinion in zip(st.columns(len(shown)), shown, strict=True):
            with column:
                _opinion(found, opinion)
    markup.show_list(
        [_decision(each, counts=each is found.decision) for each in reversed(found.decisions)]
    )


def _opinion(found: Disagreement, opinion: Opinion) -> None:
    review = opinion.review
    explained = f" · explaining {review_tables.triple_text(review.test)}"
    since = " · since the decision" if opinion in found.newer else ""
    markup.show(
        _OPINION,
        symbol=palette.OPINION_SYMBOLS[opinion.said],
        said=opinion.said,
        who=review.reviewer,
        when=markup.minute(review.created),
        about=(explained if found.about == "fact" else "") + since,
        comment=review.comment or "no comment",
    )


def _decision(decision: Decision, *, counts: bool) -> Markup:
    words = f"{'decided:' if counts else 'before:'} {decision.verdict}"
    return review_tables.said(
        decision.verdict, words, decision.person, decision.created, decision.comment
    )


def form(found: Disagreement) -> tuple[str, str, str] | None:
    """Let a person decide; return the verdict, who decided and why, once they do."""
    key = f"decision-{found.key}"
    with st.container(border=True):
        comment = review_form.comment_box("Why", key)
        person = sign_in.name_box()
        if found.decision is not None:
            st.caption("A new decision counts instead of the last one, which is kept.")
        pressed = review_form.verdict_buttons(CHOICES[found.about], MEANINGS, key, "decide")
    return None if pressed is None else (pressed, person, comment)
