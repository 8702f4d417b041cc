"""The form in which a reviewer judges an explanation."""

import pandas as pd
import streamlit as st

from clew.errors import ClewError
from clew.ui.components import markup, palette, sign_in, states
from clew.ui.components.influence_charts import fact_texts
from clew.ui.data.influence import strongest
from clew.ui.data.reviews import (
    VERDICTS,
    Fact,
    Review,
    Reviews,
    Verdict,
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
    "implausible": "They are not: beside the point, by chance, or wrong.",
    "unsure": "I cannot tell.",
}
_ITEM = (
    '<li><span class="clew-mark">{symbol}</span><b>{verdict}</b> '
    '<span class="clew-muted">{who} · {when}</span>'
    '<div class="clew-wrap">{comment}</div></li>'
)


def form(run_id: str, test: pd.Series, facts: pd.DataFrame) -> None:
    """Let a person record a verdict, tick facts and comment; write it to the run.

    Args:
        run_id: The trace run.
        test: A row of the report's tests.
        facts: The training facts; the strongest on either side can be ticked.
    """
    key = f"review-{run_id}-{test.name}"
    shown = strongest(facts, "influence", NUM_FACTS)
    with st.form(key, border=True):
        st.caption("Tick the facts that convinced you, and those that look wrong.")
        ticked = st.data_editor(
            _ticks(shown),
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
        comment = st.text_area("Comment", key=f"{key}-comment", max_chars=10_000)
        reviewer = sign_in.name_box()
        st.markdown(
            "**Is this a plausible reason to believe the triple?** A verdict saves the review."
        )
        verdict = _verdict(key)
    if verdict is None:
        return
    _save(
        Review(
            run_id=run_id,
            test=fact_of(test),
            verdict=verdict,
            reviewer=reviewer,
            comment=comment.strip(),
            convincing=_marked(shown, ticked[CONVINCING]),
            wrong=_marked(shown, ticked[WRONG]),
        )
    )


def _verdict(key: str) -> Verdict | None:
    """Show a button for each verdict, which has a key too; return the verdict that was given."""
    pressed = None
    with st.container(horizontal=True):
        for number, verdict in enumerate(VERDICTS, start=1):
            if st.form_submit_button(
                f"{palette.VERDICT_SYMBOLS[verdict]} {verdict}",
                key=f"{key}-{verdict}",
                help=MEANINGS[verdict],
                shortcut=str(number),
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
    """Show what was said about this explanation before, and what was decided."""
    found = _of_test(reviews_of(run_id), test)
    if not found:
        return
    items = [
        markup.fill(
            _ITEM,
            symbol=palette.VERDICT_SYMBOLS[review.verdict],
            verdict=review.verdict,
            who=review.reviewer or "somebody",
            when=review.created[:16].replace("T", " "),
            comment=review.comment,
        )
        for review in found
    ]
    decision = decision_on(fact_of(test).triple, decisions_of_all([run_id]).decisions)
    if decision is not None:
        items.append(
            markup.fill(
                _ITEM,
                symbol=palette.OPINION_SYMBOLS[decision.verdict],
                verdict=f"decided: {decision.verdict}",
                who=decision.person,
                when=decision.created[:16].replace("T", " "),
                comment=decision.comment,
            )
        )
    markup.show('<ul class="clew-checks">{items}</ul>', items=markup.join(items))


def _of_test(reviews: Reviews, test: pd.Series) -> list[Review]:
    wanted = fact_of(test).triple
    latest = latest_of_each(reviews.reviews)
    return [review for review in latest if review.test.triple == wanted]
