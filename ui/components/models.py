"""Registered models for the pages, and the commands that promote."""

import streamlit as st

from clew import names
from clew.errors import ClewError, TrackingError
from clew.runs.reading.models import (
    ModelNames,
    RegisteredModel,
    Version,
    list_models,
    list_versions,
    read_examples,
    read_version_vocabulary,
    read_vocabulary,
)
from clew.ui.components import jobs
from clew.ui.components.jobs import Job
from clew.ui.components.runs import store_exists
from clew.ui.work import Promotion, Rollback


@st.cache_data(ttl=5, show_spinner=False)
def _models() -> list[RegisteredModel]:
    return list_models()


@st.cache_data(ttl=5, max_entries=64, show_spinner=False)
def versions(model: RegisteredModel) -> list[Version]:
    """Return a model's versions, the latest first."""
    return list_versions(model)


# One vocabulary can have a hundred thousand names: all sessions share it without a copy.
@st.cache_resource(max_entries=8, show_spinner=False)
def vocabulary(run_id: str) -> ModelNames:
    return read_vocabulary(run_id)


@st.cache_resource(max_entries=8, show_spinner=False)
def champion_vocabulary(model: RegisteredModel) -> ModelNames:
    """Return the names that the champion knows.

    Raises:
        TrackingError: There is no champion, or its files are gone.
        DataError: The files are invalid.
    """
    if model.champion is None:
        raise TrackingError(f"{model.name} has no champion; promote a run on the page Models")
    return read_version_vocabulary(model, model.champion)


# A version's triples never change, and each version has its own cache entry.
@st.cache_resource(max_entries=8, show_spinner=False)
def _examples(model: RegisteredModel, version: int) -> list[tuple[str, str, str]]:
    return read_examples(model, version)


def models() -> list[RegisteredModel]:
    return _models() if store_exists() else []


def forget() -> None:
    """Clear the cached registry, after a promotion."""
    _models.clear()
    versions.clear()


def champion(model: RegisteredModel) -> Version | None:
    """Return the version that has the alias `champion`, None if none has."""
    found = (version for version in versions(model) if version.version == model.champion)
    return next(found, None)


def task(model: RegisteredModel) -> str:
    """Return the task of the champion; link prediction if its version has no task tag."""
    version = champion(model)
    tags = version.tags if version is not None else {}
    return tags.get(names.TAG_TASK, names.TASK_LINK_PREDICTION)


def champion_run(model: RegisteredModel) -> str:
    """Return the champion's training run, empty if there is no champion."""
    version = champion(model)
    return version.run_id if version is not None else ""


def champion_uri(model: RegisteredModel) -> str:
    return f"models:/{model.name}@{names.ALIAS_CHAMPION}"


def examples(model: RegisteredModel) -> list[tuple[str, str, str]]:
    """Return example questions about triples that the champion was trained on.

    The first asks for tails, the second for heads, the third about a whole triple. The end that is
    asked for is empty. If the champion keeps no triples, there are no questions.
    """
    if model.champion is None:
        return []
    try:
        found = _examples(model, model.champion)
    except ClewError:
        return []
    hidden = (("tail",), ("head",), ())
    return [
        ("" if "head" in ends else head, relation, "" if "tail" in ends else tail)
        for (head, relation, tail), ends in zip(found, hidden, strict=False)
    ]


def promote(wanted: Promotion) -> Job:
    """Start the promotion of a run under a registered model's name."""
    title = f"{'Check' if wanted.dry_run else 'Promote'} run {wanted.run_id[:8]} as {wanted.name}"
    return jobs.jobs().start(wanted, title=title, action="check" if wanted.dry_run else "promote")


def roll_back(name: str) -> Job:
    """Start a rollback: the previous version gets the alias `champion` again."""
    return jobs.jobs().start(Rollback(name), title=f"Roll back {name}", action="roll back")
