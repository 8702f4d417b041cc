"""Where a run comes from and what came of it: other runs, and versions of registered models."""

from dataclasses import dataclass

from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from clew import names
from clew.runs import store
from clew.runs.reading.models import Version, version_of
from clew.runs.reading.runs import RunRecord, client
from clew.runs.reading.search import RunQuery, find_runs, quoted, search_runs

MAX_RUNS = 200
SOURCES = {
    names.TAG_SOURCE_RUN: "works on the model of",
    names.TAG_RESUMED_FROM: "goes on from",
    MLFLOW_PARENT_RUN_ID: "is part of",
}
"""Tags that name a run that this one comes from, and how."""
RESULTS = {
    names.KIND_TRAIN: "training",
    names.KIND_TRACE: "explanation",
    names.KIND_EVALUATE: "evaluation",
    names.KIND_PROMOTE: "promotion",
    names.KIND_VALIDATE: "test of explanations",
    names.KIND_TUNE: "search",
    names.KIND_VALUE: "values of facts",
    names.KIND_COMPARE: "study",
}


@dataclass(frozen=True)
class Relative:
    """A run that another comes from, or that came of it."""

    how: str
    run: RunRecord


@dataclass(frozen=True)
class Lineage:
    """What a run comes from, and what came of it."""

    sources: tuple[Relative, ...]
    results: tuple[Relative, ...]
    versions: tuple[Version, ...]
    """Of registered models, without their run."""


def lineage(run: RunRecord) -> Lineage:
    """Return where a run comes from and what came of it; what was deleted is left out."""
    ids = {tag: run.tags[tag] for tag in SOURCES if tag in run.tags}
    found = {source.run_id: source for source in find_runs(list(ids.values()))}
    sources = [Relative(SOURCES[tag], found[i]) for tag, i in ids.items() if i in found]
    queries = (RunQuery(source_run=run.run_id), RunQuery(parent_run=run.run_id))
    below = [made for query in queries for made in search_runs(query, limit=MAX_RUNS).runs]
    resumed = search_runs(RunQuery(resumed_from=run.run_id), limit=MAX_RUNS).runs
    results = [Relative("goes on in", other) for other in resumed]
    results += [
        Relative(RESULTS.get(made.tags.get(names.TAG_KIND, ""), "run"), made) for made in below
    ]
    return Lineage(tuple(sources), tuple(results), _versions(run.run_id))


def _versions(run_id: str) -> tuple[Version, ...]:
    with store.using(f"the model versions of run {run_id}"):
        connected = client()
        found = connected.search_model_versions(f"run_id = {quoted(run_id)}")
        aliases = {
            name: dict(connected.get_registered_model(name).aliases)
            for name in {version.name for version in found}
        }
    versions = [version_of(version, aliases[version.name]) for version in found]
    return tuple(sorted(versions, key=lambda version: (version.model, -version.version)))
