"""Finds the files of an influence report on the local disk or in the store's artifacts."""

from pathlib import Path

from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.uri import is_local_uri

from clew import names
from clew.errors import TrackingError
from clew.runs import store
from clew.runs.influence_report import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    TEXT_INFLUENCE_JSON,
)
from clew.runs.reading.reports import ReportFiles
from clew.runs.reading.runs import RunRecord, client, download_artifact, find_run

REPORT_FILES = {
    "json": names.INFLUENCE_JSON,
    "parquet": names.INFLUENCE_PARQUET,
    "csv": names.INFLUENCE_CSV,
    "text": TEXT_INFLUENCE_JSON,
    "sequence": SEQUENCE_INFLUENCE_JSON,
    "picture": SEQUENCE_INFLUENCE_PICTURE,
}
"""File name of each field of `ReportFiles`."""


def report_files(run_id: str, folder: Path) -> ReportFiles:
    """Return the report files of a trace run; remote files are downloaded into `folder` once.

    Raises:
        TrackingError: There is no such run, or it has no report that can be downloaded.
    """
    run = find_run(run_id)
    with store.using(f"the explanations of run {run_id}"):
        infos = client().list_artifacts(run_id, names.ARTIFACT_INFLUENCE)
    sizes = {info.path: info.file_size for info in infos}
    found: dict[str, Path] = {}
    for kind, file in REPORT_FILES.items():
        path = f"{names.ARTIFACT_INFLUENCE}/{file}"
        if path in sizes:
            found[kind] = _local_copy(run, path, sizes[path], folder)
    if not found:
        raise TrackingError(
            f"run {run_id} ({run.name}) has no influence files under {names.ARTIFACT_INFLUENCE}/ "
            f"in {store.in_use()}; it may still be running or may have failed: check its status"
        )
    return ReportFiles(**found)


def _local_copy(run: RunRecord, path: str, size: int | None, folder: Path) -> Path:
    """Return the local path of an artifact; download it if the store keeps it on another machine.

    MLflow's own download makes a new copy each time, even of a local file.
    """
    if run.artifact_uri and is_local_uri(run.artifact_uri):  # type: ignore[no-untyped-call]
        local = local_file_uri_to_path(run.artifact_uri)  # type: ignore[no-untyped-call]
        return Path(local) / path
    target = folder / run.run_id / str(size)
    if not (target / path).is_file():
        download_artifact(run.run_id, path, target)
    return target / path
