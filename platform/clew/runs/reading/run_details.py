"""Reads further details of a run: files, data sets, log, lineage, and what its command found.

The lineage of a run is the runs that it is based on, and the runs and registered model versions
that are based on it.
"""

import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from mlflow.entities import FileInfo
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID
from pydantic import BaseModel

from clew import names
from clew.config.files import SHIPPED, STUDIES
from clew.errors import ConfigError, TrackingError, refusing
from clew.input_files import columns_of, read_columns
from clew.runs import store
from clew.runs.influence_forms import VALUES_CSV_COLUMNS
from clew.runs.influence_report import ReportModel
from clew.runs.reading.models import Version, version_of
from clew.runs.reading.runs import RunRecord, client, fetched, find_run, read_record
from clew.runs.reading.search import RunQuery, find_runs, quoted, search_runs
from clew.runs.validation_record import ScoreSettings, ValidationRecord, ValidationSummary
from clew.spreadsheets import changed, restored

logger = logging.getLogger(__name__)

MAX_FILES = 500
PROGRAMS_TAGS = ("clew.", "mlflow.")
_BY_RELATION = re.compile(rf"{names.ARTIFACT_EVALUATION}/(\w+)_by_relation\.parquet")
BY_RELATION = "a table of ranks by relation"
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
TRIAL_COLUMNS = ("trial", "state", "value", "epoch", "seconds", "run_id")
"""What a row of the trials begins with; then come the settings, and `problem`."""
STUDY_FILE = "study/study.json"
NEWEST = 20
"""Number of newest tests that are read; a run can be tested alone and in several ensembles."""


def list_files(run_id: str) -> list[FileInfo]:
    """Return the artifact files of a run, at most `MAX_FILES`.

    This does not use MLflow's client, which would request the run and its models again for each
    folder.
    """

    def below(folder: str | None) -> Iterator[FileInfo]:
        for info in artifacts.list_artifacts(folder):
            if info.is_dir:
                yield from below(info.path)
            else:
                yield info

    with store.using(f"the files of run {run_id}"):
        connected = client()
        address, uri = connected.get_run(run_id).info.artifact_uri, connected.tracking_uri
        artifacts = get_artifact_repository(address, tracking_uri=uri)
        return list(itertools.islice(below(None), MAX_FILES))


def list_data(run_id: str) -> list[tuple[str, str, str]]:
    """Return purpose, such as `training`, name and fingerprint of each data set of a run."""
    with store.using(f"the data of run {run_id}"):
        inputs = client().get_run(run_id).inputs
    found = []
    for each in inputs.dataset_inputs if inputs else ():
        purpose = next((tag.value for tag in each.tags if tag.key == MLFLOW_DATASET_CONTEXT), "")
        found.append((purpose, each.dataset.name, each.dataset.digest))
    return found


def splits_by_relation(files: list[FileInfo]) -> list[str]:
    return [match[1] for file in files if (match := _BY_RELATION.fullmatch(file.path))]


def read_by_relation(run_id: str, split: str) -> pd.DataFrame:
    """Return the ranking metrics of each relation and side (head or tail)."""
    with fetched(run_id, f"{names.ARTIFACT_EVALUATION}/{split}_by_relation.parquet") as path:
        present = columns_of(path, BY_RELATION)
        hits = [name for k in (1, 3, 10) if (name := names.hits_at(k)) in present]
        types = dict.fromkeys(("label", "side"), pa.string()) | {"num_queries": pa.int64()}
        types |= dict.fromkeys((names.MRR, names.MEAN_RANK, *hits), pa.float64())
        frame: pd.DataFrame = read_columns(path, types, BY_RELATION).to_pandas()
    return frame


def read_text(run_id: str, *path: str) -> str:
    """Return a text file of a run by the parts of its path, such as `log.txt`."""
    with fetched(run_id, "/".join(path)) as file:
        return file.read_text(encoding="utf-8", errors="replace")


