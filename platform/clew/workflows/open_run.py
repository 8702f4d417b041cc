"""One door to a run: finds what a reference names, and keeps its files on local disk.

A reference is a run id, `models:/name@alias`, `models:/name/3`, or a folder that contains a run's
files, checkpoints, or one checkpoint. Several, separated by commas, are an ensemble.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clew import names
from clew.errors import CheckpointError, ConfigError, TrackingError
from clew.files import working_folder
from clew.runs.base import RegisteredVersion
from clew.runs.reading import runs
from clew.training.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    CheckpointRecord,
    Manifest,
    list_checkpoints,
    read_manifest,
    read_record,
)

logger = logging.getLogger(__name__)

REGISTRY_SCHEME = "models:/"
OLDER_SUFFIX = ".pt"
KEPT_FOLDERS = (names.ARTIFACT_BEST, names.ARTIFACT_CHECKPOINTS)
EXPECTED = "a run id, models:/name@alias, or a folder of checkpoints"
"""The accepted references, for messages."""
SERVED_FOLDER = "artifacts/model"
"""Path of the model folder in a registered model."""


@dataclass(frozen=True)
class OpenedRun:
    """A run, a registered version or a folder; files are downloaded when they are asked for."""

    reference: str
    work: Path
    """Folder for downloads."""
    run_id: str | None = None
    """None for a folder."""
    version: RegisteredVersion | None = None
    folder: Path | None = None

    @property
    def title(self) -> str:
        return f"run {self.run_id}" if self.folder is None else str(self.folder)

    def kept(self, name: str) -> Path | None:
        """Return a file or folder of the run by its name, such as `best`; None if it has none."""
        if self.folder is not None:
            is_inner = self.folder.name == names.ARTIFACT_CHECKPOINTS
            places = [self.folder, *([self.folder.parent] if is_inner else [])]
            found = (place / name for place in places)
            return next((path for path in found if os.path.lexists(path)), None)
        if name not in self._listed():
            return None
        return runs.download_artifact(self.run_id or "", name, self.work)

    def best(self) -> Path:
        """Return the best checkpoint; of a registered version, its whole model folder."""
        if self.version is not None:
            return self._model_of(self.version)
        if self.folder is not None:
            is_checkpoint = (self.folder / MANIFEST_FILE).is_file()
            best = self.folder / names.ARTIFACT_BEST
            return best if best.is_dir() and not is_checkpoint else self.folder
        found = self.kept(names.ARTIFACT_BEST)
        if found is None:
            raise self._missing(
                "best checkpoint",
                "it did not finish a validation: train with evaluation.enabled=true and a "
                "validation split",
            )
        return found

    def best_manifest(self) -> Manifest | None:
        """Return what is said of the best checkpoint, without reading its model, if there is one.

        A folder that is one checkpoint is its own best.
        """
        if self.folder is not None:
            is_checkpoint = (self.folder / MANIFEST_FILE).is_file()
            found = None if is_checkpoint else self.kept(names.ARTIFACT_BEST)
        elif MANIFEST_FILE in runs.list_artifacts(self.run_id or "", names.ARTIFACT_BEST):
            path = f"{names.ARTIFACT_BEST}/{MANIFEST_FILE}"
            found = runs.download_artifact(self.run_id or "", path, self.work).parent
        else:
            found = None
        return read_manifest(found) if found and (found / MANIFEST_FILE).is_file() else None

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints in order of their steps; only one if the folder is one."""
        if self.folder is not None and (self.folder / MANIFEST_FILE).is_file():
            return [read_record(self.folder)]
        place = self.place()
        if place is None:
            raise self._missing(
                "checkpoints",
                "influence is a sum over them: train with tracking.log_checkpoints=true",
            )
        records = list_checkpoints(place)
        if not records:
            raise CheckpointError(
                f"{self.title}: no checkpoints; expected folders with {MANIFEST_FILE}, such as "
                "epoch-0005"
            )
        return records

    def place(self) -> Path | None:
        inner = self.kept(names.ARTIFACT_CHECKPOINTS)
        return inner if self.folder is None or (inner and inner.is_dir()) else self.folder

    def _listed(self) -> list[str]:
        try:
            return runs.list_artifacts(self.run_id or "")
        except TrackingError:
            if re.fullmatch(r"[0-9a-f]{32}", self.run_id or ""):
                raise
            said = f"no run {self.run_id} and no such folder; expected {EXPECTED}"
            raise CheckpointError(said) from None

    def _missing(self, what: str, advice: str) -> CheckpointError:
        """Return the error for a run without the artifact `what` of training runs."""
        kind = runs.find_run(self.run_id or "").tags.get(names.TAG_KIND, names.KIND_TRAIN)
        if kind != names.KIND_TRAIN:
            return CheckpointError(
                f"{self.title} is of kind {kind}, which has no model; give the id of a training "
                "run (`clew runs --kind train` lists them)"
            )
        has = ", ".join(runs.list_artifact_folders(self.run_id or "")) or "no artifacts"
        return CheckpointError(f"{self.title} has no {what} (it has {has}); {advice}")

    def _model_of(self, version: RegisteredVersion) -> Path:
        """Download the model folder of a registered version, without its code."""
        from clew.runs.registry import Registry  # imports MLflow

        model = Registry().download(version, self.work, SERVED_FOLDER)
        if not (model / MANIFEST_FILE).is_file():
            raise CheckpointError(
                f"{version.uri} has no {SERVED_FOLDER}/{MANIFEST_FILE}; it was not registered by "
                "`clew promote`"
            )
        return model


