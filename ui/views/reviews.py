"""Reviews: people's verdicts on explanations, by run and by relation, and as files."""

from collections.abc import Sequence

import streamlit as st

from clew.errors import ClewError
from clew.runs.reading.disagreements import (
    Disagreement,
    find_disagreements,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.runs.reading.reviews import Review, by_data, count_verdicts, latest_of_each, reviews_csv
from clew.runs.reading.runs import RunRecord
from clew.ui.components import basics, influence_charts, retraining, review_tables, tables
from clew.ui.components.explanations import report_head, report_of_run, same_test
from clew.ui.components.influence_controls import run_labels
from clew.ui.components.retraining import explained_runs, train_without
from clew.ui.components.review_form import (
    add_decision,
    explains_triples,
    reviewable_runs,
    reviews_of_all,
)
from clew.ui.components.runs import run_by_id


def render() -> None:
    """Show the page."""
    basics.style()
    st.title("Reviews", anchor=False)
    with basics.guarded("The reviews"):
        runs = reviewable_runs()
        if not runs:
            basics.nothing(
                "Nothing to review yet",
                "There are no explanations of triples in the store. Ask a question on the page Ask "
                "and press Why?, or trace triples with this command.",
                commands="clew tracin --model RUN_ID --test head,relation,tail",
            )
            return
        runs = _with_run_of_address(runs)
        chosen = review_tables.run_filter(runs)
        ids = [run.run_id for run in chosen]
        found = reviews_of_all(ids)
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
        _summary(found.records, chosen)
        # A final review of a fact counts for all explanations of the same data, not only for those
        # of the run that stores it.
        everything = reviews_of_all(run.run_id for run in runs).records
        with basics.guarded("The disagreements"):
            _disagreements(everything, runs, ids)
        _table(found.records, chosen)
        spoken = {fact.triple for each in found.records for fact in (*each.wrong, *each.convincing)}
        elsewhere = [
            each
            for each in everything
            if each.final and each.run_id not in ids
            if spoken & {fact.triple for fact in (*each.wrong, *each.convincing)}
        ]
        _wrong([*found.records, *elsewhere], runs)
        with basics.guarded("The training without these facts"):
            retraining.outcome()


def _with_run_of_address(runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs, the one in the address first; warn if that run cannot have reviews."""
    wanted = basics.address("run")
    if not wanted or wanted in [run.run_id for run in runs]:
        return runs
    older = run_by_id(wanted)
    if older is not None and explains_triples(older):
        return [older, *runs]
    if older is None:
        basics.warning(f"No run {wanted} is in the store; it may have been deleted.")
    else:
        basics.warning(f"Run {wanted} explains no triples; only such runs have reviews.")
    return runs


def _summary(reviews: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    """Show the verdicts in numbers, and by relation or by run."""
    counted = settled(reviews)
    review_tables.numbers(latest_of_each(reviews), counted)
    st.header("Verdicts", anchor=False)
    by = review_tables.verdict_grouping()
    labels = run_labels(runs)
    frame = review_tables.verdict_frame(count_verdicts(counted, by), labels)
    alt = f"Bars: number of reviews of each verdict, by {by}"
    st.altair_chart(influence_charts.verdict_bars(frame), width="stretch", alt=alt)


def _disagreements(
    reviews: Sequence[Review], runs: Sequence[RunRecord], chosen: Sequence[str]
) -> None:
    """List what reviewers of the chosen runs disagree about, and let a person decide."""
    found = [each for each in find_disagreements(reviews, runs) if {*chosen} & {*each.run_ids}]
    if found:
        num_open = sum(not each.decisions for each in found)
        st.header("Disagreements", anchor=False)
        basics.note(
            f"{num_open} of {len(found)} to decide. Tick one to see what each reviewer says. A "
            "decision counts instead of their verdicts; their reviews are kept."
        )
        picked = review_tables.choose_disagreement(found)
        if picked is not None:
            _decide(picked, runs)
    wanted = basics.address("decide")
    if wanted and wanted not in [each.key for each in found]:
        basics.warning(
            f"Nobody disagrees about {wanted} in these reviews; there is nothing to decide."
        )


def _decide(found: Disagreement, runs: Sequence[RunRecord]) -> None:
    review_tables.side_by_side(found)
    said = review_tables.decision_form(found)
    if said is None:
        return
    try:
        add_decision(found.key, *said, runs)
    except ClewError as error:
        basics.problem("The decision", str(error), done="saved")
        return
    st.rerun()


def _table(reviews: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    """Show every review, the newest first; a ticked one can be opened."""
    st.header("All reviews", anchor=False)
    newest = sorted(reviews, key=lambda review: review.created, reverse=True)
    opened = review_tables.choose(newest, {run.run_id: run.name for run in runs})
    if opened is not None:
        _open(opened)
    tables.download("CSV", reviews_csv(newest), "reviews.csv", "text/csv")


def _open(review: Review) -> None:
    """Link to the explanation that a review judged; without the triple if it cannot be read."""
    place: int | None = None
    with basics.guarded("The explained triple"):
        head = report_head(report_of_run(review.run_id))
        place = same_test(head.tests, review_tables.triple_of(review))
    basics.link(
        "influence",
        "Open this explanation",
        run=review.run_id,
        view="Review",
        test="" if place is None else str(place),
    )


def _wrong(reviews: Sequence[Review], runs: Sequence[RunRecord]) -> None:
    """Show the training facts that count as wrong, to be left out of the next training."""
    st.header("Training facts marked wrong", anchor=False)
    marked = {
        origin: found for origin, found in by_data(reviews, runs).items() if wrong_facts(found)
    }
    if not marked:
        basics.note("Nobody has marked a training fact as wrong.")
        return
    for origin, found in marked.items():
        if len(marked) > 1:
            basics.note(f"From {origin.name or 'unnamed data'}, fingerprint {origin.fingerprint}:")
        st.dataframe(review_tables.wrong_frame(wrong_facts(found)), hide_index=True)
        name = "_".join(filter(None, ("wrong_facts", origin.name, origin.fingerprint[:8])))
        content = wrong_facts_tsv(found, origin)
        tables.download("List to leave out (TSV)", content, f"{name}.tsv", "text/tab-separated")
        with basics.guarded("The trainings to repeat"):
            _train_again(explained_runs(found, runs), content, key=name)
    basics.note(
        "The list starts with two lines that name its data. Each other line has head, relation and "
        "tail, as named in the data set. To train another configuration without these facts:"
    )
    st.code(
        "clew train --config CONFIG data.exclude=wrong_facts.tsv", language="bash", wrap_lines=True
    )


def _train_again(models: Sequence[RunRecord], listed: str, *, key: str) -> None:
    """Let a person train one of the explained models again, without the facts of a list."""
    if not models:
        basics.note("The store has no training run of the explained models to repeat.")
        return
    wanted = retraining.choose(models, key=key)
    if wanted is None:
        return
    try:
        job = train_without(wanted, listed)
    except ClewError as error:
        basics.problem("The training", str(error), done="started")
        return
    retraining.started(job, wanted)
