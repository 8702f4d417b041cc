"""Ask: a champion's answers and the reasons for one, its text, or its predictions."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import streamlit as st

from clew import names
from clew.errors import UsageError
from clew.runs.reading.models import Entry, Learned, ModelNames, RegisteredModel, complete
from clew.ui import access
from clew.ui.components import answers, basics, jobs, runs, windows
from clew.ui.work import NUM_ASKED, AskedFrames, AskedText, End, Question, Why

HEAD, RELATION, TAIL = "ask-head", "ask-relation", "ask-tail"
MODEL, MOST = "ask-model", "top"
INVERSES = f"{names.PARAMETER_PREFIX}data.inverse_relations"
CHANGED, OWN_RELATION = "ask-changed", "ask-own-relation"
LEVELS = {"90 %": 0.9, "80 %": 0.8, "95 %": 0.95, "none": None}
ASK_NOW = "now"
"""In the address, represents the answer to a question that has just been chosen."""
MAX_LISTED = 10_000
"""Entries that the browser gets; in a larger graph, the server looks up what a person types."""
MAX_MATCHES = 12
SEPARATOR = "\n"
"""Between the name of an entity and its synonym, in the value of an option."""


def render() -> None:
    st.title("Ask", anchor=False)
    with basics.guarded("The registered models"):
        champions = [model for model in runs.models() if model.champion is not None]
        if not champions:
            basics.nothing(
                "No model to ask yet",
                "No registered model has a champion. Promote a run on the page Models, or with "
                "this command.",
                commands="clew promote --run-id RUN_ID",
            )
            return
        jobs.jobs().warm_up()
        model = choose_model(champions)
        version = runs.champion(model)
        tags = version.tags if version is not None else {}
        task = tags.get(names.TAG_TASK, names.TASK_LINK_PREDICTION)
        if task == names.TASK_LANGUAGE_MODELING:
            _text(model)
        elif task == names.TASK_SEQUENCE_REGRESSION:
            _frames(model)
        else:
            _graph(model)


@basics.guarded("The text")
def _text(model: RegisteredModel) -> None:
    asked = windows.asked_text(runs.champion_uri(model), again=_is_gone())
    if asked is not None:
        _ask(model, asked)
    if answer_id := basics.address("answer"):
        jobs.show(answer_id, progress=windows.written, result=windows.download_text)


@basics.guarded("The predictions")
def _frames(model: RegisteredModel) -> None:
    asked = windows.asked_frames(runs.champion_uri(model), again=_is_gone())
    if asked is not None:
        if asked[1]:
            access.authorize("upload")
        _ask(model, *asked)
    if answer_id := basics.address("answer"):
        jobs.show(answer_id, result=windows.predictions)


def _is_gone() -> bool:
    """Whether the address names an answer that this dashboard no longer has."""
    answer_id = basics.address("answer")
    return bool(answer_id) and jobs.jobs().find(answer_id) is None


def _ask(
    model: RegisteredModel,
    asked: Question | AskedText | AskedFrames,
    files: dict[str, bytes] | None = None,
    *,
    champion_run: str = "",
) -> None:
    """Start the job that answers, and put it into the address, so that the page shows its answer.

    With `champion_run`, also start the work that all explanations of the champion share.
    """
    _give_up("answer", "ask")
    job = jobs.jobs().start(asked, title=f"Ask {asked.model}", action="ask", files=files)
    if champion_run:
        with suppress(UsageError):  # too many commands run: the first explanation is slower
            answers.prepare_reasons(asked.model, champion_run)
    basics.write_address("model", model.name)
    basics.write_address("answer", job.job_id)
    st.rerun()


def _give_up(key: str, action: access.Action) -> None:
    """Cancel the person's own job that the address has under a key: nobody waits for it."""
    before = jobs.jobs().find(basics.address(key))
    if before is not None and (before.action, before.person) == (action, access.person()):
        before.cancel()


@basics.guarded("The model's names")
def _graph(model: RegisteredModel) -> None:
    """Let a person ask, and show the answers.

    A link asks its question when it is opened, and again if its answer is gone.
    """
    vocabulary, learned = runs.champion_vocabulary(model), runs.learned(model)
    is_opened = RELATION not in st.session_state and not basics.address("answer")
    linked = _is_gone() or (is_opened and basics.address("model") in ("", model.name))
    again = linked and access.may("ask")
    version = runs.champion(model)
    run = None if version is None else version.run
    if run is not None and run.params.get(INVERSES) == "false":
        fitting = tuple(each for each in learned.examples if each[0])
        learned = replace(learned, examples=fitting, tails_only=True)
    asked = asked_question(runs.champion_uri(model), vocabulary, learned, again=again)
    if asked is not None:
        if not again:
            basics.write_address("why", None)
        _ask(model, asked, champion_run=version.run_id if version is not None else "")
    with basics.guarded("The answer"):
        _answers(model, vocabulary, learned)


