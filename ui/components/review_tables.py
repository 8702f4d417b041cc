"""Reviews in numbers and tables, and disagreements with the form to decide them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import pandas as pd
import streamlit as st

from clew.runs.reading.disagreements import (
    CHOICES,
    Disagreement,
    Opinion,
    WrongFact,
    reviewer_agreement,
)
from clew.runs.reading.reviews import VERDICTS, Review, VerdictCount
from clew.runs.reading.runs import RunRecord
from clew.ui.components import basics, review_form, tables
from clew.ui.components.influence_controls import ALL, run_labels


def run_filter(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Let a person choose one trace run, or all of them.

    The id of the chosen run is in the address under `run`, so that other pages can link to it.
    """
    labels = run_labels(runs)
    choices = [ALL, *labels]
    linked = basics.address("run")
    chosen = st.selectbox(
        "Explanations",
        choices,
        index=choices.index(linked) if linked in choices else 0,
        format_func=lambda run_id: labels.get(run_id, "all of these runs"),
        key="run",
    )
    basics.write_address("run", None if chosen == ALL else chosen)
    return [run for run in runs if chosen in (ALL, run.run_id)]


def numbers(reviews: Sequence[Review], counted: Sequence[Review]) -> None:
    """Show the number of explanations, reviewers and verdicts, and the agreement.

    Args:
        reviews: The reviews that people gave.
        counted: The reviews whose verdicts count.
    """
    counts = Counter(review.said for review in counted)
    columns = st.columns(len(VERDICTS) + 3)
    columns[0].metric(
        "Explanations judged",
        f"{len({(review.run_id, review.test) for review in reviews}):,}",
        border=True,
        help="Different explanations with at least one review.",
    )
    people = {review.reviewer for review in reviews if review.reviewer}
    columns[1].metric("Reviewers", f"{len(people):,}", border=True, help="Different names.")
    agreement = reviewer_agreement(reviews)
    columns[2].metric(
        "Agreement α",
        "–" if agreement.alpha is None else f"{agreement.alpha:.2f}",
        border=True,
        help="Krippendorff's alpha over the explanations that at least two named reviewers judged "
        f"(here {agreement.num_explanations:,}): 1 is perfect, 0 is chance. None if there are no "
        "such explanations, or all verdicts are the same.",
    )
    for column, verdict in zip(columns[3:], VERDICTS, strict=True):
        share = counts[verdict] / max(len(counted), 1)
        column.metric(
            f"{basics.VERDICT_SYMBOLS[verdict]} {verdict.capitalize()}",
            f"{counts[verdict]:,} · {share:.0%}",
            border=True,
            help="Each reviewer's last review of an explanation counts. If reviewers disagreed "
            "and somebody decided, only the decision counts, once.",
        )


def verdict_grouping() -> Literal["relation", "run"]:
    """Let a person choose how verdicts are grouped."""
    chosen = st.segmented_control(
        "Verdicts by",
        ["relation", "run"],
        key="by",
        default="relation",
        required=True,
        bind="query-params",
        help="relation: of the explained triple. run: the explanations that were judged.",
    )
    return "run" if chosen == "run" else "relation"


def verdict_frame(counts: Sequence[VerdictCount], labels: Mapping[str, str]) -> pd.DataFrame:
    """Return rows `group, verdict, reviews` for the chart; `labels` maps groups to their names."""
    rows = [
        (labels.get(count.group, count.group), verdict, getattr(count, verdict))
        for count in counts
        for verdict in VERDICTS
        if getattr(count, verdict)
    ]
    return pd.DataFrame(rows, columns=["group", "verdict", "reviews"])


def choose(reviews: Sequence[Review], run_names: Mapping[str, str]) -> Review | None:
    """Show all reviews in a table and return the one that a person ticked."""
    frame = pd.DataFrame(
        {
            "When (UTC)": pd.to_datetime([review.created[:19] for review in reviews]),
            "Reviewer": [review.reviewer for review in reviews],
            "Verdict": [
                f"{basics.OPINION_SYMBOLS[review.said]} {review.said}" + ", final" * review.final
                for review in reviews
            ],
            "Explained triple": [review_form.triple_text(review.test) for review in reviews],
            "Convincing": [len(review.convincing) for review in reviews],
            "Wrong": [len(review.wrong) for review in reviews],
            "Comment": [review.comment for review in reviews],
            "Run": [run_names.get(review.run_id, review.run_id[:8]) for review in reviews],
        }
    )
    ticked = tables.ticked(
        frame,
        reviews,
        alt="All reviews, the newest first",
        key=f"reviews-{hash(tuple(review.review_id for review in reviews))}",
        column_config={
            "When (UTC)": st.column_config.DatetimeColumn(format="MMM D, HH:mm", width=130),
            "Explained triple": st.column_config.TextColumn(width="large"),
            "Convincing": st.column_config.NumberColumn(
                width="small", help="Training facts that convinced the reviewer."
            ),
            "Wrong": st.column_config.NumberColumn(
                width="small", help="Training facts that look wrong to the reviewer."
            ),
            "Comment": st.column_config.TextColumn(width="large"),
        },
    )
    return ticked[0] if ticked else None