def read_data_report(run_id: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what looks wrong in a run's data, and the pairs of relations that say the same."""
    with fetched(run_id, names.ARTIFACT_DATA_REPORT) as path:
        what = f"run {run_id}: {path.name} is not a report on data"
        with refusing(what, OSError, ValueError, LookupError, TypeError, error=TrackingError):
            content = json.loads(path.read_bytes())
            findings = [(f["what"], f["count"], "; ".join(f["examples"]), f["mend"])
                        for f in content["findings"]]  # fmt: skip
            keys = ("first", "second", "kind", "common", "share")
            pairs = [[pair[key] for key in keys] for pair in content["pairs"]]
    columns = ["What looks wrong", "Count", "Such as", "What to do"]
    said = ["Relation", "Says the same as", "As", "Facts in common", "Share"]
    return pd.DataFrame(findings, columns=columns), pd.DataFrame(pairs, columns=said)


@dataclass(frozen=True)
class Lineage:
    """The runs that a run is based on, and the runs and versions that are based on it."""

    sources: tuple[tuple[str, RunRecord], ...]
    """How a run is related, and the run."""
    results: tuple[tuple[str, RunRecord], ...]
    versions: tuple[Version, ...]
    """Versions of registered models; their field `run` is None."""


def lineage(run: RunRecord) -> Lineage:
    """Return the lineage of a run, without deleted runs and versions."""
    ids = {tag: run.tags[tag] for tag in SOURCES if tag in run.tags}
    found = {source.run_id: source for source in find_runs(list(ids.values()))}
    sources = [(SOURCES[tag], found[i]) for tag, i in ids.items() if i in found]
    queries = (RunQuery(source_run=run.run_id), RunQuery(parent_run=run.run_id))
    below = [made for query in queries for made in search_runs(query, limit=MAX_RUNS).runs]
    resumed = search_runs(RunQuery(resumed_from=run.run_id), limit=MAX_RUNS).runs
    results = [("continues in", other) for other in resumed]
    results += [(RESULTS.get(made.tags.get(names.TAG_KIND, ""), "run"), made) for made in below]
    return Lineage(tuple(sources), tuple(results), _versions(run.run_id))


def _versions(run_id: str) -> tuple[Version, ...]:
    with store.using(f"the model versions of run {run_id}"):
        connected = client()
        found = connected.search_model_versions(f"run_id = {quoted(run_id)}")
        models = {name: connected.get_registered_model(name) for name in {v.name for v in found}}
    versions = [version_of(version, models[version.name].aliases) for version in found]
    return tuple(sorted(versions, key=lambda version: (version.model, -version.version)))


def own_tags(run: RunRecord) -> dict[str, str]:
    """Return the tags of one line that people gave a run."""
    own = {k: v for k, v in run.tags.items() if not k.startswith(PROGRAMS_TAGS)}
    return {key: value for key, value in own.items() if len(value.splitlines()) < 2}


def describe_run(seen: RunRecord, description: str, tags: Mapping[str, str]) -> None:
    """Change a run's description and the tags that people gave it where they differ from `seen`.

    Raises:
        ConfigError: A tag has a name that programs use, or somebody has changed the same since.
    """
    for key in tags:
        if not key or key.startswith(PROGRAMS_TAGS):
            raise ConfigError(f"tag {quoted(key)} is empty or a program's; choose another name")
    note, now = names.TAG_NOTE, find_run(seen.run_id).tags
    before, wanted = own_tags(seen) | {note: seen.tags.get(note, "")}, {**tags, note: description}
    changes = [key for key in before | wanted if before.get(key) != wanted.get(key)]
    for key in changes:
        if now.get(key) not in (seen.tags.get(key), wanted.get(key)):
            what = "the description" if key == note else f"tag {quoted(key)}"
            raise ConfigError(f"somebody has changed {what}; keep your text, and reload the page")
    with store.using(f"describing run {seen.run_id}"):
        for key in changes:
            if key in wanted:
                client().set_tag(seen.run_id, key, wanted[key])
            elif key in now:
                client().delete_tag(seen.run_id, key)


def read_trials(run_id: str) -> pd.DataFrame:
    path = f"{names.ARTIFACT_TUNE}/{names.TRIALS_CSV}"
    return _read_csv(run_id, path, TRIAL_COLUMNS, ("trial", "value", "epoch", "seconds"))


def read_fact_values(run_id: str) -> pd.DataFrame:
    path = f"{names.ARTIFACT_VALUES}/{names.VALUES_CSV}"
    return _read_csv(run_id, path, VALUES_CSV_COLUMNS, ("TrainIndex", "Value"))


def _read_csv(
    run_id: str, path: str, columns: Sequence[str], numbers: Sequence[str]
) -> pd.DataFrame:
    with fetched(run_id, path) as file:
        what = f"run {run_id}: {path} is not a table"
        with refusing(what, OSError, ValueError, error=TrackingError):
            cells = pd.read_csv(file, dtype=str, keep_default_na=False)
            found = cells.apply(lambda column: changed(pa.array(column), restored).to_pandas())
    if missing := [column for column in columns if column not in found]:
        raise TrackingError(f"run {run_id}: {path} has no column {missing[0]}")
    table: pd.DataFrame = found.rename(columns=restored)
    return table.assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in numbers})


