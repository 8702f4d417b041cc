"""Reviews: people's verdicts on explanations, by run and by relation, and as files."""

from collections.abc import Sequence

import streamlit as st

from clew.errors import ClewError
from clew.ui.components import (
    address,
    decision_view,
    exports,
    influence_charts,
    links,
    markup,
    retraining,
    review_queue,
    review_tables,
    states,
)
from clew.ui.components.influence_controls import run_labels
from clew.ui.data.influence import report_head, report_of_run, same_test
from clew.ui.data.retraining import explained_runs, train_without
from clew.ui.data.reviews import (
    Decision,
    Disagreement,
    Review,
    add_decision,
    by_data,
    count_verdicts,
    decisions_csv,
    decisions_of_all,
    explains_triples,
    find_disagreements,
    latest_of_each,
    reviewable_runs,
    reviews_csv,
    reviews_of_all,
    settled,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.ui.data.runs import RunRecord, run_by_id


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Reviews", anchor=False)
    with states.guarded("The reviews"):
        runs = reviewable_runs()
        if not runs:
            states.nothing(
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
        if len(chosen) == 1:
            with states.guarded("The explanations to hand out"):
                review_queue.hand_out(
                    chosen[0].run_id, report_head(report_of_run(chosen[0].run_id)).tests
                )
        for problem in found.problems:
            states.warning(f"A review is left out: {problem}")
        if not found.records:
            states.nothing(
                "No reviews yet",
                "Open an explanation on the page Influence, choose Review, and say whether its "
                "facts are a good reason to believe the triple.",
            )
            links.to("influence", "Read explanations", run=chosen[0].run_id)
            return
        # A decision about a fact counts for all explanations of the same data, not only for those
        # of the run that stores it.
        decided = decisions_of_all([run.run_id for run in runs])
        for problem in decided.problems:
            states.warning(f"A decision is left out: {problem}")
        latest = latest_of_each(found.records)
        _summary(latest, decided.records, chosen)
        with states.guarded("The disagreements"):
            _disagreements(decided.records, runs, ids)
        _table(list(found.records), chosen)
        spoken = {fact.triple for each in latest for fact in (*each.wrong, *each.convincing)}
        _wrong(
            latest,
            [
                each
                for each in decided.records
                if each.run_id in ids or each.triple.triple in spoken
            ],
            runs,
        )
        with states.guarded("The training without these facts"):
            retraining.outcome()


def _with_run_of_address(runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs, the one in the address first; warn if that run cannot have reviews."""
    wanted = address.text("run")
    if not wanted or wanted in [run.run_id for run in runs]:
        return runs
    older = run_by_id(wanted)
    if older is not None and explains_triples(older):
        return [older, *runs]
    if older is None:
        states.warning(f"No run {wanted} is in the store; it may have been deleted.")
    else:
        states.warning(f"Run {wanted} explains no triples; only such runs have reviews.")
    return runs


def _summary(
    reviews: list[Review], decisions: Sequence[Decision], runs: Sequence[RunRecord]
) -> None:
    chosen = {run.run_id for run in runs}
    counted = settled(reviews, [each for each in decisions if each.run_id in chosen])
    review_tables.numbers(reviews, counted)
    st.header("Verdicts", anchor=False)
    by = review_tables.verdict_grouping()
    labels = run_labels(runs)
    frame = review_tables.verdict_frame(count_verdicts(counted, by), labels)
    alt = f"Bars: number of reviews of each verdict, by {by}"
    st.altair_chart(influence_charts.verdict_bars(frame), width="stretch", alt=alt)


def _disagreements(
    decisions: Sequence[Decision], runs: Sequence[RunRecord], chosen: Sequence[str]
) -> None:
    reviews = reviews_of_all([run.run_id for run in runs]).records
    found = [
        each
        for each in find_disagreements(reviews, decisions, runs)
        if set(chosen) & {*each.run_ids, *(decision.run_id for decision in each.decisions)}
    ]
    if found:
        num_open = sum(each.is_open for each in found)
        st.header("Disagreements", anchor=False)
        states.note(
            f"{num_open} of {len(found)} to decide. Tick one to see what each reviewer says. A "
            "decision counts instead of their verdicts; their reviews are kept."
        )
        picked = decision_view.choose(found)
        if picked is not None:
            _decide(picked, runs)
        taken = [each for each in decisions if each.run_id in chosen]
        if taken:
            exports.button("Decisions (CSV)", decisions_csv(taken), "decisions.csv", "text/csv")
    wanted = address.text("decide")
    if wanted and wanted not in [each.key for each in found]:
        states.warning(
            f"Nobody disagrees about {wanted} in these reviews; there is nothing to decide."
        )


def _decide(found: Disagreement, runs: Sequence[RunRecord]) -> None:
    decision_view.side_by_side(found)
    said = decision_view.form(found)
    if said is None:
        return
    try:
        add_decision(found.key, *said, runs)
    except ClewError as error:
        states.problem("The decision", str(error), done="saved")
        return
    st.rerun()


def _table(reviews: list[Review], runs: list[RunRecord]) -> None:
    """Show every review, the newest first; a ticked one can be opened."""
    st.header("All reviews", anchor=False)
    newest = sorted(reviews, key=lambda review: review.created, reverse=True)
    opened = review_tables.choose(newest, {run.run_id: run.name for run in runs})
    if opened is not None:
        _open(opened)
    exports.button("CSV", reviews_csv(newest), "reviews.csv", "text/csv")


def _open(review: Review) -> None:
    """Link to the explanation that a review judged; without the triple if it cannot be read."""
    place: int | None = None
    with states.guarded("The explained triple"):
        head = report_head(report_of_run(review.run_id))
        place = same_test(head.tests, review_tables.triple_of(review))
    links.to(
        "influence",
        "Open this explanation",
        run=review.run_id,
        view="Review",
        test="" if place is None else str(place),
    )


def _wrong(reviews: list[Review], decisions: Sequence[Decision], runs: Sequence[RunRecord]) -> None:
    st.header("Training facts marked wrong", anchor=False)
    decided = by_data(decisions, runs)
    marked = {
        origin: (found, decided.get(origin, []))
        for origin, found in by_data(reviews, runs).items()
        if wrong_facts(found, decided.get(origin, []))
    }
    if not marked:
        states.note("Nobody has marked a training fact as wrong.")
        return
    for origin, (found, settling) in marked.items():
        if len(marked) > 1:
            states.note(f"From {origin.name or 'unnamed data'}, fingerprint {origin.fingerprint}:")
        st.dataframe(review_tables.wrong_frame(wrong_facts(found, settling)), hide_index=True)
        name = "_".join(filter(None, ("wrong_facts", origin.name, origin.fingerprint[:8])))
        content = wrong_facts_tsv(found, origin, settling)
        exports.button("List to leave out (TSV)", content, f"{name}.tsv", "text/tab-separated")
        with states.guarded("The trainings to repeat"):
            _train_again(explained_runs([*found, *settling], runs), content, key=name)
    states.note(
        "The list starts with two lines that name its data. Each other line has head, relation and "
        "tail, as named in the data set. To train another configuration without these facts:"
    )
    st.code(
        "clew train --config CONFIG data.exclude=wrong_facts.tsv", language="bash", wrap_lines=True
    )


def _train_again(models: Sequence[RunRecord], listed: str, *, key: str) -> None:
    """Let a person train one of the explained models again, without the facts of a list."""
    if not models:
        states.note("The store has no training run of the explained models to repeat.")
        return
    wanted = retraining.choose(models, key=key)
    if wanted is None:
        return
    try:
        job = train_without(wanted, listed)
    except ClewError as error:
        states.problem("The training", str(error), done="started")
        return
    retraining.started(job, wanted)
