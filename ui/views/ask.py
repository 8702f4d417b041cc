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
    """Let a person ask, and start the command that answers."""
    vocabulary = models.vocabulary(models.champion_run(model))
    asked = ask_controls.question(vocabulary)
    if asked is not None:
        job = jobs.predict(
            models.champion_uri(model),
            asked.head,
            asked.relation,
            asked.top_k,
            only_new=asked.only_new,
        )
        address.write("answer", job.job_id)
        address.write("why", None)
        st.rerun()


def _answers(model: RegisteredModel) -> None:
    """Show the answers; explain the one that a person asks about."""
    answer_id = address.text("answer")
    if not answer_id:
        return

    def explain(head: str, relation: str, tail: str) -> None:
        job = jobs.trace(models.champion_uri(model), head, relation, tail)
        address.write("why", job.job_id)

    job_view.show(answer_id, result=lambda job: ask_controls.answers(job, explain))
    why = address.text("why")
    if why:
        st.subheader("Why?", anchor=False)
        job_view.show(why, result=ask_controls.explanation)