def _answers(model: RegisteredModel, vocabulary: ModelNames, learned: Learned) -> None:
    answer_id = basics.address("answer")
    if not answer_id:
        show_examples(learned.examples, vocabulary)
        return

    def explain(why: Why) -> None:
        called = triple_text((why.head, why.relation, why.tail), vocabulary)
        meant = replace(why, model=runs.champion_uri(model))
        _give_up("tuned", "explain")
        job = jobs.jobs().start(meant, title=f"Explain {called}", action="explain")
        basics.write_address("why", job.job_id)
        basics.write_address("for", [why.end, why.head if why.end == "head" else why.tail])

    # The reasons are next to the answers, so that a long table does not push them out of view.
    left, right = basics.columns([1.2, 1], key="reasons", gap="medium")
    with left:
        about = answers.About(vocabulary, learned, explain, int(st.session_state[MOST]), right)
        jobs.show(answer_id, result=lambda job: answers.answers(job, about))
    if why_id := basics.address("why"):
        with right:
            st.header("Why?", anchor=False)
            jobs.show(why_id, progress=answers.first_answer, result=answers.explanation)


def choose_model(found: Sequence[RegisteredModel]) -> RegisteredModel:
    """Let a person choose the model to ask.

    After the first question the address names the model, even the only one, so that a link still
    asks the same model once there are others. If it is gone, another model is not asked instead.
    """
    by_name = {model.name: model for model in found}
    linked = basics.address("model")
    if linked in by_name:
        st.session_state[MODEL] = linked
    elif linked:
        basics.warning(f"The address names the model {linked}, which has no champion here.")
        _forget_answer()
    if len(found) == 1:
        return found[0]

    def choose() -> None:
        basics.write_address("model", st.session_state[MODEL])
        _forget_answer()

    chosen = st.selectbox("Model", list(by_name), key=MODEL, on_change=choose)
    return by_name[chosen] if chosen in by_name else found[0]


def _forget_answer() -> None:
    for key in ("answer", "why", "for", "tuned"):
        basics.write_address(key, None)


def asked_question(
    model: str, vocabulary: ModelNames, learned: Learned, *, again: bool
) -> Question | None:
    """Let a person fill in a question; return it when it is complete, and after each change.

    With `again`, return the question in the address at once, if the model knows its names.
    """
    labels = dict(vocabulary.relations)
    start = basics.address("h"), basics.address("r"), basics.address("t")
    if RELATION not in st.session_state and start[1] in labels:
        st.session_state[RELATION], st.session_state[OWN_RELATION] = start[1], True
    sentence = st.container()
    if not access.may("ask"):
        basics.note("Your role can only read; a reviewer can ask.")
    first, second, third, fourth = st.columns([2.4, 2, 2.4, 1], vertical_alignment="bottom")
    with first:
        head = entity_box("Head", HEAD, vocabulary, start=start[0], placeholder="which …?")
    with third:
        tail = entity_box("Tail", TAIL, vocabulary, start=start[2], placeholder="… which?")
    given = {"head": vocabulary.kinds.get(head, ""), "tail": vocabulary.kinds.get(tail, "")}
    often = {name: learned.number(name, **given) for name in labels}
    fitting = sorted((name for name in labels if often[name]), key=lambda name: -often[name])
    chosen = st.session_state.get(RELATION) if st.session_state.get(OWN_RELATION) else None
    listed = [*dict.fromkeys([*([chosen] if chosen in labels else []), *(fitting or labels)])]
    if chosen not in labels:
        st.session_state[RELATION] = listed[0]
    relation = second.selectbox(
        "Relation",
        listed,
        key=RELATION,
        on_change=_changed,
        args=(OWN_RELATION,),
        format_func=lambda name: shown(name, labels[name]),
        filter_mode="contains",
        help="The most frequent ones of such a head and tail first.",
    )
    with fourth.popover("Options", width="stretch"):
        level = _level()
    sentence.header(_asks(vocabulary, learned, head, relation, tail), anchor=False)
    entities = dict(vocabulary.entities)
    is_question = bool(start[0] or start[2]) and start[1] in labels
    if again and is_question and {start[0], start[2]} <= entities.keys() | {""}:
        return Question(model, *start, level)
    changed = st.session_state.pop(CHANGED, False)
    asked = (head, relation, tail)
    if tail and not head and learned.tails_only:
        basics.note("This model answers for tails only: it has no inverse relations. Give a head.")
        return None
    if not (changed and (head or tail) and access.may("ask")):
        return None
    for key, value in zip("hrt", asked, strict=True):
        basics.write_address(key, value)
    return Question(model, *asked, level)


