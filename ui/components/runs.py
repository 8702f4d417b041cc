"""Runs for the pages: cached searches, and the overview's numbers and rows.

The dashboard uses one store as long as it runs, so cache keys do not include the store's address.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from clew import names
from clew.runs import store
from clew.runs.reading.metrics import (
    EpochProgress,
    headline_key,
    metric_histories,
    progress_of,
)
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import (
    Experiment,
    RunPage,
    RunQuery,
    count_runs,
    find_runs,
    list_experiments,
    search_runs,
    values_of_tag,
)

PAGE_SIZE = 50
SECONDS_FRESH = 5
NUM_RECENT = 100
"""How many runs of a server give the choices of filters; few, because each is read whole."""


@dataclass(frozen=True)
class Counts:
    """How many runs there are, and in which state; MLflow calls `stuck` runs running too."""

    total: int
    running: int
    stuck: int
    finished: int
    stopped: int
    failed: int


@st.cache_data(ttl=SECONDS_FRESH, show_spinner=False)
def _experiments() -> list[Experiment]:
    return list_experiments()


@st.cache_data(ttl=SECONDS_FRESH, max_entries=256, show_spinner=False)
def _page(query: RunQuery, offset: int, limit: int) -> RunPage:
    return search_runs(query, offset=offset, limit=limit)


@st.cache_resource(max_entries=256, show_spinner=False)
def _last_count(query: RunQuery) -> list[int]:
    """Return a list that holds the number of runs from the last count."""
    return [0]


@st.cache_data(ttl=30, max_entries=256, show_spinner=False)
def _count(query: RunQuery) -> int:
    last = _last_count(query)
    if not last[0] and query == RunQuery(query.experiment_ids, kind=names.KIND_TRAIN):
        last[0] = _last_count(RunQuery(query.experiment_ids))[0]  # most runs are trainings
    last[0] = count_runs(query, near=last[0])
    return last[0]


@st.cache_data(ttl=SECONDS_FRESH, max_entries=256, show_spinner=False)
def _runs(run_ids: tuple[str, ...]) -> list[RunRecord]:
    return find_runs(run_ids)


# The key is `last`, ids and last values: hashing whole runs takes longer than reading the curves.
@st.cache_data(ttl=30, max_entries=256, show_spinner=False)
def _histories(
    _runs: Sequence[RunRecord], last: tuple[tuple[str, float | None], ...], key: str
) -> pd.DataFrame:
    return metric_histories(_runs, key)


def store_exists() -> bool:
    """Return whether there is a store; there is none if its database file does not exist yet."""
    return not store.is_missing(store.tracking_uri())


def connect() -> None:
    """Query the store for the first time, which takes longer than later queries.

    Raises:
        TrackingError: The store does not answer.
    """
    if store_exists():
        list_experiments()


def experiments() -> list[Experiment]:
    """Return the experiments, the latest first."""
    return _experiments() if store_exists() else []


def runs_page(query: RunQuery, page: int = 0, *, size: int = PAGE_SIZE) -> RunPage:
    """Return one page of runs, counted from 0."""
    if not store_exists():
        return RunPage((), 0, False)
    return _page(query, page * size, size)


def has_runs() -> bool:
    """Return whether there is any run; counting them all takes longer."""
    return bool(runs_page(RunQuery(), size=1).runs)


def number_of_runs(query: RunQuery) -> int:
    """Return how many runs match."""
    return _count(query) if store_exists() else 0


def runs_by_id(run_ids: Sequence[str]) -> list[RunRecord]:
    """Return runs in the given order, without those that are gone."""
    return _runs(tuple(run_ids)) if run_ids and store_exists() else []


def run_by_id(run_id: str) -> RunRecord | None:
    """Return a run; None if it is gone, or no id is given."""
    return next(iter(runs_by_id([run_id])), None) if run_id else None


def histories(runs: Sequence[RunRecord], key: str) -> pd.DataFrame:
    last = tuple((run.run_id, run.metrics.get(key)) for run in runs)
    return _histories(runs, last, key)


def counts(experiment_ids: tuple[str, ...]) -> Counts:
    """Return how many runs of the experiments are in which state."""

    def number(status: str) -> int:
        return number_of_runs(RunQuery(experiment_ids, status=status))

    alive = live_runs(experiment_ids)
    stuck = sum(state_of(run) == "stuck" for run in alive)
    total = number_of_runs(RunQuery(experiment_ids))
    running = len(alive) if len(alive) < PAGE_SIZE else number("RUNNING")
    failed, stopped = number("FAILED"), number("KILLED")
    return Counts(
        total=total,
        running=running - stuck,
        stuck=stuck,
        # Counting needs one search per power of two, so the largest state is what remains.
        finished=max(0, total - running - failed - stopped - number("SCHEDULED")),
        stopped=stopped,
        failed=failed,
    )


def live_runs(experiment_ids: tuple[str, ...]) -> list[RunRecord]:
    """Return the runs that MLflow calls running."""
    return list(runs_page(RunQuery(experiment_ids, status="RUNNING")).runs)


def progress(run: RunRecord) -> EpochProgress | None:
    """Return the progress of a training run, None for other runs."""
    return progress_of(run, histories([run], names.TRAIN_EPOCH))


def variants_of(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the variant of each run; for a run that uses a model, the variant of the model.

    If an explanation was computed in another variant, both are given: `bf16, traced in fp32`.
    """
    sources = {run.tags[names.TAG_SOURCE_RUN] for run in runs if names.TAG_SOURCE_RUN in run.tags}
    models = {
        run.run_id: run.tags.get(names.TAG_VARIANT, "") for run in runs_by_id(sorted(sources))
    }
    found = {}
    for run in runs:
        own = run.tags.get(names.TAG_VARIANT, "")
        model = models.get(run.tags.get(names.TAG_SOURCE_RUN, ""), "")
        traced = (
            model and own not in ("", model) and run.tags.get(names.TAG_KIND) == names.KIND_TRACE
        )
        found[run.run_id] = f"{model}, traced in {own}" if traced else model or own
    return found


def sparklines(runs: Sequence[RunRecord]) -> dict[str, list[float]]:
    """Return the trend of each run's headline metric by step; empty if it has only one value."""
    by_key: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_key.setdefault(headline_key(run), []).append(run)
    lines: dict[str, list[float]] = {}
    for key, members in by_key.items():
        frame = histories(members, key)
        for run_id, values in frame.groupby("run_id", sort=False)["value"]:
            lines[str(run_id)] = [float(value) for value in values] if len(values) > 1 else []
    return lines


@st.cache_data(ttl=60, max_entries=64, show_spinner=False, refresh_mode="background")
def _tag_values(experiment_ids: tuple[str, ...], tag: str) -> set[str]:
    found = values_of_tag(experiment_ids, tag)
    if found is not None:
        return found
    pages = [  # the first one is shown anyway
        _page(RunQuery(experiment_ids), offset, PAGE_SIZE)
        for offset in range(0, NUM_RECENT, PAGE_SIZE)
    ]
    return {run.tags.get(tag, "") for page in pages for run in page.runs}


def choices(experiment_ids: tuple[str, ...], tag: str) -> list[str]:
    """Return the values of a tag, for filters: from all runs, or from a server's latest runs."""
    if not store_exists():
        return []
    return sorted(filter(None, _tag_values(experiment_ids, tag)))
