"""Reviews: the choice of runs, numbers, tables, and single reviews."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd
import streamlit as st
from markupsafe import Markup

from clew.runs.reading.disagreements import WrongFact, reviewer_agreement
from clew.runs.reading.reviews import VERDICTS, Fact, Review, VerdictCount
from clew.ui.components import address, markup, palette, tables
from clew.ui.components.influence_charts import fact_text
from clew.ui.components.influence_controls import ALL, run_labels
from clew.ui.data.runs import RunRecord

_SAID = (
    '<li><span class="clew-mark">{symbol}</span><b>{said}</b> '
    '<span class="clew-muted">{who} · {when}</span><div class="clew-wrap">{comment}</div></li>'
)


def run_filter(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Let a person choose one trace run, or all of them.

    The id of the chosen run is in the address under `run`, so that other pages can link to it.
    """
    labels = run_labels(runs)
    choices = [ALL, *labels]
    linked = address.text("run")
    chosen = st.selectbox(
        "Explanations",
        choices,
        index=choices.index(linked) if linked in choices else 0,
        format_func=lambda run_id: labels.get(run_id, "all of these runs"),
        key="run",
    )
    address.write("run", None if chosen == ALL else chosen)
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
            f"{palette.VERDICT_SYMBOLS[verdict]} {verdict.capitalize()}",
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
                f"{palette.OPINION_SYMBOLS[review.said]} {review.said}" + ", final" * review.final
                for review in reviews
            ],
            "Explained triple": [triple_text(review.test) for review in reviews],
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
            "Training fact": [triple_text(wrong.fact) for wrong in facts],
            "Head": [wrong.fact.head for wrong in facts],
            "Relation": [wrong.fact.relation for wrong in facts],
            "Tail": [wrong.fact.tail for wrong in facts],
        }
    )


def said(review: Review, words: str) -> Markup:
    """Return a review as an item of a list: its verdict in words, by whom, why."""
    return markup.fill(
        _SAID,
        symbol=palette.OPINION_SYMBOLS[review.said],
        said=words,
        who=review.reviewer or "somebody",
        when=markup.minute(review.created),
        comment=review.comment,
    )


def triple_text(fact: Fact) -> str:
    """Return a triple in words."""
    return fact_text(
        fact.head_label or fact.head,
        fact.relation_label or fact.relation,
        fact.tail_label or fact.tail,
    )
