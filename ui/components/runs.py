"""Runs and registered models for the pages: cached searches, the overview's numbers and rows.

The dashboard uses one store as long as it runs, so cache keys do not include the store's address.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st

from clew import names
from clew.errors import ClewError, TrackingError
from clew.runs import store
from clew.runs.reading import models as registry
from clew.runs.reading import search
from clew.runs.reading.metrics import headline_key, metric_histories, run_histories
from clew.runs.reading.run_details import lineage, list_data, list_files
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import Keys

PAGE_SIZE = 25
"""MLflow needs as long for this many runs as for all else that a page shows."""

for_seconds = st.cache_data(ttl=5, max_entries=256, show_spinner=False)
for_a_minute = st.cache_data(ttl=60, max_entries=64, show_spinner=False)
# One vocabulary can have a hundred thousand names: all sessions share it without a copy.
for_all_sessions = st.cache_resource(max_entries=8, show_spinner=False)

curves_of = for_seconds(run_histories)
"""The curves of all metrics of a run, by key: rows `run_id, step, seconds, value`."""
files_of = for_seconds(list_files)
lineage_of = for_seconds(lineage)
data_of = for_a_minute(list_data)
versions = for_seconds(registry.list_versions)
"""A model's versions, the latest first."""
vocabulary = for_all_sessions(registry.read_vocabulary)
_learned = for_all_sessions(registry.read_learned)  # by version, whose triples never change


_seen = set[str]()  # addresses of stores that this dashboard has found


def store_exists() -> bool:
    """Return whether there is a store yet; refuse one whose database file is gone again."""
    if not store.is_missing(uri := store.tracking_uri()):
        _seen.add(uri)
    elif uri in _seen:
        advice = "put it back, or start the dashboard again for a new store"
        raise TrackingError(f"tracking store {store.in_use()}: its file is gone; {advice}")
    return uri in _seen


@for_seconds
def experiments() -> dict[str, str]:
    return search.list_experiments() if store_exists() else {}


def _within(query: search.RunQuery) -> search.RunQuery:
    """Return a query with its experiments, which MLflow wants to know for each one."""
    return replace(query, experiment_ids=query.experiment_ids or tuple(experiments().values()))


@for_seconds
def runs_page(query: search.RunQuery, page: int = 0, *, size: int = PAGE_SIZE) -> search.RunPage:
    """Return one page of runs, counted from 0."""
    if not store_exists():
        return search.RunPage((), 0, False)
    return search.search_runs(_within(query), offset=page * size, limit=size)


@for_seconds
def every_run(query: search.RunQuery) -> list[RunRecord]:
    return list(search.every_run(query)) if store_exists() else []


@for_seconds
def _found(run_ids: tuple[str, ...]) -> list[RunRecord]:
    return search.find_runs(run_ids) if store_exists() else []


@st.cache_resource(max_entries=256, show_spinner=False)
def _last_count(query: search.RunQuery) -> list[int]:
    """Return a list that holds the number of runs from the last count."""
    return [0]


@st.cache_data(ttl=30, max_entries=256, show_spinner=False)
def number_of_runs(query: search.RunQuery) -> int:
    last = _last_count(query)
    last[0] = search.count_runs(_within(query), near=last[0])
    return last[0]


def has_runs() -> bool:
    """Return whether there is any run; counting them all takes longer."""
    return bool(runs_page(search.RunQuery(), size=1).runs)


def runs_by_id(run_ids: Sequence[str]) -> list[RunRecord]:
    """Return runs in the given order, without those that are gone."""
    return _found(tuple(run_ids)) if run_ids else []


def run_by_id(run_id: str) -> RunRecord | None:
    """Return a run; None if it is gone, or no id is given."""
    return next(iter(runs_by_id([run_id])), None) if run_id else None


def forget_runs() -> None:
    """Read runs again, because this page changed one."""
    _found.clear()
    runs_page.clear()


# The key is `last`, ids and last values: hashing whole runs takes longer than reading the curves.
@st.cache_data(ttl=30, max_entries=256, show_spinner=False)
def _histories(
    _runs: Sequence[RunRecord], last: tuple[tuple[str, float | None], ...], key: str
) -> pd.DataFrame:
    return metric_histories(_runs, key)


def histories(runs: Sequence[RunRecord], key: str) -> pd.DataFrame:
    return _histories(runs, tuple((run.run_id, run.metrics.get(key)) for run in runs), key)


def live_runs(experiment_ids: tuple[str, ...]) -> list[RunRecord]:
    """Return the runs that MLflow calls running."""
    return every_run(search.RunQuery(experiment_ids, status="RUNNING"))


def counts(experiment_ids: tuple[str, ...], alive: Sequence[RunRecord]) -> dict[str, int]:
    """Return how many runs there are, and how many in each state; `alive` are `live_runs`."""

    def number(status: str = "") -> int:
        return number_of_runs(search.RunQuery(experiment_ids, status=status))

    stuck = sum(state_of(run) == "stuck" for run in alive)
    total, failed, stopped = number(), number("FAILED"), number("KILLED")
    # Counting needs one search per power of two, so the largest state is what remains.
    finished = max(0, total - len(alive) - failed - stopped - number("SCHEDULED"))
    others = {"finished": finished, "stopped": stopped, "failed": failed}
    return {"total": total, "running": len(alive) - stuck, "stuck": stuck, **others}


def name_of(run: RunRecord) -> str:
    return run.name or run.run_id[:8]


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
    return {
        str(run_id): [*filter(math.isfinite, map(float, values))] if len(values) > 1 else []
        for key, members in by_key.items()
        for run_id, values in histories(members, key).groupby("run_id", sort=False)["value"]
    }


@st.cache_data(ttl=60, max_entries=2, show_spinner=False, refresh_mode="background")
def known_keys() -> Keys:
    return search.known_keys()


@for_seconds
def models() -> list[registry.RegisteredModel]:
    return registry.list_models() if store_exists() else []


@for_all_sessions
def champion_vocabulary(model: registry.RegisteredModel) -> registry.ModelNames:
    assert model.champion is not None
    return registry.read_version_vocabulary(model, model.champion)


def champion(model: registry.RegisteredModel) -> registry.Version | None:
    """Return the version that has the alias `champion`, None if none has."""
    return next((version for version in versions(model) if version.version == model.champion), None)


def champion_uri(model: registry.RegisteredModel) -> str:
    return f"models:/{model.name}@{names.ALIAS_CHAMPION}"


def learned(model: registry.RegisteredModel) -> registry.Learned:
    """Return what the champion keeps of its training triples, nothing if it keeps none."""
    try:
        assert model.champion is not None
        return _learned(model, model.champion)
    except ClewError:
        return registry.Learned((), {})
