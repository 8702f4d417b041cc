"""What a run keeps and has to do with, besides its numbers.

Its files, its data sets, its log and ranks by relation; the runs that it comes from, and the runs
and versions of registered models that came of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID

from clew import names
from clew.parquet import columns_of, read_columns
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
class RunFile:
    """A file among a run's artifacts."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class RunData:
    """A data set that a run read."""

    name: str
    fingerprint: str
    source: str
    context: str
    """What it was read for, such as `training`."""


def list_files(run_id: str) -> list[RunFile]:
    """Return a run's files by path, at most `MAX_FILES` of them.

    MLflow's client would look the run and its models up again for each folder.

    Raises:
        TrackingError: the store does not answer.
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
    """Return the data sets that a run read."""
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
    """Return the splits whose ranks by relation are among a run's files."""
    matches = (_BY_RELATION.fullmatch(file.path) for file in files)
    return [match[1] for match in matches if match]


def read_by_relation(run_id: str, split: str) -> pd.DataFrame:
    """Return the quality of each side of each relation.

    Raises:
        TrackingError: the run has none for this split.
        DataError: the file is not what it should be.
    """
    with fetched(run_id, f"{names.ARTIFACT_EVALUATION}/{split}_by_relation.parquet") as path:
        present = columns_of(path, BY_RELATION)
        hits = [name for k in HITS if (name := names.hits_at(k)) in present]
        types = BY_RELATION_TYPES | dict.fromkeys(hits, pa.float64())
        frame: pd.DataFrame = read_columns(path, types, BY_RELATION).to_pandas()
    return frame


def read_log(run_id: str) -> str:
    """Return what a run said.

    Raises:
        TrackingError: the run keeps no log.
    """
    with fetched(run_id, names.ARTIFACT_LOG) as path:
        return path.read_text(encoding="utf-8", errors="replace")


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
