"""Why, on the page Ask: first by the facts near a triple, then by all of them."""

import pandas as pd
import streamlit as st

from clew.ui.components import links, markup, palette, states
from clew.ui.components.answers import Explain, why_button
from clew.ui.data import questions
from clew.ui.data.influence import (
    ReportFiles,
    evidence,
    facts_of,
    paths_of,
    report_head,
    report_of_run,
    scored,
    triple_at,
)
from clew.ui.data.jobs import Job
from clew.ui.data.questions import Why

NUM_FACTS = 5
_FACT = '<li><span class="clew-mark clew-for">{symbol}</span>{triple}</li>'
_FACTS = (
    '<ul class="clew-checks" aria-label="Facts that made it more likely, the strongest first">'
    "{items}</ul>"
)


def explain_again(why: Why, explain: Explain) -> None:
    """Offer the explanation that a link meant, which this dashboard does not know any more."""
    st.html(markup.triple(why.head, why.relation, why.tail))
    states.note("This explanation is on the page Influence if it was finished; or make a new one.")
    why_button("Explain again", why, explain, key="explain-again")


def first_answer(job: Job) -> None:
    """Show what the facts near the triple say, until all facts have been compared."""
    path = questions.first_answer_of(job)
    if path is None or job.state == "done":
        return
    files = ReportFiles(json=path)
    head = report_head(files)
    test, facts = triple_at(head, 0), facts_of(files, 0)
    near = scored(test, facts)
    others = (head.train_size or near) - near
    fate = "are still being compared" if job.state == "running" else "were not compared"
    st.markdown(
        f"**First answer**, of the {near:,} training facts that hold "
        f"{markup.markdown(test['head'])} or {markup.markdown(test['tail'])}. The other "
        f"{others:,} {fate}; there may be stronger ones."
    )
    _strongest(facts)


def explanation(job: Job) -> None:
    """Say in words what a finished trace found, and link to all of it."""
    if job.state != "done":
        return
    run_id = job.run_id()
    if not run_id:
        states.note("It is done; its explanation is the newest on the page Influence.")
        return
    with states.guarded("What the explanation says"):
        files = report_of_run(run_id)
        head = report_head(files)
        test, facts = triple_at(head, 0), facts_of(files, 0)
        st.markdown(
            f"**Whole answer**, of all {scored(test, facts):,} training facts. "
            + markup.markdown(evidence(test, facts, paths_of(files, 0)))
        )
        _strongest(facts)
    links.to("influence", "Read the explanation", run=run_id)


def _strongest(facts: pd.DataFrame) -> None:
    """List the facts that made the triple more likely, the strongest first."""
    helping = facts[facts["influence"] > 0].head(NUM_FACTS)
    if helping.empty:
        states.note("None of them made it more likely.")
        return
    items = [
        markup.fill(
            _FACT,
            symbol=palette.sign_symbol(float(fact["influence"])),
            triple=markup.triple(fact["head"], fact["relation"], fact["tail"]),
        )
        for _, fact in helping.iterrows()
    ]
    markup.show(_FACTS, items=markup.join(items))
