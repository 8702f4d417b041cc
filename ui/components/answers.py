"""Questions to models and their answers: triples, and the reasons for one; each is a job.

The reasons come first from the facts near the triple, then from all facts.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.column_config import NumberColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from clew.runs.reading.facts import evidence, place_text, scored
from clew.runs.reading.models import ModelNames
from clew.runs.reading.reports import ReportFiles
from clew.ui import access
from clew.ui.components import basics, jobs, tables
from clew.ui.components.explanations import (
    facts_of,
    paths_of,
    report_head,
    report_of_run,
    triple_at,
)
from clew.ui.components.jobs import Job
from clew.ui.work import FIRST_ANSWER_FILE, End, Preparation, Why


@st.cache_resource(max_entries=64, show_spinner=False)
def prepare_reasons(model: str, run_id: str) -> Job:
    """Start the work that all explanations of a champion share, while a person reads answers.

    The result is cached, so that this runs once per champion.

    Args:
        model: The URI of the champion.
        run_id: The champion's training run.

    Raises:
        UsageError: Too many jobs are running.
    """
    return jobs.jobs().start(Preparation(model), title=f"Prepare {run_id}", action="ask")


MAX_HEIGHT = 758
SMALLEST_SHOWN = 1e-4
PROBABILITY = (
    "Chance of being the answer, if no known one is; fitted on the validation data. Known "
    "answers have none."
)
ABOUT = (
    "{name} is {place} of {candidates:,} candidates (entities except other known answers)"
    "{probability}{in_set}; {known}."
)
NUM_FACTS = 5
_FACT = '<li><span class="clew-mark clew-for">{symbol}</span>{triple}</li>'
_FACTS = (
    '<ul class="clew-checks" aria-label="Facts that made it more likely, the strongest first">'
    "{items}</ul>"
)

Explain = Callable[[Why], None]


def answers(job: Job, vocabulary: ModelNames, explain: Explain, beside: DeltaGenerator) -> None:
    """Show the answers of a finished job, and `beside` them a button to explain a ticked one."""
    content = job.result()
    if job.state != "done" or content is None:
        return
    for note in content.get("notes", []):
        basics.note(str(note))
    for number, prediction in enumerate(content.get("predictions", [])):
        _prediction(prediction, vocabulary, explain, beside, key=f"{job.job_id}-{number}")


def _prediction(
    prediction: dict[str, Any],
    vocabulary: ModelNames,
    explain: Explain,
    beside: DeltaGenerator,
    *,
    key: str,
) -> None:
    given = "head" if "head" in prediction else "tail"
    end: End = "tail" if given == "head" else "head"
    relation, entity = str(prediction.get("relation", "")), str(prediction.get(given, ""))
    label, entities = dict(vocabulary.relations).get(relation), dict(vocabulary.entities)
    shown = {given: entities.get(entity, entity), end: "?"}
    st.html(basics.triple(shown["head"], label or relation, shown["tail"]))
    if prediction.get("warning"):
        basics.warning(str(prediction["warning"]))
    if isinstance(answer_set := prediction.get("answer_set"), dict):
        st.markdown(basics.markdown(answer_set.get("sentence", "")))

    def why(answer: dict[str, Any]) -> Why:
        other = str(answer.get(end, ""))
        head, tail = (entity, other) if end == "tail" else (other, entity)
        return Why(head, relation, tail, end)

    asked = prediction.get("asked")
    if isinstance(asked, dict):
        _about(asked, end)
        with beside:
            why_button(f"Why this rank as {end}?", why(asked), explain, key=f"why-rank-{key}")
    found = [answer for answer in prediction.get("answers", []) if isinstance(answer, dict)]
    # The answer whose explanation is in the address is ticked at first.
    wanted = basics.address("why") and basics.address("for")
    table = frame(found, end)
    tables.export(table, f"answers_{end}.csv")
    ticked = tables.ticked(
        table,
        found,
        key=f"answers-{key}",
        first=next((answer for answer in found if wanted == f"{end},{answer.get(end)}"), None),
        alt="Answers, the best first",
        placeholder="–",
        most=MAX_HEIGHT,
        column_config={
            "Score": NumberColumn(
                format="%.3f", help="The model's own score (a logit): larger is more likely."
            ),
            "Probability": NumberColumn(format="percent", help=PROBABILITY),
            "In the set": TextColumn(help="Whether the answer set has it."),
            "Known": TextColumn(help="Whether the training data have it."),
        },
    )
    with beside:
        if ticked:
            why_button("Why?", why(ticked[0]), explain, key=f"why-{key}")
        else:
            article = "another" if basics.address("why") else "a"
            st.caption(f"Tick {article} {end} to ask why.")


def _about(asked: dict[str, Any], end: str) -> None:
    probability, known, in_set = (asked.get(key) for key in ("probability", "known", "in_set"))
    told = {
        True: "the training data have this triple",
        False: "the training data lack this triple",
        None: "it is not known if the training data have this triple",
    }
    said = "in the answer set" if in_set else "not in the answer set"
    new = f", would be {said} if it were new" if known else f", {said}"  # sets have no known answer
    text = ABOUT.format(
        name=asked.get("label") or asked.get(end, ""),
        place=place_text(float(asked["rank"])),
        candidates=int(asked["num_candidates"]),
        probability="" if probability is None else f", probability {percent(probability)}",
        in_set="" if in_set is None else new,
        known=told[known],
    )
    st.markdown(basics.markdown(text))


def percent(probability: float) -> str:
    """Return a probability in percent; `below ...` if it would be rounded to zero."""
    if 0 < probability < SMALLEST_SHOWN:
        return f"below {SMALLEST_SHOWN:.2%}"
    return f"{probability:.2%}" if probability < 0.1 else f"{probability:.0%}"


def frame(found: Sequence[dict[str, Any]], end: str) -> pd.DataFrame:
    """Return the answers as a table; `end` is the end of the triple that was asked for."""
    known = {True: "● known", False: "new", None: "–"}
    in_set = {True: "✓", False: "", None: None}
    table = pd.DataFrame(
        {
            "Rank": [answer.get("rank") for answer in found],
            "Answer": [str(answer.get("label") or answer.get(end, "")) for answer in found],
            "Id": [str(answer.get(end, "")) for answer in found],
            "Score": [answer.get("score") for answer in found],
            "Probability": [answer.get("probability") for answer in found],
            "In the set": [in_set[answer.get("in_set")] for answer in found],
            "Known": [known.get(answer.get("known"), "–") for answer in found],
        }
    ).dropna(axis="columns", how="all")
    return table.drop(columns="Id") if table["Id"].equals(table["Answer"]) else table


def why_button(label: str, why: Why, explain: Explain, *, key: str) -> None:
    """Show a button that starts the explanation of a triple."""
    st.button(
        label,
        key=key,
        type="primary",
        disabled=not access.may("explain"),
        on_click=basics.attempt(partial(explain, why)),
    )


def explain_again(why: Why, explain: Explain) -> None:
    """Offer to make the explanation of a link again, because this dashboard has lost it."""
    st.html(basics.triple(why.head, why.relation, why.tail))
    basics.note("If this explanation was finished, it is on the page Influence; or make it again.")
    why_button("Explain again", why, explain, key="explain-again")


def first_answer(job: Job) -> None:
    """Show the explanation from the facts near the triple, until all facts have been compared."""
    path = job.folder / FIRST_ANSWER_FILE
    if job.state == "done" or not path.is_file():
        return
    files = ReportFiles(json=path)
    head = report_head(files)
    test, facts = triple_at(head, 0), facts_of(files, 0)
    near = scored(test, facts)
    others = (head.train_size or near) - near
    fate = "are still being compared" if job.state == "running" else "were not compared"
    st.markdown(
        f"**First answer**, from the {near:,} training facts with "
        f"{basics.markdown(test['head'])} or {basics.markdown(test['tail'])}. The other "
        f"{others:,} {fate}; there may be stronger ones."
    )
    _strongest(facts)


def explanation(job: Job) -> None:
    """Show the result of a finished trace in words, and link to the whole explanation."""
    if job.state != "done":
        return
    run_id = job.run_id()
    if not run_id:
        basics.note("Done: the explanation is the newest one on the page Influence.")
        return
    with basics.guarded("The explanation"):
        files = report_of_run(run_id)
        head = report_head(files)
        test, facts = triple_at(head, 0), facts_of(files, 0)
        st.markdown(
            f"**Whole answer**, from all {scored(test, facts):,} training facts. "
            + basics.markdown(evidence(test, facts, paths_of(files, 0)))
        )
        _strongest(facts)
    basics.link("influence", "Read the explanation", run=run_id)


def _strongest(facts: pd.DataFrame) -> None:
    """List the facts that made the triple more likely, the strongest first."""
    helping = facts[facts["influence"] > 0].head(NUM_FACTS)
    if helping.empty:
        basics.note("None of them made it more likely.")
        return
    items = [
        basics.fill(
            _FACT,
            symbol=basics.sign_symbol(float(fact["influence"])),
            triple=basics.triple(fact["head"], fact["relation"], fact["tail"]),
        )
        for _, fact in helping.iterrows()
    ]
    basics.show(_FACTS, items=basics.join(items))