class StudyRatio(BaseModel):
    """A variant's ratio to the reference, with its 95 % interval over rounds."""

    value: float
    low: float | None
    """Lower end of the interval; None after a single round."""
    high: float | None


class StudyRow(BaseModel):
    """What one variant measured of one metric."""

    variant: str
    label: str
    median: float
    ratio: StudyRatio | None


class StudyResult(BaseModel):
    """The part of a study's report that is shown; reports of earlier versions also have claims."""

    study: str
    machine: str
    reference: str
    results: tuple[StudyRow, ...]


def read_study(run_id: str) -> StudyResult:
    """Return the result of a run of kind `compare`."""
    return read_record(run_id, STUDY_FILE, StudyResult, "a study's report")


def shipped_studies() -> list[StudyResult]:
    files = sorted((SHIPPED / STUDIES / "results").glob("*.json"))
    return [StudyResult.model_validate_json(file.read_bytes()) for file in files]


def find_validation(model: ReportModel, settings: Mapping[str, Any]) -> ValidationSummary | None:
    """Return the newest test of a model's scores in exactly the form and settings of a report.

    A test that is too small to say something counts only if there is no other. A result that cannot
    be read is skipped with a warning.
    """
    asked = ScoreSettings.of_report(settings, [(c.step, c.weight) for c in model.checkpoints])
    if asked is None or not model.run_id or store.is_missing(store.tracking_uri()):
        return None
    small = None
    query = RunQuery(kind=names.KIND_VALIDATE, source_run=model.run_id, status="FINISHED")
    for run in search_runs(query, limit=NEWEST).runs:
        try:
            record = read_result(run.run_id)
        except TrackingError as error:
            logger.warning("%s; it is left out", error)
            continue
        tested = record.settings
        if tested is not None and asked.tuning is None:
            untuned = {"tuning": None, "tuning_seeds": None, "first_tuning_seed": None}
            tested = tested.model_copy(update=untuned)
        if (tested, set(record.ensemble)) != (asked, set(model.runs)):
            continue
        summary = record.summary(str(settings["score"]), run.run_id)
        if summary.counts:
            return summary
        small = small or (summary if summary.score else None)
    return small


def read_result(run_id: str) -> ValidationRecord:
    """Return the result of a run of kind `validate`."""
    path = f"{names.ARTIFACT_VALIDATION}/{names.VALIDATION_JSON}"
    return read_record(run_id, path, ValidationRecord, "a validation result")
