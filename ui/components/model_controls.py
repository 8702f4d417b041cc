"""What a person can do with registered models: choose, promote, roll back."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from clew import names
from clew.ui import access
from clew.ui.components import address
from clew.ui.components.influence_controls import run_labels
from clew.ui.data.models import RegisteredModel
from clew.ui.data.runs import RunQuery, run_by_id, runs_page

NUM_CANDIDATES = 100


@dataclass(frozen=True)
class Promotion:
    """A promotion that a person asks for."""

    run_id: str
    name: str
    dry_run: bool
    force: str


def model(found: Sequence[RegisteredModel]) -> RegisteredModel:
    """Let a person choose a registered model."""
    by_name = {model.name: model for model in found}
    chosen = st.selectbox("Registered model", list(by_name), key="model", bind="query-params")
    return by_name[chosen] if chosen in by_name else found[0]


def roll_back(model: RegisteredModel) -> bool:
    """Let a person roll back to the previous version; return whether they confirmed it."""
    previous = model.aliases.get(names.ALIAS_PREVIOUS)
    if previous is None or model.champion is None:
        return False
    with st.popover(f"Roll back to version {previous}"):
        st.markdown(
            f"Version {previous} answers questions again; version {model.champion} becomes "
            "*previous*. A second rollback undoes this."
        )
        return st.button(
            "Roll back now",
            key="rollback",
            type="primary",
            disabled=not access.may("roll back"),
        )


def promotion() -> Promotion | None:
    """Let a person choose a run and a name; return what they ask for, once they do.

    The default name comes from the run's data.
    """
    runs = runs_page(RunQuery(kind=names.KIND_TRAIN, status="FINISHED"), size=NUM_CANDIDATES).runs
    linked = address.text("candidate")
    labels = run_labels(runs, linked=linked)
    options = list(labels)
    first, second, third = st.columns([3, 2, 2], vertical_alignment="bottom")
    run_id = first.selectbox(
        "Run",
        options,
        index=options.index(linked) if linked else 0 if options else None,
        format_func=lambda run_id: labels[run_id],
        help="Finished training runs, the newest first. The run's best checkpoint is promoted.",
    )
    run = run_by_id(run_id or "")
    data = run.tags.get(names.TAG_DATASET, "") if run is not None else ""
    wanted = second.text_input(
        "Model name",
        value=names.default_model_name(data),
        placeholder="clew-umls",
        key=f"as-{run_id}",
    )
    force = third.text_input(
        "Overrule, with a reason",
        key="force",
        help="Checks that are not final can be overruled; the reason is recorded with the version.",
    )
    ready = bool(run_id and wanted.strip())
    with st.container(horizontal=True):
        check = st.button(
            "Check only",
            key="dry",
            disabled=not (ready and access.may("check")),
            help="Runs every check and writes nothing.",
        )
        promote = st.button(
            "Promote",
            key="promote",
            type="primary",
            disabled=not (ready and access.may("promote")),
        )
    if not (check or promote):
        return None
    return Promotion(run_id or "", wanted.strip(), dry_run=check, force=force.strip())
