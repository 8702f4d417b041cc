"""Reviews: people's verdicts on explanations, by run and by relation, and as files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast, get_args

import pandas as pd
import streamlit as st
from streamlit.column_config import DatetimeColumn, NumberColumn, TextColumn

from clew import names
from clew.runs.reading.disagreements import (
    CHOICES,
    Disagreement,
    Opinion,
    agreement_by,
    find_disagreements,
    reviewer_agreement,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.runs.reading.reviews import (
    VERDICTS,
    Group,
    Review,
    by_data,
    count_verdicts,
    latest_of_each,
    origins_of,
    reviews_csv,
)
from clew.runs.reading.runs import RunRecord
from clew.ui import access
from clew.ui.components import basics, charts, reviews, tables
from clew.ui.components.explanations import report_head, report_of_run, same_test, with_validation
from clew.ui.components.facts import trust
from clew.ui.components.run_table import ALL, run_labels
from clew.ui.components.runs import run_by_id

KINDS = {"explanation": "explanation", "fact": "training fact"}
COUNTED = (
    "Each reviewer's last review of an explanation counts. If reviewers disagreed and somebody "
    "decided, only the decision counts, once."
)
DECISION_MEANINGS = reviews.MEANINGS | {
    "unsure": "It is unclear.",
    "wrong": "Leave the fact out of the next training run.",
    "right": "Keep the fact in the training data.",
}


def render() -> None:
    st.title("Reviews", anchor=False)
    with basics.guarded("The reviews"):
        runs = reviews.reviewable_runs()
        if not runs:
            basics.nothing(
                "Nothing to review yet",
                "There are no explanations of triples in the store. Ask a question on the page Ask "
                "and press Why?, or trace triples with this command.",
                commands="clew tracin --model RUN_ID --test head,relation,tail",
            )
            return
        runs = _with_run_of_address(runs)
        chosen = _run_filter(runs)
        ids = [run.run_id for run in chosen]
        found = reviews.reviews_of_all(ids)
        for problem in found.problems:
            basics.warning(f"A review is left out: {problem}")
        if not found.records:
            basics.nothing(
                "No reviews yet",
                "Open an explanation on the page Influence, choose Review, and say whether its "
                "facts are a good reason to believe the triple.",
            )
            basics.link("influence", "Read explanations", run=chosen[0].run_id)
            return
        everything = reviews.reviews_of_all(run.run_id for run in runs).records
        allowed = _allowed(everything)
        if shown := [review for review in allowed if review.run_id in ids]:
            _summary(shown, chosen)
            with basics.guarded("The disagreements"):
                _disagreements(allowed, runs, ids)
            _table(shown, chosen)
        # What is said of a fact counts for all explanations of the same data, in whatever run.
        origins = origins_of(runs)
        data = {origins[run_id] for run_id in ids}
        _wrong([review for review in everything if origins[review.run_id] in data], runs)
        with basics.guarded("The run without these facts"):
            reviews.retrained()


def _with_run_of_address(runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs, the one in the address first; warn if that run cannot have reviews."""
    wanted = basics.address("run")
    if not wanted or wanted in [run.run_id for run in runs]:
        return runs
    older = run_by_id(wanted)
    told = [older and older.tags.get(tag) for tag in (names.TAG_KIND, names.TAG_TASK)]
    if older and told == [names.KIND_TRACE, names.TASK_LINK_PREDICTION]:
        return [older, *runs]
    basics.warning(f"No run {wanted} that explains triples is in the store.")
    return runs


def _allowed(given: Sequence[Review]) -> Sequence[Review]:
    """Leave out what others said of explanations that a reviewer has yet to judge.

    A promoter who has judged nothing only reads and decides, and sees everything.
    """
    shown, promoter = reviews.visible(given), access.may("confirm")
    hidden = len(given) - len(shown)
    if not hidden or (promoter and not reviews.judged(given)):
        return given
    basics.note(f"Hidden until you have judged the same explanations: {hidden:,} reviews.")
    return given if promoter and st.toggle("Show them", key="unblind") else shown