def triple_of(review: Review) -> pd.Series:
    """Return the explained triple with the ids that a row of a report's tests has."""
    test = review.test
    return pd.Series({"head_id": test.head, "relation_id": test.relation, "tail_id": test.tail})


def wrong_frame(facts: Sequence[WrongFact]) -> pd.DataFrame:
    """Return the facts that count as wrong, with their reviews and who decided."""
    return pd.DataFrame(
        {
            "Reviews": [wrong.num_reviews for wrong in facts],
            "Decided by": [wrong.decision.reviewer if wrong.decision else "" for wrong in facts],
            "Training fact": [review_form.triple_text(wrong.fact) for wrong in facts],
            "Head": [wrong.fact.head for wrong in facts],
            "Relation": [wrong.fact.relation for wrong in facts],
            "Tail": [wrong.fact.tail for wrong in facts],
        }
    )


MAX_SIDE_BY_SIDE = 4
KINDS = {"explanation": "explanation", "fact": "training fact"}
DECISION_MEANINGS = review_form.MEANINGS | {
    "unsure": "It is unclear.",
    "wrong": "Leave the fact out of the next training.",
    "right": "Keep the fact in the training.",
}
_OPINION = (
    '<div class="clew-card"><h4><span class="clew-mark">{symbol}</span> {said}</h4>'
    '<p class="clew-muted clew-small">{who} · {when}{about}</p>'
    '<p class="clew-text">{comment}</p></div>'
)


def choose_disagreement(found: Sequence[Disagreement]) -> Disagreement | None:
    """Show the disagreements in a table; return the one that the address names.

    A ticked row is put into the address, so that a colleague can get a link to it.
    """
    by_key = {each.key: each for each in found}
    wanted = basics.address("decide")
    tables.tick_one(
        pd.DataFrame(
            {
                "State": [_state(each) for each in found],
                "About": [KINDS[each.about] for each in found],
                "Triple": [review_form.triple_text(each.triple) for each in found],
                "Reviewers say": [_in_short(each.opinions) for each in found],
            }
        ),
        list(by_key),
        key=f"disagreements-{hash(tuple(by_key))}",
        chosen=wanted if wanted in by_key else None,
        take=partial(basics.write_address, "decide"),
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
    return f"{basics.OPINION_SYMBOLS[found.decision.said]} {found.decision.said}{again}"


def _in_short(opinions: Sequence[Opinion]) -> str:
    return " · ".join(
        f"{basics.OPINION_SYMBOLS[each.said]} {each.review.reviewer}" for each in opinions
    )


def side_by_side(found: Disagreement) -> None:
    """Show what each reviewer says, and what was decided so far."""
    triple = found.triple
    title = basics.triple(
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
    basics.show_list(
        [
            review_form.said(each, f"{'before' if number else 'decided'}: {each.said}")
            for number, each in enumerate(reversed(found.decisions))
        ]
    )


def _opinion(found: Disagreement, opinion: Opinion) -> None:
    review = opinion.review
    explained = f" · explaining {review_form.triple_text(review.test)}"
    since = " · since the decision" if opinion in found.newer else ""
    basics.show(
        _OPINION,
        symbol=basics.OPINION_SYMBOLS[opinion.said],
        said=opinion.said,
        who=review.reviewer,
        when=basics.minute(review.created),
        about=(explained if found.about == "fact" else "") + since,
        comment=review.comment or "no comment",
    )


def decision_form(found: Disagreement) -> tuple[str, str, str] | None:
    """Let a person decide; return the verdict, who decided and why, once they do."""
    key = f"decision-{found.key}"
    with st.container(border=True):
        comment = review_form.comment_box("Why", key)
        person = basics.name_box()
        if found.decision is not None:
            st.caption("A new decision counts instead of the last one, which is kept.")
        pressed = review_form.verdict_buttons(
            CHOICES[found.about], DECISION_MEANINGS, key, "decide"
        )
    return None if pressed is None else (pressed, person, comment)
