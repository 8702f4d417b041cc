"""The form in which a reviewer judges an explanation."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pandas as pd
import streamlit as st

from clew.errors import ClewError
from clew.ui import access
from clew.ui.components import markup, palette, sign_in, states
from clew.ui.components.influence_charts import fact_texts
from clew.ui.components.review_tables import said
from clew.ui.data.influence import strongest
from clew.ui.data.reviews import (
    VERDICTS,
    Fact,
    Review,
    add_review,
    decision_on,
    decisions_of_all,
    fact_of,
    latest_of_each,
    reviews_of,
)

NUM_FACTS = 20
CONVINCING = "convincing"
WRONG = "wrong"
MEANINGS = {
    "plausible": "The facts are a sensible reason to believe the triple.",
    "implausible": "They are not: off topic, by chance, or wrong.",
    "unsure": "I cannot tell.",
}
Said = TypeVar("Said", bound=str)


def form(run_id: str, test: pd.Series, facts: pd.DataFrame) -> None:
    """Let a person record a verdict, tick facts and comment; write it to the run.

    Input that is not saved yet is restored when the person returns to the form.

    Args:
        run_id: The trace run.
        test: A row of the report's tests.
        facts: The training facts; the strongest on either side can be ticked.
    """
    key = f"review-{run_id}-{test.name}"
    shown = strongest(facts, "influence", NUM_FACTS)
    if f"{key}-facts" not in st.session_state:  # the form was not on the page before
        st.session_state[f"{key}-begun"] = st.session_state.get(f"{key}-ticked", _ticks(shown))
    with st.container(border=True):
        st.caption("Tick the facts that convinced you, and those that look wrong.")
        ticked = st.data_editor(
            st.session_state[f"{key}-begun"],
            key=f"{key}-facts",
            alt="The strongest facts, to be ticked as convincing or wrong",
            hide_index=True,
            disabled=["±", "Training fact"],
            column_config={
                CONVINCING: st.column_config.CheckboxColumn(width=100),
                WRONG: st.column_config.CheckboxColumn(width=80),
                "±": st.column_config.TextColumn(width=30),
                "Training fact": st.column_config.TextColumn(width=760),
            },
        )
        st.session_state[f"{key}-ticked"] = ticked
        comment = comment_box("Comment", key)
        reviewer = sign_in.name_box()
        st.markdown(
            "**Is this a plausible reason to believe the triple?** A verdict saves the review."
        )
        verdict = verdict_buttons(VERDICTS, MEANINGS, key, "review", by_number=True)
    if verdict is None:
        return
    _save(
        Review(
            run_id=run_id,
            test=fact_of(test),
            verdict=verdict,
            reviewer=reviewer,
            comment=comment,
            convincing=_marked(shown, ticked[CONVINCING]),
            wrong=_marked(shown, ticked[WRONG]),
        )
    )


def comment_box(label: str, key: str) -> str:
    given = st.text_area(label, key=f"{key}-comment", max_chars=10_000, persist_state="session")
    return (given or "").strip()


def verdict_buttons(
    verdicts: Sequence[Said],
    meanings: Mapping[str, str],
    key: str,
    action: access.Action,
    *,
    by_number: bool = False,
) -> Said | None:
    """Show a button for each verdict; return the verdict that was given.

    `by_number` lets the keys 1, 2, 3 press them too.
    """
    pressed = None
    with st.container(horizontal=True):
        for number, verdict in enumerate(verdicts, start=1):
            if st.button(
                f"{palette.OPINION_SYMBOLS[verdict]} {verdict}",
                key=f"{key}-{verdict}",
                help=meanings[verdict],
                disabled=not access.may(action),
                shortcut=str(number) if by_number else None,
            ):
                pressed = verdict
    return pressed


def _ticks(facts: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            CONVINCING: False,
            WRONG: False,
            "±": [palette.sign_symbol(value) for value in facts["influence"]],
            "Training fact": fact_texts(facts),
        },
        index=range(len(facts)),
    )


def _marked(facts: pd.DataFrame, ticks: pd.Series) -> tuple[Fact, ...]:
    rows = (row for _, row in facts.iterrows())
    return tuple(fact_of(row) for row, tick in zip(rows, ticks, strict=True) if tick)


def _save(review: Review) -> None:
    try:
        add_review(review)
    except ClewError as error:
        states.problem("The review", str(error), done="saved")
        return
    st.success("Saved with the run. A later review of yours counts instead of this one.")


def earlier(run_id: str, test: pd.Series) -> None:
    """Show earlier reviews of this explanation, and the decision, if there is one."""
    triple = fact_of(test).triple
    items = [
        said(each.verdict, each.verdict, each.reviewer or "somebody", each.created, each.comment)
        for each in latest_of_each(reviews_of(run_id).records)
        if each.test.triple == triple
    ]
    if not items:
        return
    made = decision_on(triple, decisions_of_all([run_id]).records)
    if made is not None:
        words = f"decided: {made.verdict}"
        items.append(said(made.verdict, words, made.person, made.created, made.comment))
    markup.show_list(items)
