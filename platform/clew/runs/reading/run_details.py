"""Reads further details of a run: files, data sets, log, ranks by relation, and lineage.

The lineage of a run is the runs that it is based on, and the runs and registered model versions
that are based on it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID

from clew import names
from clew.input_files import columns_of, read_columns
from clew.runs import store
from clew.runs.reading.models import Version, version_of
from clew.runs.reading.runs import RunRecord, client, fetched
from clew.runs.reading.search import RunQuery, find_runs, quoted, search_runs

MAX_FILES = 500
_BY_RELATION = re.compile(rf"{names.ARTIFACT_EVALUATION}/(\w+)_by_relation\.parquet")
BY_RELATION, HITS = "a table of ranks by relation", (1, 3, 10)
BY_RELATION_TYPES = {
    "label": pa.string(),
    "side": pa.string(),
    "num_queries": pa.int64(),
    names.MRR: pa.float64(),
    names.MEAN_RANK: pa.float64(),
}
MAX_RUNS = 200
SOURCES = {
    names.TAG_SOURCE_RUN: "uses the model of",
    names.TAG_RESUMED_FROM: "continues from",
    MLFLOW_PARENT_RUN_ID: "is part of",
}
"""Tags with the id of a run that a run is based on, and the relation between the two."""
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
class RunFile:
    """An artifact file of a run."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class RunData:
    """A data set that a run read."""

    name: str
    fingerprint: str
    source: str
    context: str
    """Purpose of the data set, such as `training`."""


def list_files(run_id: str) -> list[RunFile]:
    """Return the artifact files of a run, at most `MAX_FILES`.

    This does not use MLflow's client, which would request the run and its models again for each
    folder.
    """

    def below(folder: str | None) -> Iterator[RunFile]:
        for info in artifacts.list_artifacts(folder):
            if info.is_dir:
                yield from below(info.path)
            else:
                yield RunFile(info.path, int(info.file_size or 0))

    with store.using(f"the files of run {run_id}"):
        connected = client()
        artifacts = get_artifact_repository(
            connected.get_run(run_id).info.artifact_uri, tracking_uri=connected.tracking_uri
        )
        return [file for file, _ in zip(below(None), range(MAX_FILES), strict=False)]


def list_data(run_id: str) -> list[RunData]:
    with store.using(f"the data of run {run_id}"):
        inputs = client().get_run(run_id).inputs
    return [
        RunData(
            found.dataset.name,
            found.dataset.digest,
            found.dataset.source,
            next((tag.value for tag in found.tags if tag.key == MLFLOW_DATASET_CONTEXT), ""),
        )
        for found in (inputs.dataset_inputs if inputs else ())
    ]


def splits_by_relation(files: list[RunFile]) -> list[str]:
    matches = (_BY_RELATION.fullmatch(file.path) for file in files)
    return [match[1] for match in matches if match]


def read_by_relation(run_id: str, split: str) -> pd.DataFrame:
    """Return the ranking metrics of each relation and side (head or tail)."""
    with fetched(run_id, f"{names.ARTIFACT_EVALUATION}/{split}_by_relation.parquet") as path:
        present = columns_of(path, BY_RELATION)
        hits = [name for k in HITS if (name := names.hits_at(k)) in present]
        types = BY_RELATION_TYPES | dict.fromkeys(hits, pa.float64())
        frame: pd.DataFrame = read_columns(path, types, BY_RELATION).to_pandas()
    return frame


def read_log(run_id: str) -> str:
    with fetched(run_id, names.ARTIFACT_LOG) as path:
        return path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Relative:
    """A related run, and how it is related."""

    how: str
    run: RunRecord


@dataclass(frozen=True)
class Lineage:
    """The runs that a run is based on, and the runs and versions that are based on it."""

    sources: tuple[Relative, ...]
    results: tuple[Relative, ...]
    versions: tuple[Version, ...]
    """Versions of registered models; their field `run` is None."""


def lineage(run: RunRecord) -> Lineage:
    """Return the lineage of a run, without deleted runs and versions."""
    ids = {tag: run.tags[tag] for tag in SOURCES if tag in run.tags}
    found = {source.run_id: source for source in find_runs(list(ids.values()))}
    sources = [Relative(SOURCES[tag], found[i]) for tag, i in ids.items() if i in found]
    queries = (RunQuery(source_run=run.run_id), RunQuery(parent_run=run.run_id))
    below = [made for query in queries for made in search_runs(query, limit=MAX_RUNS).runs]
    resumed = search_runs(RunQuery(resumed_from=run.run_id), limit=MAX_RUNS).runs
    results = [Relative("continues in", other) for other in resumed]
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
