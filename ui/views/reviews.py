"""Reviews: what people thought of the explanations, by run and relation, and as files."""

import streamlit as st

from clew.ui.components import (
    address,
    exports,
    influence_charts,
    links,
    markup,
    review_controls,
    review_queue,
    review_tables,
    states,
)
from clew.ui.components.influence_controls import run_labels
from clew.ui.data.influence import report_head, report_of_run, same_test, trace_runs
from clew.ui.data.reviews import (
    Review,
    by_data,
    count_verdicts,
    latest_of_each,
    reviews_csv,
    reviews_of_all,
    wrong_facts,
    wrong_facts_tsv,
)
from clew.ui.data.runs import RunRecord, runs_by_id

MAX_RUNS = 50


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Reviews", anchor=False)
    with states.guarded("The reviews"):
        runs = trace_runs()[:MAX_RUNS]
        if not runs:
            states.nothing(
                "Nothing to review yet",
                "There are no explanations in the store. Ask a question on the page Ask and press "
                "why, or trace triples with this command.",
                commands="clew tracin --model RUN_ID --test head,relation,tail",
            )
            return
        wanted = address.text("run")
        if wanted and wanted not in [run.run_id for run in runs]:
            older = runs_by_id([wanted])
            if not older:
                states.warning(f"No run {wanted} is in the store; it may have been deleted.")
            runs = [*older, *runs]
        chosen = review_controls.run_filter(runs)
        found = reviews_of_all([run.run_id for run in chosen])
        if len(chosen) == 1:
            with states.guarded("The explanations to hand out"):
                review_queue.hand_out(
                    chosen[0].run_id, report_head(report_of_run(chosen[0].run_id)).tests
                )
        for problem in found.problems:
            states.warning(f"A review is left out: {problem}")
        if not found.reviews:
            states.nothing(
                "No reviews yet",
                "Open an explanation on the page Influence, choose Review, and say whether its "
                "facts are a good reason to believe the triple.",
            )
            links.to("influence", "Read explanations", run=chosen[0].run_id)
            return
        _summary(latest_of_each(found.reviews), chosen)
        _table(list(found.reviews), chosen)
        _wrong(latest_of_each(found.reviews), chosen)


def _summary(reviews: list[Review], runs: list[RunRecord]) -> None:
    """Show the verdicts in numbers, and by relation or by run."""
    review_tables.numbers(reviews)
    st.subheader("Verdicts", anchor=False)
    by = review_controls.verdict_grouping()
    labels = run_labels(runs)
    frame = review_tables.verdict_frame(count_verdicts(reviews, by), labels)
    st.altair_chart(influence_charts.verdict_bars(frame), width="stretch")


def _table(reviews: list[Review], runs: list[RunRecord]) -> None:
    """Show every review, the newest first; a ticked one can be opened."""
    st.subheader("All reviews", anchor=False)
    newest = sorted(reviews, key=lambda review: review.created, reverse=True)
    opened = review_tables.choose(newest, {run.run_id: run.name for run in runs})
    if opened is not None:
        _open(opened)
    exports.button("CSV", reviews_csv(newest), "reviews.csv", "text/csv")


def _open(review: Review) -> None:
    """Offer the explanation that a review judged; without its place if that cannot be read."""
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


def _wrong(reviews: list[Review], runs: list[RunRecord]) -> None:
    """Show the training facts that were marked wrong, to be left out of the next training."""
    st.subheader("Training facts marked wrong", anchor=False)
    marked = {
        origin: found for origin, found in by_data(reviews, runs).items() if wrong_facts(found)
    }
    if not marked:
        states.note("Nobody has marked a training fact as wrong.")
        return
    for origin, found in marked.items():
        if len(marked) > 1:
            states.note(f"Of {origin.name or 'unnamed data'}, fingerprint {origin.fingerprint}:")
        st.dataframe(review_tables.wrong_frame(wrong_facts(found)), hide_index=True)
        name = "_".join(filter(None, ("wrong_facts", origin.name, origin.fingerprint[:8])))
        content = wrong_facts_tsv(found, origin)
        exports.button("List to leave out (TSV)", content, f"{name}.tsv", "text/tab-separated")
    states.note(
        "Lines of head, relation and tail under the data set's own names, after two lines that say "
        "from which data they are. To train without these facts:"
    )
    st.code("clew train --config CONFIG data.exclude=wrong_facts.tsv", language="bash")