def _level() -> float | None:
    """Let a person choose how many answers to see, and return the level of the marked set."""
    st.number_input("New answers", 1, NUM_ASKED, 10, key=MOST, bind="query-params")
    chosen = st.selectbox(
        "Answer set",
        list(LEVELS),
        key="set",
        bind="query-params",
        on_change=_changed,
        help="Mark a set of answers that has the new answer with at least this probability: "
        "calibrated on validation data, measured on test data.",
    )
    return LEVELS[chosen]


def _asks(vocabulary: ModelNames, learned: Learned, head: str, relation: str, tail: str) -> str:
    """Return the question as a sentence; an empty end is what is asked for."""
    entities = dict(vocabulary.entities)

    def told(name: str, end: End, which: str) -> str:
        if name:
            return f"**{basics.markdown(entities.get(name, name))}**"
        kinds = sorted(map(answers.kind_text, learned.usual(relation, end)))
        text = " or ".join(kinds) if len(kinds) < 4 else ""
        return f"{which} {basics.markdown(text) or 'entity'}"

    named = basics.markdown(dict(vocabulary.relations)[relation])
    return f"{told(head, 'head', 'Which')} **{named}** {told(tail, 'tail', 'which')}?"


def _changed(*flags: str) -> None:
    st.session_state.update(dict.fromkeys((CHANGED, *flags), True))


def show_examples(found: Sequence[tuple[str, str, str]], vocabulary: ModelNames) -> None:
    """Offer example questions; an empty end is the one that is asked for."""
    if not found:
        return
    st.header("For example", anchor=False)
    is_off = not access.may("ask")
    for number, asked in enumerate(found):
        why = "" if "" in asked else " – how likely is it, and why?"
        label = basics.markdown(triple_text(asked, vocabulary) + why)
        st.button(label, f"example-{number}", on_click=_take, args=(asked,), disabled=is_off)


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
        basics.write_address(key, value)
    st.session_state[OWN_RELATION] = True
    basics.write_address("answer", ASK_NOW)


def entity_box(
    label: str, key: str, vocabulary: ModelNames, *, start: str, placeholder: str
) -> str:
    """Let a person choose an entity, `start` at first; return its name, empty if none is chosen."""
    entries = {
        f"{entry.name}{SEPARATOR}{entry.synonym}" if entry.synonym else entry.name: entry
        for entry in vocabulary.entries
    }
    if key not in st.session_state and start in entries:
        st.session_state[key] = start
    listed = list(entries)[:MAX_LISTED]
    if (chosen := st.session_state.get(key)) in entries and chosen not in listed:
        listed.append(chosen)  # the browser sends back an option's text; this maps it to the entry
    synonyms = ", of a synonym" if vocabulary.synonyms else ""
    typed = st.selectbox(
        label,
        listed,
        index=None,
        key=key,
        on_change=_changed,
        format_func=lambda value: entry_text(entries[value]) if value in entries else str(value),
        filter_mode="contains",
        accept_new_options=len(entries) > MAX_LISTED,
        placeholder=placeholder,
        help=f"Type any part of a name{synonyms} or of an id; the model knows "
        f"{len(vocabulary.entities):,}.",
    )
    if not typed or typed in entries:
        return (typed or "").partition(SEPARATOR)[0]
    return _looked_up(typed, key, vocabulary)


def _looked_up(text: str, key: str, vocabulary: ModelNames) -> str:
    matches = complete(vocabulary.entries, text, MAX_MATCHES)
    wanted = text.strip().casefold()
    exact = [entry for entry in matches if wanted in map(str.casefold, entry.texts)]
    found = {entry.name: entry for entry in exact or matches}
    if not found:
        basics.note(f"No name, synonym or id contains {text!r}.")
    if len(found) < 2:
        return next(iter(found), "")
    chosen = st.pills(
        "Which one?",
        sorted(found, key=lambda name: (not found[name].kind, found[name].kind)),
        key=f"{key}-which",
        on_change=_changed,
        format_func=lambda name: basics.markdown(entry_text(found.get(name) or Entry(name, name))),
    )
    return chosen or ""


def entry_text(entry: Entry) -> str:
    """Return the text of an entity: its kind and the matching synonym, if any, and its label.

    The kind comes first, because lists have no headings and cut long text.
    """
    text = shown(entry.name, entry.label)
    if entry.synonym:
        text = f"{entry.synonym} = {text}"
    return f"{entry.kind}: {text}" if entry.kind else text


def shown(name: str, label: str) -> str:
    """Return the label of an entity or a relation, and its name if that differs."""
    return label if name == label else f"{label}  ({name})"
