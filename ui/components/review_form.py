"""Reviews: the cached records, what a person writes, and the form for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pandas as pd
import streamlit as st
from markupsafe import Markup

from clew import names
from clew.errors import ClewError, DataError
from clew.runs.reading.disagreements import CHOICES, decision_on, find_disagreements
from clew.runs.reading.reviews import (
    VERDICTS,
    Fact,
    Kept,
    Review,
    append_review,
    latest_of_each,
    read_reviews,
)
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.ui import access
from clew.ui.components import basics
from clew.ui.components.explanations import strongest
from clew.ui.components.influence_charts import fact_text, fact_texts
from clew.ui.components.runs import runs_page

NUM_LATEST = 50
NUM_PER_PAGE = 200
MAX_CACHED = 1024


def explains_triples(run: RunRecord) -> bool:
    """Return whether a run explains triples; explanations of texts and frames have no reviews."""
    kind, task = run.tags.get(names.TAG_KIND), run.tags.get(names.TAG_TASK)
    return (kind, task) == (names.KIND_TRACE, names.TASK_LINK_PREDICTION)


def reviewable_runs() -> list[RunRecord]:
    """Return the latest runs that explain triples, and all older ones with a review.

    The newest comes first. In old stores, where reviewed runs are not marked, only the latest show.
    """
    query = RunQuery(kind=names.KIND_TRACE, task=names.TASK_LINK_PREDICTION)
    found = list(runs_page(query, size=NUM_LATEST).runs)
    query, number, more = replace(query, reviewed=True), 0, True
    while more:
        page = runs_page(query, number, size=NUM_PER_PAGE)
        found += page.runs
        number, more = number + 1, page.more
    each = {run.run_id: run for run in found}
    return sorted(each.values(), key=lambda run: run.started_ms, reverse=True)


@st.cache_data(ttl=10, max_entries=MAX_CACHED, show_spinner=False)
def reviews_of(run_id: str) -> Kept:
    return read_reviews(run_id)


def reviews_of_all(run_ids: Iterable[str]) -> Kept:
    """Return the reviews of several runs together."""
    found = [reviews_of(run_id) for run_id in run_ids]
    return Kept(
        tuple(review for kept in found for review in kept.records),
        tuple(problem for kept in found for problem in kept.problems),
    )


def add_decision(
    key: str, verdict: str, person: str, comment: str, runs: Sequence[RunRecord]
) -> Review:
    """Write a person's final review of a disagreement, after reading the store again.

    Args:
        key: The key of the disagreement.
        verdict: One of the `CHOICES` for its kind.
        person: Who decided, if nobody has to sign in.
        comment: The reason.
        runs: The runs whose reviews are searched for the disagreement.

    Raises:
        AccessError: The person may not decide.
        DataError: The reviewers no longer disagree, the verdict is invalid, or `person` is empty.
    """
    person = access.authorize("decide") or person
    for run in runs:
        reviews_of.clear(run.run_id)
    found = find_disagreements(reviews_of_all(run.run_id for run in runs).records, runs)
    about = next((each for each in found if each.key == key), None)
    if about is None:
        raise DataError(f"no reviewers disagree about {key} any more; there is nothing to decide")
    if verdict not in CHOICES[about.about]:
        expected = ", ".join(CHOICES[about.about])
        raise DataError(f"the decision is {verdict!r}; expected one of {expected}")
    written = append_review(about.final_review(verdict, person, comment))
    reviews_of.clear(written.run_id)
    return written


def add_review(review: Review) -> Review:
    """Write a review to its run; a signed-in person is its reviewer."""
    person = access.authorize("review")
    written = append_review(replace(review, reviewer=person or review.reviewer))
    reviews_of.clear(review.run_id)
    return written


def fact_of(row: pd.Series) -> Fact:
    """Return a row of a frame of triples as a fact."""
    return Fact(
        *(str(row[key]) for key in ("head_id", "relation_id", "tail_id")),
        *(str(row[key]) for key in ("head", "relation", "tail")),
    )


_SAID = (
    '<li><span class="clew-mark">{symbol}</span><b>{said}</b> '
    '<span class="clew-muted">{who} · {when}</span><div class="clew-wrap">{comment}</div></li>'
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
        reviewer = basics.name_box()
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
                f"{basics.OPINION_SYMBOLS[verdict]} {verdict}",
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
            "±": [basics.sign_symbol(value) for value in facts["influence"]],
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
        basics.problem("The review", str(error), done="saved")
        return
    st.success("Saved with the run. A later review of yours counts instead of this one.")


def earlier(run_id: str, test: pd.Series) -> None:
    """Show earlier reviews of this explanation, and the decision, if there is one."""
    triple, reviews = fact_of(test).triple, reviews_of(run_id).records
    shown = [each for each in latest_of_each(reviews) if each.test.triple == triple]
    items = [said(each, each.said) for each in shown]
    if shown and (made := decision_on(triple, reviews)) is not None:
        items.append(said(made, f"decided: {made.said}"))
    basics.show_list(items)


def said(review: Review, words: str) -> Markup:
    """Return a review as an item of a list: its verdict in words, by whom, why."""
    return basics.fill(
        _SAID,
        symbol=basics.OPINION_SYMBOLS[review.said],
        said=words,
        who=review.reviewer or "somebody",
        when=basics.minute(review.created),
        comment=review.comment,
    )


def triple_text(fact: Fact) -> str:
    """Return a triple in words."""
    return fact_text(
        fact.head_label or fact.head,
        fact.relation_label or fact.relation,
        fact.tail_label or fact.tail,
    )
