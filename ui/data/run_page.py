"""One run for its page: its curves, files, data, log and related runs."""

from dataclasses import dataclass
from urllib.parse import quote

import pandas as pd
import streamlit as st

from clew import names
from clew.config.directions import direction_of
from clew.runs import store
from clew.runs.reading.metrics import pick_values, run_histories
from clew.runs.reading.run_details import (
    Lineage,
    RunData,
    RunFile,
    lineage,
    list_data,
    list_files,
    read_by_relation,
    read_log,
    splits_by_relation,
)
from clew.ui.data.runs import RunRecord

__all__ = ["Lineage", "RunData", "RunFile", "splits_by_relation"]

SECONDS_FRESH = 10
DEFAULT_MLFLOW_ADDRESS = "http://127.0.0.1:5000"
EXPERIMENT_MODE = "workflowType=machine_learning"
"""MLflow's pages have two modes; this one has runs, metrics and models in its menu."""


@dataclass(frozen=True)
class MlflowPage:
    """The address of MLflow's page of a run, and the command that serves it, if one is needed."""

    address: str
    command: str


@st.cache_data(ttl=SECONDS_FRESH, max_entries=32, show_spinner=False)
def curves_of(run: RunRecord) -> dict[str, pd.DataFrame]:
    """Return the curves of all metrics, by key: rows `run_id, step, seconds, value`."""
    return run_histories(run)


@st.cache_data(ttl=SECONDS_FRESH, max_entries=64, show_spinner=False)
def files_of(run_id: str) -> list[RunFile]:
    """Return a run's files, by path."""
    return list_files(run_id)


@st.cache_data(ttl=60, max_entries=64, show_spinner=False)
def data_of(run_id: str) -> list[RunData]:
    """Return the data sets that a run read."""
    return list_data(run_id)


@st.cache_data(ttl=SECONDS_FRESH, max_entries=64, show_spinner=False)
def lineage_of(run: RunRecord) -> Lineage:
    """Return the sources of a run and what was made from it."""
    return lineage(run)


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def by_relation(run_id: str, split: str) -> pd.DataFrame:
    """Return the quality of each side of each relation, the most frequent relation first."""
    order = ["num_queries", "label", "side"]
    return read_by_relation(run_id, split).sort_values(order, ascending=[False, True, True])


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def _log(run_id: str) -> str:
    return read_log(run_id)


def metric_table(run: RunRecord) -> pd.DataFrame:
    """Return one row per metric, its key as index: `last`, `best`, `trend`, `values` (how many)."""
    rows = {}
    for key, curve in curves_of(run).items():
        best = pick_values(curve, key, "best") if direction_of(key) else {}
        rows[key] = {
            "last": run.metrics[key],
            "best": best.get(run.run_id),
            "trend": [float(value) for value in curve["value"]],
            "values": len(curve),
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["last", "best", "trend", "values"])


def log_of(run_id: str) -> str:
    """Return the log of a run, empty if it keeps none."""
    kept = any(file.path == names.ARTIFACT_LOG for file in files_of(run_id))
    return _log(run_id) if kept else ""


def repeating_commands(run: RunRecord) -> str:
    """Return the commands that repeat a training, empty if it keeps no configuration of Clew."""
    if run.tags.get(names.TAG_KIND) != names.KIND_TRAIN:
        return ""
    if not any(file.path == names.ARTIFACT_CONFIG_YAML for file in files_of(run.run_id)):
        return ""
    folder = f"run-{run.run_id[:8]}"
    return (
        f"mlflow artifacts download --run-id {run.run_id} "
        f"--artifact-path {names.ARTIFACT_CONFIG_YAML} --dst-path {folder}\n"
        f"clew train --config {folder}/{names.ARTIFACT_CONFIG_YAML}"
    )


def mlflow_page(run: RunRecord) -> MlflowPage:
    """Return where MLflow shows a run: on the tracking server, or on one that must be started.

    The path opens the run among experiments rather than among traces of language models.
    """
    uri = store.tracking_uri()
    is_served = store.database_path(uri) is None and uri.startswith(("http://", "https://"))
    base = store.public_address(uri) if is_served else DEFAULT_MLFLOW_ADDRESS
    run_path = f"experiments/{quote(run.experiment_id)}/runs/{quote(run.run_id)}"
    command = "" if is_served else f"mlflow ui --backend-store-uri {store.address(uri)}"
    return MlflowPage(f"{base}/#/{run_path}?{EXPERIMENT_MODE}", command)
