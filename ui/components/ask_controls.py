"""The question form of the page Ask, and example questions."""

from collections.abc import Sequence

import streamlit as st

from clew.ui import access
from clew.ui.components import address, markup, states
from clew.ui.components.entity_box import entity_box, shown
from clew.ui.data.models import ModelNames, RegisteredModel
from clew.ui.data.questions import Question

HEAD, RELATION, TAIL = "ask-head", "ask-relation", "ask-tail"
MODEL = "ask-model"
LEVELS = {"90 %": 0.9, "80 %": 0.8, "95 %": 0.95, "none": None}
ASK_NOW = "now"
"""In the address, represents the answer to a question that has just been chosen."""


def model(found: Sequence[RegisteredModel]) -> RegisteredModel:
    """Let a person choose the model to ask.

    After the first question the address names the model, even the only one, so that a link still
    asks the same model once there are others. If it is gone, another model is not asked instead.
    """
    by_name = {model.name: model for model in found}
    linked = address.text("model")
    if linked in by_name:
        st.session_state[MODEL] = linked
    elif linked:
        states.warning(f"The address names the model {linked}, which has no champion here.")
        _forget_answer()
    if len(found) == 1:
        return found[0]
    chosen = st.selectbox("Model", list(by_name), key=MODEL, on_change=_choose_model)
    return by_name[chosen] if chosen in by_name else found[0]


def _choose_model() -> None:
    address.write("model", st.session_state[MODEL])
    _forget_answer()


def _forget_answer() -> None:
    for key in ("answer", "why", "for"):
        address.write(key, None)


def question(vocabulary: ModelNames, *, again: bool) -> Question | None:
    """Let a person fill in a question; return it when they send it.

    With `again`, return the question in the address at once, if the model knows its names.
    """
    linked = _linked(vocabulary) if again else None
    first, second, third, fourth, fifth = st.columns([2.4, 2, 2.4, 1, 1.1])
    with first:
        head = entity_box("Head", HEAD, vocabulary, start=address.text("h"), placeholder="what …?")
    with second:
        relation = _relation(vocabulary)
    with third:
        tail = entity_box("Tail", TAIL, vocabulary, start=address.text("t"), placeholder="… what?")
    top_k = int(fourth.number_input("Answers", 1, 200, 10, key="top", bind="query-params"))
    level = LEVELS[
        fifth.selectbox(
            "Answer set",
            list(LEVELS),
            key="set",
            bind="query-params",
            help="Mark a set of answers that has the new answer with at least this "
            "probability: calibrated on validation data, measured on test data.",
        )
    ]
    with st.container(horizontal=True, vertical_alignment="center"):
        ready = bool(relation and (head or tail)) and access.may("ask")
        sent = st.button("Ask", type="primary", key="ask", disabled=not ready)
        only_new = st.toggle(
            "New answers only",
            key="new",
            bind="query-params",
            help="Leave out answers that the training data have.",
        )
        st.caption("Leave one end empty to ask for it, or fill in both to ask about that triple.")
    if linked is not None:
        return Question(*linked, top_k, only_new, level)
    if not sent:
        return None
    for key, value in (("h", head), ("r", relation), ("t", tail)):
        address.write(key, value)
    return Question(head, relation, tail, top_k, only_new, level)


def _linked(vocabulary: ModelNames) -> tuple[str, str, str] | None:
    """Return head, relation and tail of the address, None if the model cannot be asked that."""
    head, relation, tail = (address.text(key) for key in ("h", "r", "t"))
    names = {name for name, _ in vocabulary.entities} | {""}
    known = head in names and tail in names and relation in dict(vocabulary.relations)
    return (head, relation, tail) if known and (head or tail) else None


def _relation(vocabulary: ModelNames) -> str:
    labels = dict(vocabulary.relations)
    if RELATION not in st.session_state and address.text("r") in labels:
        st.session_state[RELATION] = address.text("r")
    chosen = st.selectbox(
        "Relation",
        list(labels),
        key=RELATION,
        format_func=lambda name: shown(name, labels[name]),
        filter_mode="contains",
    )
    return chosen or ""


def examples(found: Sequence[tuple[str, str, str]], vocabulary: ModelNames) -> None:
    """Offer example questions; an empty end is the one that is asked for."""
    if not found:
        return
    st.header("For example", anchor=False)
    for number, (head, relation, tail) in enumerate(found):
        text = triple_text((head, relation, tail), vocabulary)
        why = " – how likely is it, and why?" if head and tail else ""
        st.button(
            markup.markdown(text + why),
            key=f"example-{number}",
            on_click=_take,
            disabled=not access.may("ask"),
            args=((head, relation, tail),),
        )


def triple_text(triple: tuple[str, str, str], vocabulary: ModelNames) -> str:
    """Return a triple as text with its labels; an empty end becomes `what?`."""
    entities, relations = dict(vocabulary.entities), dict(vocabulary.relations)
    head, relation, tail = triple
    ends = [entities.get(end, end) or "what?" for end in (head, tail)]
    return f"{ends[0]} · {relations.get(relation, relation)} · {ends[1]}"


def _take(asked: tuple[str, str, str]) -> None:
    keys = ((HEAD, "h"), (RELATION, "r"), (TAIL, "t"))
    for (state, key), value in zip(keys, asked, strict=True):
        st.session_state[state] = value or None
        address.write(key, value)
    address.write("answer", ASK_NOW)
