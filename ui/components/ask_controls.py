"""The question form of the page Ask, its answers, and the way to an explanation."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from clew.errors import ClewError
from ui.components import address, links, markup, states
from ui.data.jobs import Job
from ui.data.models import RegisteredModel, Vocabulary, complete

MAX_MATCHES = 60
ROW_HEIGHT = 36
MAX_HEIGHT = 758
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")

Explain = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Question:
    """What a person asks, under the data set's own names."""

    head: str
    relation: str
    top_k: int
    only_new: bool
    """Leave out what the training data say already."""


def model(found: Sequence[RegisteredModel]) -> RegisteredModel:
    """Let a person choose whom to ask."""
    by_name = {model.name: model for model in found}
    if len(found) == 1:
        return found[0]
    chosen = st.selectbox("Model", list(by_name), key="model", bind="query-params")
    return by_name[chosen] if chosen in by_name else found[0]


def question(vocabulary: Vocabulary, *, again: bool) -> Question | None:
    """Let a person type a head and a relation; return the question when they send it.

    With `again`, return at once what the address asks, if the model knows its names.
    """
    first, second, third, fourth = st.columns([2, 2.4, 2.2, 1.2], vertical_alignment="bottom")
    linked = {name: (name, label) for name, label in vocabulary.entities}.get(address.text("h"))
    text = first.text_input(
        "Find a head",
        key="find",
        bind="query-params",
        type="search",
        live=True,
        placeholder="begin to type a name",
        help="Part of a name or of an id.",
    )
    matches = complete(vocabulary.entities, text, MAX_MATCHES)
    if linked is not None and not text:
        matches = list(dict.fromkeys([linked, *matches]))
    head = second.selectbox(
        "Head",
        matches,
        format_func=_term,
        placeholder="no name matches",
        help=f"The first {MAX_MATCHES} matches of {len(vocabulary.entities):,} names.",
    )
    relations = [name for name, _ in vocabulary.relations]
    named = address.text("r")
    relation = third.selectbox(
        "Relation",
        vocabulary.relations,
        index=relations.index(named) if named in relations else 0,
        format_func=_term,
    )
    top_k = fourth.number_input("Answers", 1, 200, 10, key="top", bind="query-params")
    with st.container(horizontal=True, vertical_alignment="center"):
        asked = st.button(
            "Ask", type="primary", key="ask", disabled=head is None or relation is None
        )
        only_new = st.toggle(
            "New answers only",
            key="new",
            bind="query-params",
            help="Leave out answers that the training data say already.",
        )
    if again and linked is not None and named in relations:
        return Question(linked[0], named, int(top_k), only_new)
    if not asked or head is None or relation is None:
        return None
    address.write("h", head[0])
    address.write("r", relation[0])
    return Question(head[0], relation[0], int(top_k), only_new)


def _term(term: tuple[str, str]) -> str:
    name, label = term
    return label if name == label else f"{label}  ({name})"


def answers(job: Job, explain: Explain) -> None:
    """Show the answers of a finished job, and offer to explain a ticked one."""
    content = job.result()
    if job.state != "done" or content is None:
        return
    for note in content.get("notes", []):
        states.note(str(note))
    for prediction in content.get("predictions", []):
        _prediction(prediction, explain, key=job.job_id)


def _prediction(prediction: dict[str, Any], explain: Explain, *, key: str) -> None:
    head, relation = str(prediction.get("head", "")), str(prediction.get("relation", ""))
    found = [answer for answer in prediction.get("answers", []) if isinstance(answer, dict)]
    st.html(markup.triple(head, relation, "?"))
    event = st.dataframe(
        _frame(found),
        key=f"answers-{key}",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        row_height=ROW_HEIGHT,
        placeholder="–",
        height=min(38 + ROW_HEIGHT * max(len(found), 1), MAX_HEIGHT),
        column_config={
            "Score": st.column_config.NumberColumn(
                format="%.3f", help="The model's own score (a logit): larger is more likely."
            ),
            "Probability": st.column_config.NumberColumn(
                format="percent",
                help="Of being the answer, if none of the known ones is; fitted on the validation "
                "data. Known answers have none.",
            ),
            "Known": st.column_config.TextColumn(help="Whether the training data say so already."),
        },
    )
    rows = [row for row in event.selection.rows if row < len(found)]
    if not rows:
        st.caption("Tick an answer to ask why.")
        return
    tail = str(found[rows[0]].get("tail", ""))
    st.button(
        "Why?",
        key=f"why-{key}",
        type="primary",
        on_click=_start,
        args=(explain, (head, relation, tail)),
    )


def explain_again(triple: Sequence[str], explain: Explain) -> None:
    """Offer the explanation that a link meant, which this dashboard does not know any more."""
    head, relation, tail = triple
    st.html(markup.triple(head, relation, tail))
    states.note("This explanation is on the page Influence if it was finished; or make a new one.")
    st.button(
        "Explain again", type="primary", on_click=_start, args=(explain, (head, relation, tail))
    )


def _start(explain: Explain, triple: tuple[str, str, str]) -> None:
    """Start an explanation from a button; too many at once is a message, not an error."""
    try:
        explain(*triple)
    except ClewError as error:
        st.toast(markup.markdown(str(error)), icon="⚠️")


def _frame(found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    known = {True: "● known", False: "new", None: "–"}
    frame = pd.DataFrame(
        {
            "Rank": [answer.get("rank") for answer in found],
            "Answer": [str(answer.get("label") or answer.get("tail", "")) for answer in found],
            "Id": [str(answer.get("tail", "")) for answer in found],
            "Score": [answer.get("score") for answer in found],
            "Probability": [answer.get("probability") for answer in found],
            "Known": [known.get(answer.get("known"), "–") for answer in found],
        }
    ).dropna(axis="columns", how="all")
    return frame.drop(columns="Id") if frame["Id"].equals(frame["Answer"]) else frame


def explanation(job: Job) -> None:
    """Link to the explanation that a finished trace has made."""
    if job.state != "done":
        return
    run_id = traced_run(job)
    if run_id:
        links.to("influence", "Read the explanation", run=run_id)
    else:
        states.note("It is done; its explanation is the newest on the page Influence.")


def traced_run(job: Job) -> str:
    """Return the id of the trace run that a job names, empty if it names none."""
    for event in job.events():
        if isinstance(run_id := event.get("run_id"), str):
            return run_id
    found = RUN_ID.findall(job.output())
    return found[0] if found else ""
