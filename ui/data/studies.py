"""Studies for the pages: claims with their measurements, and configurations to plan for."""

import logging
from collections.abc import Mapping
from dataclasses import fields

import pandas as pd
import streamlit as st

from clew import names
from clew.config.load import load, parse_assignments
from clew.config.loss import EntityLoss
from clew.config.presets import presets
from clew.config.schema import RunConfig
from clew.errors import ClewError, ConfigError
from clew.runs.reading.studies import ClaimResult, StudyResult, read_study, shipped_studies
from clew.ui.data import jobs
from clew.ui.data.jobs import Job
from clew.ui.data.runs import RunQuery, runs_page

logger = logging.getLogger(__name__)

NUM_STUDIES = 100


def studies() -> list[StudyResult]:
    """Return the latest finished run of each study on each machine, the latest first.

    If the store has none, return the results that ship with Clew.
    """
    runs = runs_page(RunQuery(kind=names.KIND_COMPARE), size=NUM_STUDIES).runs
    latest: dict[tuple[str, str], StudyResult] = {}
    for run in runs:
        found = study_of(run.run_id) if run.status == "FINISHED" else None
        if found is not None and found.claims:
            latest.setdefault((found.study, found.machine), found)
    return list(latest.values()) or shipped_studies()


@st.cache_data(ttl=600, max_entries=256, show_spinner="Reading the studies …")
def study_of(run_id: str) -> StudyResult | None:
    """Return a study, or None for a comparison of another kind, which has no report."""
    try:
        return read_study(run_id)
    except ClewError as error:
        logger.info("%s", error)
        return None


def claims_frame(found: list[StudyResult]) -> pd.DataFrame:
    """Return a row for each claim on each machine."""
    claims = [claim for study in found for claim in study.claims]
    return pd.DataFrame(claims, columns=[field.name for field in fields(ClaimResult)])


def configurations() -> list[str]:
    """Return the configurations that ship with Clew, as paths from the project's root."""
    return [f"experiments/{path.parent.name}/{path.name}" for path in presets().values()]


def configuration(path: str, changes: Mapping[str, str] | None = None) -> RunConfig:
    """Return a configuration with some settings changed, `section.key` to value.

    Raises:
        ConfigError: The configuration is not valid.
    """
    return load(
        path, parse_assignments([f"{key}={value}" for key, value in (changes or {}).items()])
    )


def kind_changes(path: str, kind: str) -> dict[str, str]:
    """Return the changes that choose another kind of model; none for the configuration's own.

    Terms of the loss that the other kind does not support are unset.
    """
    config = configuration(path)
    if kind == config.model.kind:
        return {}
    changes = {"model.kind": kind}
    if isinstance(config.loss, EntityLoss) and config.loss.needs_factorization:
        try:
            configuration(path, changes)
        except ConfigError:
            changes |= {"loss.regularizer": "null", "loss.relation_prediction_weight": "0"}
    return changes


def fitting_changes(path: str, changes: Mapping[str, str]) -> dict[str, str]:
    """Return changes that give a valid configuration.

    Some settings of the model follow from the others if they are unset. They are unset here if
    they do not fit the changed settings.

    Raises:
        ConfigError: The configuration is not valid with these changes either way.
    """
    try:
        configuration(path, changes)
    except ConfigError:
        chosen = {key: changes[key] for key in changes if key.startswith(("model.kind", "loss."))}
        model = configuration(path, chosen).model
        derived = {
            f"model.{key}": "null"
            for key, field in type(model).model_fields.items()
            if field.default is None and isinstance(getattr(model, key), int)
        }
        configuration(path, derived | dict(changes))
        return derived | dict(changes)
    return dict(changes)


def plan(
    config: str,
    changes: Mapping[str, str],
    *,
    device: str,
    memory_gib: float,
    sizes: Mapping[str, str],
) -> Job:
    """Start predicting the memory of a configuration with some settings changed.

    Args:
        config: The configuration.
        changes: Settings, `section.key` to value.
        device: Name of a GPU; if empty, any device with `memory_gib` of memory.
        memory_gib: The memory of the device.
        sizes: Sizes to use instead of the data: option of `clew plan` to value.
    """
    place = f"--device={device}" if device else f"--memory-gib={memory_gib}"
    arguments = ["plan", f"--config={config}", place, "--json"]
    arguments += [f"--{size.replace('_', '-')}={value}" for size, value in sizes.items()]
    arguments += [f"{key}={value}" for key, value in changes.items()]
    return jobs.jobs().start(arguments, title=f"Plan {config}", action="plan")