@contextmanager
def open_run(reference: str, purpose: str) -> Iterator[OpenedRun]:
    """Find a run, and keep the files that are asked for on local disk inside this context."""
    if not reference.strip():
        raise ConfigError(f"no model given; expected {EXPECTED}")
    folder = None if reference.startswith(REGISTRY_SCHEME) else folder_meant(reference)
    if "@" in reference and "/" not in reference and folder is None:
        raise ConfigError(
            f"model {reference!r} is not a run id; for a registered model, give "
            f"{REGISTRY_SCHEME}{reference.removeprefix('models:')}"
        )
    is_registered = reference.startswith(REGISTRY_SCHEME)
    # Errors name the run instead of the working folder, which no longer exists then.
    title = reference if is_registered else f"run {reference}"
    with working_folder(purpose, holds=title) as work:
        if is_registered:
            version = find_version(reference)
            yield OpenedRun(reference, work, version.run_id, version)
        elif folder is not None:
            yield OpenedRun(reference, work, folder=folder)
        else:
            yield OpenedRun(reference, work, reference)


def references_in(text: str) -> list[str]:
    """Return the references of an ensemble, or the only one."""
    is_several = "," in text and folder_meant(text) is None
    return [name.strip() for name in text.split(",")] if is_several else [text]


def find_version(reference: str) -> RegisteredVersion:
    """Return the registered version for `models:/name@alias` or `models:/name/3`."""
    from clew.runs.registry import Registry  # imports MLflow

    path = reference.removeprefix(REGISTRY_SCHEME).lstrip("/")  # some write models://
    name, at, alias = path.rpartition("@")
    if at and name and alias:
        return Registry().version_at(name, alias)
    name, slash, number = path.rpartition("/")
    if slash and name and number.isdigit():
        return Registry().version(name, number)
    raise ConfigError(
        f"model {reference!r} is not an address in the registry; write models:/name@champion or "
        "models:/name/3"
    )


def folder_meant(reference: str) -> Path | None:
    """Return the folder that a reference names, or None if it names none.

    Older scripts kept a model in one file, `FOLDER/best_model.pt`. If this file does not exist, the
    path means `FOLDER`.
    """
    path = Path(reference)
    if os.path.isdir(path):  # Path.is_dir raises if many run ids are too long for a path
        return path
    if path.suffix != OLDER_SUFFIX:
        return None
    if path.is_file():
        raise CheckpointError(
            f"{reference} is a file; expected a folder with {MODEL_FILE} and {MANIFEST_FILE}, "
            "because pickled files are never read; train with --output-dir and give that folder"
        )
    if not any((path.parent / name).is_dir() for name in KEPT_FOLDERS):
        return None
    logger.warning("%s does not exist; using the model in folder %s", path, path.parent)
    return path.parent
