"""Finds where an interrupted run can be continued: its newest good checkpoint."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew import names
from clew.config.load import flatten, from_mapping
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.config.training import AUTO_BATCH_SIZE
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
from clew.runs.reading.search import (
    HEARTBEAT_LIMIT_SECONDS,
    RunQuery,
    last_sign_of_life,
    search_runs,
    state_of,
)
from clew.training.checkpoints import (
    Manifest,
    list_checkpoints,
    load_training_state,
    read_manifest,
)

logger = logging.getLogger(__name__)

NUM_SEARCHED = 50
"""Runs that a search for one to continue reads at a time."""

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
    """A run to continue: its checkpoint on local disk, and the configuration from here on."""

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
    """Download what is needed to continue a run into `folder`.

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
        require_dead(run)
        _settle(run_id)
    if names.ARTIFACT_CONFIG_YAML not in list_artifacts(run_id):
        raise CheckpointError(
            f"run {run_id} ended before it wrote its configuration: there is nothing to resume; "
            "start again with clew train --config"
        )
    original = from_mapping(read_config(run_id, folder))
    config = from_mapping(original.model_dump(mode="json"), overrides, source="--resume")
    _refuse_changes(run_id, original, config)
    checkpoint, earlier = _newest_good(run_id, folder)
    best = None
    if names.ARTIFACT_BEST in list_artifact_folders(run_id, ""):
        best = download_artifact(run_id, names.ARTIFACT_BEST, folder)
    return ResumePoint(run_id, checkpoint, read_manifest(checkpoint), config, earlier, best)


def find_newest(config: RunConfig, overrides: Mapping[str, Any], folder: Path) -> ResumePoint:
    """Find the newest run with this configuration that did not finish.

    Runs without a usable checkpoint are passed over, with a warning.

    Raises:
        TrackingError: there is none, or it is alive.
    """
    for run in _unfinished(config):
        try:
            point = find_resume_point(run.run_id, overrides, folder / run.run_id)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        logger.info("continuing run %s from %s", run.run_id, point.checkpoint.name)
        return point
    raise TrackingError(
        f"--resume: {store.shown(store.tracking_uri())} has no unfinished run with this "
        "configuration and a checkpoint; give a run id, or leave --resume out to start one"
    )


def _unfinished(config: RunConfig) -> Iterator[RunRecord]:
    """Yield runs with a configuration, newest first, without those that a finished one resumed."""
    is_auto = config.training.batch_size == AUTO_BATCH_SIZE
    query = RunQuery(kind=names.KIND_TRAIN, config_hash="" if is_auto else config.config_hash)
    completed: set[str] = set()
    offset, more = 0, True
    while more:
        page = search_runs(query, offset=offset, limit=NUM_SEARCHED)
        offset, more = offset + NUM_SEARCHED, page.more
        for run in page.runs:
            prefix = f"{names.PARAMETER_PREFIX}training."
            batch = (run.params.get(prefix + k) for k in ("batch_size", "gradient_accumulation"))
            if run.tags.get(names.TAG_CONFIG_HASH) != _with_batch(config, *batch).config_hash:
                continue
            if run.status == "FINISHED" or run.run_id in completed:
                completed.add(run.tags.get(names.TAG_RESUMED_FROM, ""))
            else:
                yield run


def _with_batch(config: RunConfig, batch_size: object, accumulation: object) -> RunConfig:
    """Return a configuration with a run's batch sizes in place of `auto`."""
    if config.training.batch_size != AUTO_BATCH_SIZE or batch_size is None:
        return config
    settings = {"batch_size": batch_size, "gradient_accumulation": accumulation}
    content = config.model_dump(mode="json")
    content["training"] |= settings | {"effective_batch_size": None}
    return RunConfig.model_validate(content)


def find_in_folder(
    folder: Path, config: RunConfig | None, overrides: Mapping[str, Any]
) -> ResumePoint:
    """Return the newest good checkpoint of a folder that `--checkpoint-dir` kept.

    Args:
        folder: With `checkpoints/` in it, or with the checkpoints themselves.
        config: What to continue with; None: the configuration of the checkpoint.
        overrides: Settings that replace the checkpoint's own.

    Raises:
        CheckpointError: it has no checkpoint that can be resumed from.
        ConfigError: the configuration changes what must stay as it was.
        TrackingError: the process that writes there is alive.
    """
    inner = folder / names.ARTIFACT_CHECKPOINTS
    found = list_checkpoints(inner if inner.is_dir() else folder)
    usable = _usable([record.path for record in found], str(folder))
    manifest = read_manifest(usable[-1])
    original = from_mapping(manifest.config, source=str(usable[-1]))
    if config is None:
        config = from_mapping(original.model_dump(mode="json"), overrides, source="--resume")
    training = original.training
    config = _with_batch(config, training.batch_size, training.gradient_accumulation)
    _refuse_changes(manifest.run_id, original, config)
    end_if_dead(manifest.run_id)
    best = folder / names.ARTIFACT_BEST
    logger.info("continuing from %s", usable[-1])
    return ResumePoint(
        manifest.run_id,
        usable[-1],
        manifest,
        config,
        usable[:-1],
        best if best.is_dir() else None,
    )


def end_if_dead(run_id: str) -> None:
    """End a run whose process died, if the store has it.

    Raises:
        TrackingError: it is alive.
    """
    try:
        run = find_run(run_id)
    except TrackingError:  # the folder may come from another machine, with another store
        return
    if run.status == "RUNNING":
        require_dead(run)
        _settle(run_id)


def require_dead(run: RunRecord) -> None:
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
    paths = [
        download_artifact(run_id, f"{names.ARTIFACT_CHECKPOINTS}/{name}", folder)
        for name in list_artifact_folders(run_id, names.ARTIFACT_CHECKPOINTS)
    ]
    usable = _usable(paths, f"run {run_id}")
    return usable[-1], usable[:-1]


def _usable(paths: Sequence[Path], source: str) -> tuple[Path, ...]:
    """Return the checkpoints that read well, in order of their steps.

    Raises:
        CheckpointError: there are none.
    """
    found = []
    for path in paths:
        try:
            load_training_state(path)
            found.append((read_manifest(path).step, path))
        except (CheckpointError, ValueError) as error:
            logger.warning("checkpoint %s of %s is not usable: %s", path.name, source, error)
    if not found:
        raise CheckpointError(
            f"{source} has no checkpoint to resume from; start again with clew train --config"
        )
    return tuple(path for _, path in sorted(found, key=lambda item: (item[0], item[1].name)))