def _run_filter(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Let a person choose one trace run, or all of them.

    The id of the chosen run is in the address under `run`, so that other pages can link to it.
    """
    labels, linked = {ALL: "all of these runs"} | run_labels(runs), basics.address("run")
    place = [*labels].index(linked) if linked in labels else 0
    chosen = st.selectbox(
        "Explanations",
        [*labels],
        index=place,
        format_func=lambda run_id: labels.get(run_id, labels[ALL]),
        key="run",
    )
    basics.write_address("run", None if chosen == ALL else chosen)
    return [run for run in runs if chosen in (ALL, run.run_id)]


def _summary(given: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    """Show the verdicts in numbers, and by relation or by run.

    The numbers of people and explanations are those of all reviews; of the verdicts, those count
    that are settled.
    """
    latest, counted = latest_of_each(given), settled(given)
    judged = len({(review.run_id, review.test) for review in latest})
    people = len({review.reviewer for review in latest if review.reviewer})
    agreement, counts = reviewer_agreement(latest), Counter(review.said for review in counted)
    shown = [
        ("Explanations judged", f"{judged:,}", "Different explanations with at least one review."),
        ("Reviewers", f"{people:,}", "Different names."),
        (
            "Agreement α",
            "–" if agreement.alpha is None else f"{agreement.alpha:.2f}",
            "Krippendorff's alpha over the explanations that at least two named reviewers judged "
            f"(here {agreement.num_explanations:,}): 1 is perfect, 0 is chance. None if there are "
            "no such explanations, or all verdicts are the same.",
        ),
    ]
    for verdict in VERDICTS:
        label = f"{basics.VERDICT_SYMBOLS[verdict]} {verdict.capitalize()}"
        number = f"{counts[verdict]:,} · {counts[verdict] / max(len(counted), 1):.0%}"
        shown.append((label, number, COUNTED))
    basics.tiles(shown)
    st.header("Verdicts", anchor=False)
    about = "relation: of the explained triple. run: the explanations that were judged."
    by = cast(Group, basics.choice("Verdicts by", get_args(Group), "by", help=about))
    labels = run_labels(runs)
    frame = verdict_frame(count_verdicts(latest if by == "reviewer" else counted, by), labels)
    agreed = [found for found in agreement_by(latest, by).items() if found[1].num_explanations]
    left, right = basics.columns([1.5, 1], key="verdicts")
    alt = f"Bars: number of reviews of each verdict, by {by}"
    left.vega_lite_chart(charts.verdict_bars(frame), width="stretch", alt=alt)
    rows = [(labels.get(name, name), each.alpha, each.num_explanations) for name, each in agreed]
    if rows:
        table = pd.DataFrame(
            rows, columns=[by.capitalize(), "Agreement α", "Judged by two or more"]
        )
        with right:
            tables.show(table.round(2), alt=f"Agreement by {by}")


def verdict_frame(counts: Mapping[str, Counter[str]], labels: Mapping[str, str]) -> pd.DataFrame:
    """Return rows `group, verdict, reviews` for the chart; `labels` maps groups to their names."""
    found = ((labels.get(g, g), v, count[v]) for g, count in counts.items() for v in VERDICTS)
    rows = [row for row in found if row[2]]
    return pd.DataFrame(rows, columns=["group", "verdict", "reviews"])


def _disagreements(
    given: Sequence[Review], runs: Sequence[RunRecord], chosen: Sequence[str]
) -> None:
    """List what reviewers of the chosen runs disagree about, and let a person decide.

    A ticked row is put into the address, so that a colleague can get a link to it.
    """
    found = [each for each in find_disagreements(given, runs) if {*chosen} & {*each.run_ids}]
    by_key = {each.key: each for each in found}
    wanted = basics.address("decide")
    if found:
        num_open = sum(not each.decisions for each in found)
        st.header("To settle", anchor=False)
        basics.note(
            f"{num_open} of {len(found)} to decide: disagreements, and facts that only one person "
            "has marked wrong, which a promoter confirms. Tick one to see what each reviewer says. "
            "A decision counts instead of their verdicts; their reviews are kept."
        )
        wide = TextColumn(width="large")
        tables.tick_one(
            {
                "State": ([_state(each) for each in found], None),
                "About": ([KINDS[each.about] for each in found], None),
                "Triple": ([reviews.triple_text(each.triple) for each in found], wide),
                "Reviewers say": ([" · ".join(map(_said, each.opinions)) for each in found], wide),
            },
            list(by_key),
            key=f"disagreements-{hash(tuple(by_key))}",
            chosen=wanted if wanted in by_key else None,
            take=partial(basics.write_address, "decide"),
            row_height=tables.ROW_HEIGHT,
        )
    if wanted in by_key:
        _decide(by_key[wanted], runs)
    elif wanted:
        basics.warning(
            f"Nobody disagrees about {wanted} in these reviews; there is nothing to decide."
        )


def _said(opinion: Opinion) -> str:
    return f"{basics.OPINION_SYMBOLS[opinion.said]} {opinion.review.reviewer or 'somebody'}"


def _state(found: Disagreement) -> str:
    if found.decision is None:
        return "? open"
    again = ", reviewed since" if found.newer else ""
    return f"{basics.OPINION_SYMBOLS[found.decision.said]} {found.decision.said}{again}"


def _decide(found: Disagreement, runs: Sequence[RunRecord]) -> None:
    st.html(basics.triple(*found.triple.labels))
    items = []
    for opinion in found.opinions:
        explained = reviews.triple_text(opinion.review.test)
        about = f" · explaining {explained}" * (found.about == "fact")
        since = " · since the decision" * (opinion in found.newer)
        items.append(reviews.said(opinion.review, opinion.said, more=about + since))
    for number, each in enumerate(reversed(found.decisions)):
        items.append(reviews.said(each, each.said, before="before: " if number else "decided: "))
    basics.show_list(items)
    key = f"decision-{found.key}"
    with st.container(border=True):
        comment = reviews.comment_box("Why", key)
        person = basics.name_box()
        if found.decision is not None:
            st.caption("A new decision counts instead of the last one, which is kept.")
        with st.container(horizontal=True):
            pressed = reviews.verdict_buttons(
                CHOICES[found.about], DECISION_MEANINGS, key, reviews.decided_as(found)
            )
    if pressed is not None:
        with basics.guarded("The decision", done="saved"):
            reviews.add_decision(found.key, pressed, person, comment, runs)
            st.rerun()


def _table(given: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    st.header("All reviews", anchor=False)
    newest = sorted(given, key=lambda review: review.created, reverse=True)
    called = {run.run_id: run.name for run in runs}
    verdicts = [
        f"{basics.OPINION_SYMBOLS[review.said]} {review.said}" + ", final" * review.final
        for review in newest
    ]
    when = pd.to_datetime([each.created[:19] for each in newest], errors="coerce")
    convincing = [len(review.convincing) for review in newest]
    wrong = [len(review.wrong) for review in newest]
    wide, facts = TextColumn(width="large"), "Training facts that {} the reviewer."
    columns: tables.Columns = {
        "When (UTC)": (when, DatetimeColumn(format="MMM D, HH:mm", width=130)),
        "Reviewer": ([review.reviewer for review in newest], None),
        "Verdict": (verdicts, None),
        "Explained triple": ([reviews.triple_text(review.test) for review in newest], wide),
        "Convincing": (convincing, NumberColumn(width="small", help=facts.format("convinced"))),
        "Wrong": (wrong, NumberColumn(width="small", help=facts.format("look wrong to"))),
        "Comment": ([review.comment for review in newest], wide),
        "Run": ([called.get(each.run_id, each.run_id[:8]) for each in newest], None),
    }
    key = f"reviews-{hash(tuple(review.review_id for review in newest))}"
    opened = tables.ticked(columns, newest, alt="All reviews, the newest first", key=key)
    if opened:
        _open(opened[0])
    tables.download("CSV", reviews_csv(newest), "reviews.csv")


def _open(review: Review) -> None:
    """Link to the explanation that a review judged; without the triple if it cannot be read."""
    place: int | None = None
    with basics.guarded("The explained triple"):
        ids = ("head_id", "relation_id", "tail_id")
        triple = pd.Series(dict(zip(ids, review.test.triple, strict=True)))
        head = with_validation(report_head(report_of_run(review.run_id)))
        place = same_test(head.tests, triple)
        trust(head, review.run_id, triple)
    test = "" if place is None else str(place)
    basics.link("influence", "Open this explanation", run=review.run_id, view="Review", test=test)


def _wrong(given: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    st.header("Training facts marked wrong", anchor=False)
    marked = {origin: found for origin, found in by_data(given, runs).items() if wrong_facts(found)}
    if not marked:
        basics.note("No fact counts as wrong: two people mark it, or a promoter confirms it.")
        return
    for origin, found in marked.items():
        if len(marked) > 1:
            basics.note(f"From {origin.name or 'unnamed data'}, fingerprint {origin.fingerprint}:")
        rows = []
        for wrong in wrong_facts(found):
            by = wrong.decision.reviewer if wrong.decision else ""
            rows.append((wrong.num_people, by, reviews.triple_text(wrong.fact), *wrong.fact.triple))
        columns = ["People", "Decided by", "Training fact", "Head", "Relation", "Tail"]
        st.dataframe(pd.DataFrame(rows, columns=columns), hide_index=True)
        name = "_".join(filter(None, ("wrong_facts", origin.name, origin.fingerprint[:8])))
        content = wrong_facts_tsv(found, origin)
        tables.download("List to leave out (TSV)", content, f"{name}.tsv")
        with basics.guarded("The runs to repeat"):
            reviews.offer_training(reviews.explained_runs(found, runs), content, key=name)
    basics.note(
        "The list starts with two lines that name its data. Each other line has head, relation and "
        "tail, as named in the data set. To train another configuration without these facts:"
    )
    basics.code("clew train --config CONFIG data.exclude=wrong_facts.tsv")
