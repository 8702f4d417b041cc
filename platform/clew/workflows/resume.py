"""Finds where an interrupted run can be taken up: its newest good checkpoint."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew import names
from clew.config.load import flatten, from_mapping
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.errors import CheckpointError, ConfigError, TrackingError
from clew.runs import store
from clew.runs.journal import Journal, list_journals
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import (
    RunRecord,
    download_artifact,
    find_run,
    list_artifact_folders,
    list_artifacts,
    read_config,
)
from clew.runs.reading.search import HEARTBEAT_LIMIT_SECONDS, last_sign_of_life, state_of
from clew.training.checkpoints import Manifest, load_training_state, read_manifest

logger = logging.getLogger(__name__)

# Another value of one of these would make the checkpoint's tensors, its best metric, or the order
# of the remaining examples, mean something else.
FIXED_SECTIONS = ("data", "model")
FIXED_KEYS = (
    "loss.kind",
    "optimizer.kind",
    "optimizer.row_wise",
    "evaluation.metric",
    "schedule.kind",
    "training.batch_size",
    "training.gradient_accumulation",
    "training.seed",
    "optimizations.use_mixed_precision",
    "optimizations.mixed_precision_dtype",
)


@dataclass(frozen=True)
class ResumePoint:
    """A run to go on from: its checkpoint on local disk, and the configuration from here on."""

    run_id: str
    checkpoint: Path
    manifest: Manifest
    config: RunConfig
    earlier: tuple[Path, ...]
    best: Path | None

    def check_data(self, fingerprint: str) -> None:
        """Refuse data other than the run's.

        Raises:
            CheckpointError: the fingerprints differ.
        """
        if fingerprint != self.manifest.data_fingerprint:
            raise CheckpointError(
                f"run {self.run_id} was trained on data {self.manifest.data_fingerprint}, the "
                f"data now has fingerprint {fingerprint}; resume with the same files, or start a "
                "new run"
            )


def find_resume_point(run_id: str, overrides: Mapping[str, Any], folder: Path) -> ResumePoint:
    """Download what is needed to go on from a run into `folder`.

    Raises:
        TrackingError: there is no such run, or its process is alive; nothing is written.
        CheckpointError: it has no checkpoint that can be resumed from.
        ConfigError: it is no training run, or an override changes what must stay as it was.
    """
    run = find_run(run_id)
    kind = run.tags.get(names.TAG_KIND, "none")
    if kind != names.KIND_TRAIN:
        raise ConfigError(
            f"--resume {run_id}: its {names.TAG_KIND} is {kind!r}, expected {names.KIND_TRAIN!r}; "
            "give the id of a training run"
        )
    if run.status == "RUNNING":
        _require_dead(run)
        _settle(run_id)
    if names.ARTIFACT_CONFIG_YAML not in list_artifacts(run_id):
        raise CheckpointError(
            f"run {run_id} ended before it wrote its configuration: there is nothing to resume; "
            "start it anew (clew train --config)"
        )
    original = from_mapping(read_config(run_id, folder))
    config = from_mapping(original.model_dump(mode="json"), overrides, source="--resume")
    _refuse_changes(run_id, original, config)
    checkpoint, earlier = _newest_good(run_id, folder)
    best = None
    if names.ARTIFACT_BEST in list_artifact_folders(run_id, ""):
        best = download_artifact(run_id, names.ARTIFACT_BEST, folder)
    return ResumePoint(run_id, checkpoint, read_manifest(checkpoint), config, earlier, best)


def _require_dead(run: RunRecord) -> None:
    """Refuse a run whose process is alive: it holds its spool here, or was heard of from elsewhere.

    A spool that nobody holds is a process of this machine that died, however lately.
    """
    folder = store.spool_root() / run.run_id
    if folder in list_journals(folder.parent):
        Journal.open(folder).close(keep=True)
    elif state_of(run) == "running":
        silent = time.time() - last_sign_of_life(run)
        raise TrackingError(
            f"run {run.run_id} was alive {silent:.0f} s ago, on another machine or with another "
            f"spool folder; wait for its end, or until it was silent for "
            f"{HEARTBEAT_LIMIT_SECONDS:.0f} s if its process was killed"
        )


def _settle(run_id: str) -> None:
    """End a run whose process died, once everything that it left in the spool is sent.

    Its configuration may be among that.
    """
    open_tracker(TrackingConfig(), kind=names.KIND_TRAIN, run_id=run_id).finish("KILLED")


def _refuse_changes(run_id: str, original: RunConfig, config: RunConfig) -> None:
    before, after = flatten(original), flatten(config)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        if key.partition(".")[0] in FIXED_SECTIONS or key in FIXED_KEYS:
            raise ConfigError(
                f"{key}: run {run_id} has {before.get(key)!r}, {after.get(key)!r} given; it cannot "
                "change in a resumed run, start a new one instead"
            )
        logger.info("resumed with %s %r instead of %r", key, after.get(key), before.get(key))


def _newest_good(run_id: str, folder: Path) -> tuple[Path, tuple[Path, ...]]:
    """Return the newest checkpoint that reads well, and the ones before it."""
    paths = []
    for name in list_artifact_folders(run_id, names.ARTIFACT_CHECKPOINTS):
        path = download_artifact(run_id, f"{names.ARTIFACT_CHECKPOINTS}/{name}", folder)
        try:
            load_training_state(path)
            paths.append((read_manifest(path).step, path))
        except (CheckpointError, ValueError) as error:
            logger.warning("checkpoint %s of run %s is not usable: %s", name, run_id, error)
    if not paths:
        raise CheckpointError(
            f"run {run_id} has no checkpoint to resume from; start it anew (clew train --config)"
        )
    ordered = [path for _, path in sorted(paths, key=lambda item: (item[0], item[1].name))]
    return ordered[-1], tuple(ordered[:-1])
