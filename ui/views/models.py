"""Models: the registered models, the version that answers questions, and promotion."""

import streamlit as st

from clew.ui.components import (
    address,
    job_view,
    links,
    markup,
    model_controls,
    model_tables,
    states,
)
from clew.ui.data import models
from clew.ui.data.models import RegisteredModel, Version
from clew.ui.data.runs import run_by_id

REGISTER_COMMAND = "clew promote --run-id RUN_ID --name NAME"


def render() -> None:
    """Show the page."""
    markup.style()
    st.title("Models", anchor=False)
    with states.guarded("The promotion"):
        _job()
    chosen: RegisteredModel | None = None
    with states.guarded("The registered models"):
        found = models.models()
        chosen = model_controls.model(found) if found else None
        if chosen is None:
            states.nothing(
                "No registered models yet",
                "Promote a run below or with this command: its best checkpoint becomes a model.",
                commands=REGISTER_COMMAND,
            )
        else:
            _model(chosen)
    with states.guarded("The promotion of a run"):
        _promote()


def _model(model: RegisteredModel) -> None:
    current = models.champion(model)
    if current is not None:
        model_tables.champion(model, current)
    st.header("Versions", anchor=False)
    ticked = model_tables.versions(models.versions(model))
    if ticked is not None:
        _version(ticked)
    if model_controls.roll_back(model):
        address.write("job", models.roll_back(model.name).job_id)
        st.rerun()


def _version(version: Version) -> None:
    model_tables.lineage(version)
    if version.run is not None:
        with st.container(horizontal=True):
            links.to("compare", "Its training run", runs=version.run_id)
            links.to("ask", "Ask the champion", model=version.model)


def _promote() -> None:
    """Let a person promote a run, or only check whether it can be promoted."""
    st.header("Promote a run", anchor=False)
    wanted = model_controls.promotion()
    if wanted is None:
        return
    if run_by_id(wanted.run_id) is None:
        message = f"no run {wanted.run_id} in the store; it may have been deleted"
        states.problem("The run", message, done="promoted")
        return
    job = models.promote(
        wanted.run_id,
        wanted.name,
        dry_run=wanted.dry_run,
        force=wanted.force,
    )
    address.write("job", job.job_id)
    st.rerun()


def _job() -> None:
    """Show the promotion that was started last, with its checks one by one."""
    job_id = address.text("job")
    if job_id:
        job_view.show(job_id, progress=model_tables.checks, result=model_tables.outcome)
