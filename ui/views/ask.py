"""Ask: the champion's best answers to a question, and why it believes one of them."""

import streamlit as st

from ui.components import address, ask_controls, job_view, markup, states
from ui.data import jobs, models
from ui.data.models import RegisteredModel

PROMOTE_COMMAND = "clew promote --run-id RUN_ID"


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Ask", anchor=False)
    with states.guarded("The registered models"):
        champions = [model for model in models.models() if model.champion is not None]
        if not champions:
            states.nothing(
                "Nobody to ask yet",
                "No registered model has a champion. Promote a run on the page Models, or with "
                "this command.",
                commands=PROMOTE_COMMAND,
            )
            return
        model = ask_controls.model(champions)
        with states.guarded("The model's names"):
            _question(model)
        with states.guarded("The answer"):
            _answers(model)


def _question(model: RegisteredModel) -> None:
    """Let a person ask, and start the command that answers.

    An address may come from another day: what it asks is asked again if its answer is gone.
    """
    answer_id = address.text("answer")
    gone = bool(answer_id) and jobs.find(answer_id) is None
    asked = ask_controls.question(models.vocabulary(models.champion_run(model)), again=gone)
    if asked is not None:
        job = jobs.predict(
            models.champion_uri(model),
            asked.head,
            asked.relation,
            asked.top_k,
            only_new=asked.only_new,
        )
        address.write("answer", job.job_id)
        if not gone:
            address.write("why", None)
            address.write("t", None)
        st.rerun()


def _answers(model: RegisteredModel) -> None:
    """Show the answers; explain the one that a person asks about."""
    answer_id = address.text("answer")
    if not answer_id:
        return

    def explain(head: str, relation: str, tail: str) -> None:
        job = jobs.trace(models.champion_uri(model), head, relation, tail)
        address.write("why", job.job_id)
        address.write("t", tail)

    job_view.show(answer_id, result=lambda job: ask_controls.answers(job, explain))
    why, asked = address.text("why"), [address.text(key) for key in ("h", "r", "t")]
    if not why:
        return
    st.subheader("Why?", anchor=False)
    if jobs.find(why) is None and all(asked):
        ask_controls.explain_again(asked, explain)
    else:
        job_view.show(why, result=ask_controls.explanation)
