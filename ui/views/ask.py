"""Ask: a champion's answers and the reasons for one, its text, or its predictions."""

from contextlib import suppress
from typing import cast

import streamlit as st

from clew import names
from clew.errors import UsageError
from clew.ui.components import (
    address,
    answers,
    ask_controls,
    ask_frames,
    ask_text,
    beside,
    job_view,
    markup,
    states,
)
from clew.ui.data import jobs, models, questions
from clew.ui.data.models import ModelNames, RegisteredModel
from clew.ui.data.questions import End, Why

PROMOTE_COMMAND = "clew promote --run-id RUN_ID"


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Ask", anchor=False)
    with states.guarded("The registered models"):
        champions = [model for model in models.models() if model.champion is not None]
        if not champions:
            states.nothing(
                "No model to ask yet",
                "No registered model has a champion. Promote a run on the page Models, or with "
                "this command.",
                commands=PROMOTE_COMMAND,
            )
            return
        jobs.jobs().warm_up()
        model = ask_controls.model(champions)
        task = models.task(model)
        if task == names.TASK_LANGUAGE_MODELING:
            _text(model)
        elif task == names.TASK_SEQUENCE_REGRESSION:
            _frames(model)
        else:
            _graph(model)


def _text(model: RegisteredModel) -> None:
    with states.guarded("The text"):
        asked = ask_text.question(again=_is_gone())
        if asked is not None:
            _show_next(model, questions.continue_text(models.champion_uri(model), asked))
        if answer_id := address.text("answer"):
            job_view.show(answer_id, progress=ask_text.written, result=ask_text.download)


def _frames(model: RegisteredModel) -> None:
    with states.guarded("The predictions"):
        asked = ask_frames.question(again=_is_gone())
        if asked is not None:
            _show_next(model, questions.predict_frames(models.champion_uri(model), asked))
        if answer_id := address.text("answer"):
            job_view.show(answer_id, result=ask_frames.predictions)


def _is_gone() -> bool:
    """Whether the address names an answer that this dashboard no longer has."""
    answer_id = address.text("answer")
    return bool(answer_id) and jobs.find(answer_id) is None


def _show_next(model: RegisteredModel, job: jobs.Job) -> None:
    """Put a job into the address, so that the page shows its answer."""
    address.write("model", model.name)
    address.write("answer", job.job_id)
    st.rerun()


def _graph(model: RegisteredModel) -> None:
    with states.guarded("The model's names"):
        vocabulary = models.champion_vocabulary(model)
        _question(model, vocabulary)
        with states.guarded("The answer"):
            _answers(model, vocabulary)


def _question(model: RegisteredModel, vocabulary: ModelNames) -> None:
    """Let a person ask, and start the command that answers.

    The address can be an old link: if its answer is gone, its question is asked again.
    """
    gone = _is_gone()
    asked = ask_controls.question(vocabulary, again=gone)
    if asked is not None:
        job = questions.predict(models.champion_uri(model), asked)
        with suppress(UsageError):  # too many commands run: the first explanation is slower
            questions.prepare_reasons(models.champion_uri(model), models.champion_run(model))
        if not gone:
            address.write("why", None)
        _show_next(model, job)


def _answers(model: RegisteredModel, vocabulary: ModelNames) -> None:
    answer_id = address.text("answer")
    if not answer_id:
        ask_controls.examples(models.examples(model), vocabulary)
        return

    def explain(meant: Why) -> None:
        called = ask_controls.triple_text((meant.head, meant.relation, meant.tail), vocabulary)
        job = questions.trace(models.champion_uri(model), meant, called=called)
        address.write("why", job.job_id)
        address.write("for", [meant.end, meant.head if meant.end == "head" else meant.tail])

    # The reasons are next to the answers, so that a long table does not push them out of view.
    left, right = beside.columns([1.2, 1], key="reasons", gap="medium")
    with left:
        job_view.show(
            answer_id, result=lambda job: answers.answers(job, vocabulary, explain, right)
        )
    with right:
        _reasons(explain)


def _reasons(explain: answers.Explain) -> None:
    if why_id := address.text("why"):
        st.header("Why?", anchor=False)
        meant = _meant()
        if jobs.find(why_id) is None and meant is not None:
            answers.explain_again(meant, explain)
        else:
            job_view.show(why_id, progress=answers.first_answer, result=answers.explanation)


def _meant() -> Why | None:
    """Return the triple that the address asks to explain, None if there is none."""
    end, _, answer = address.text("for").partition(",")
    if end not in ("head", "tail") or not answer:
        return None
    ends = {"head": address.text("h"), "tail": address.text("t")} | {end: answer}
    relation = address.text("r")
    if not (ends["head"] and relation and ends["tail"]):
        return None
    return Why(ends["head"], relation, ends["tail"], cast(End, end))
