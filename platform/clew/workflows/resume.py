"""Finds the newest good checkpoint of an interrupted run, from which it can be continued.

A run whose process died is ended first; a run whose process is alive is not touched.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clew import names
from clew.config.data import looked_up_in
from clew.config.load import Overrides, flatten, from_mapping, full_settings
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.config.training import AUTO_BATCH_SIZE
from clew.errors import CheckpointError, ConfigError, Interrupted, TrackingError, quoted
from clew.files import remove
from clew.runs import store
from clew.runs.delivery import DIED, open_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading import runs
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery, every_run
from clew.runs.spool import list_spools
from clew.training.checkpoints import load_training_values, require_whole
from clew.training.hardware import Hardware, fit_to_hardware
from clew.training.manifest import MANIFEST_FILE, MODEL_FILE, Manifest, read_manifest
from clew.training.precision import resolve_device
from clew.workflows.model_source import require_same_data
from clew.workflows.open_run import OpenedRun
from clew.workflows.warm_start import with_named_start

logger = logging.getLogger(__name__)

# With another value of one of these, the checkpoint's tensors, its best metric or the order of the
# remaining examples would no longer be valid.
FIXED_SECTIONS = ("data", "model")
FIXED_KEYS = (
    "loss.kind",
    "loss.triples_per_row",
    "optimizer.kind",
    "optimizer.row_wise",
    "evaluation.metric",
    "schedule.kind",
    "training.batch_size",
    "training.gradient_accumulation",
    "training.seed",
    "training.shuffle_block",
    "optimizations.use_mixed_precision",
    "optimizations.mixed_precision_dtype",
)
TENSORBOARD_DIR = "tracking.tensorboard_dir"


class NothingToResume(TrackingError):
    """No unfinished run has a configuration and a usable checkpoint."""


@dataclass(frozen=True)
class ResumePoint:
    """A run to continue: its checkpoint on local disk, and the configuration to continue with."""

    run_id: str
    checkpoint: Path
    manifest: Manifest
    config: RunConfig
    earlier: tuple[Path, ...]
    best: Path | None
    unused: tuple[Path, ...] = ()
    """Other checkpoints that a killed process left: partly written, damaged or later ones."""

    def __post_init__(self) -> None:
        """Refuse a checkpoint that is beyond the configured end of training."""
        done = {"num_epochs": self.manifest.epoch, "max_steps": self.manifest.step}
        for key, reached in done.items():
            wanted = getattr(self.config.training, key)
            if wanted is not None and reached > wanted:
                raise ConfigError(
                    f"training.{key} is {wanted}, but {self.checkpoint.name} has {reached}; give "
                    "at least as many, or start a new run"
                )

    @property
    def folder_of_paths(self) -> str:
        data, there = self.config.data, self.manifest.folder
        return there if there and looked_up_in(there, data) != data else os.getcwd()

    def put_aside(self) -> None:
        """Rename the unused checkpoints to hidden names, and remove partly written ones."""
        for path in self.unused:
            if path.suffix == ".tmp":
                remove(path)
            else:
                aside = path.with_name(f".{path.name}.aside")
                remove(aside)
                path.rename(aside)

    def check_data(self, fingerprint: str) -> None:
        """Refuse data that differ from the run's."""
        advice = "resume with the same files, or start a new run"
        require_same_data(self.manifest, fingerprint, f"run {self.run_id}", advice)


def find_resume_point(run_id: str, overrides: Overrides, folder: Path) -> ResumePoint:
    """Download the files that are needed to continue a run into `folder`.

    Raises:
        TrackingError: There is no such run, or its process is alive; nothing is written.
        CheckpointError: The run has no checkpoint to resume from.
        ConfigError: The run is not a training run, or an override changes a fixed setting.
    """
    run = runs.find_run(run_id)
    kind = run.tags.get(names.TAG_KIND, "none")
    if kind != names.KIND_TRAIN:
        raise ConfigError(
            f"--resume {run_id}: its {names.TAG_KIND} is {kind!r}, expected {names.KIND_TRAIN!r}; "
            "give the id of a training run"
        )
    end_if_dead(run_id)
    if names.ARTIFACT_CONFIG_YAML not in runs.list_artifacts(run_id):
        raise CheckpointError(
            f"run {run_id} ended before it wrote its configuration: there is nothing to resume; "
            "start again with clew train --config"
        )
    original = from_mapping(runs.read_config(run_id))
    config = _continued(run_id, original, overrides)
    _refuse_changes(run_id, original, config)
    opened = OpenedRun(run_id, folder, run_id)
    place, best = opened.place(), opened.kept(names.ARTIFACT_BEST) or folder / names.ARTIFACT_BEST
    checkpoints = [] if place is None else [path for path in place.iterdir() if path.is_dir()]
    (*earlier, last), best_or_none = _good(checkpoints, best, opened.title)
    manifest, wanted = read_manifest(last), config.training.num_epochs
    if run.status == "FINISHED" and manifest.epoch == wanted:
        raise ConfigError(
            f"run {run_id} has finished all of training.num_epochs, {wanted}; give more, or start "
            "a new run"
        )
    return ResumePoint(run_id, last, manifest, config, tuple(earlier), best_or_none)


def find_newest(config: RunConfig, overrides: Overrides, folder: Path) -> ResumePoint:
    """Find the newest run with this configuration that did not finish.

    Runs without a usable checkpoint are skipped with a warning.
    """
    overrides = {**full_settings(overrides), TENSORBOARD_DIR: config.tracking.tensorboard_dir}
    for run in _unfinished(with_named_start(config, is_part=False)):
        try:
            point = find_resume_point(run.run_id, overrides, folder / run.run_id)
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        logger.info("continuing run %s from %s", run.run_id, point.checkpoint.name)
        return point
    raise NothingToResume(
        f"--resume: {store.in_use()} has no unfinished run with this "
        "configuration and a checkpoint; give a run id, or leave --resume out to start one"
    )


def _unfinished(config: RunConfig) -> Iterator[RunRecord]:
    """Yield unfinished runs with a configuration, newest first; skip those resumed to the end."""
    completed: set[str] = set()
    # Runs record the configuration without the options that were switched off on this machine.
    config, _ = fit_to_hardware(config, Hardware.of(resolve_device(config.training.device)))
    is_auto = config.training.batch_size == AUTO_BATCH_SIZE
    query = RunQuery(kind=names.KIND_TRAIN, config_hash="" if is_auto else config.config_hash)
    for run in every_run(query):
        prefix = f"{names.PARAMETER_PREFIX}training."
        batch = (run.params.get(prefix + k) for k in ("batch_size", "gradient_accumulation"))
        if run.tags.get(names.TAG_CONFIG_HASH) != _with_batch(config, *batch).config_hash:
            continue
        if run.status == "FINISHED" or run.run_id in completed:
            completed.add(run.tags.get(names.TAG_RESUMED_FROM, ""))
        else:
            yield run


def _with_batch(config: RunConfig, batch_size: object, accumulation: object) -> RunConfig:
    """Return a configuration with a run's batch sizes instead of `auto`."""
    if config.training.batch_size != AUTO_BATCH_SIZE or batch_size is None:
        return config
    settings = {"batch_size": batch_size, "gradient_accumulation": accumulation}
    content = config.model_dump(mode="json")
    content["training"] |= settings | {"effective_batch_size": None}
    return RunConfig.model_validate(content)


def find_in_folder(folder: Path, config: RunConfig | None, overrides: Overrides) -> ResumePoint:
    """Return the newest good checkpoint of a folder that was given as `--checkpoint-dir`.

    The folder contains `checkpoints/`, or the checkpoints themselves. Without a configuration to
    continue with, that of the checkpoint is used, with the overrides.

    Raises:
        CheckpointError: The folder has no checkpoint to resume from.
        ConfigError: The configuration changes a fixed setting.
        TrackingError: The process that writes there is alive.
    """
    place = OpenedRun(str(folder), folder, folder=folder).place() or folder
    is_named = place.name == names.ARTIFACT_CHECKPOINTS
    best = (place.parent if is_named else place) / names.ARTIFACT_BEST
    kept = {file.parent for name in (MANIFEST_FILE, MODEL_FILE) for file in place.glob(f"*/{name}")}
    found = [path for path in kept if path != best and not path.name.startswith(".")]
    (*earlier, last), best_or_none = _good(found, best, str(folder))
    manifest = read_manifest(last)
    original = from_mapping(manifest.config, source=str(last))
    if config is None:
        config = _continued(manifest.run_id, original, overrides)
    training = original.training
    config = _with_batch(config, training.batch_size, training.gradient_accumulation)
    _refuse_changes(manifest.run_id, original, config)
    end_if_dead(manifest.run_id)
    logger.info("continuing from %s", last)
    left = {*place.glob(".*.tmp"), *best.parent.glob(f".{best.name}.*.tmp"), *found}
    left |= {best} if best.is_dir() else set()
    unused = tuple(left - {*earlier, last, best_or_none})
    run_id, before = manifest.run_id, tuple(earlier)
    return ResumePoint(run_id, last, manifest, config, before, best_or_none, unused)


def _continued(run_id: str, original: RunConfig, overrides: Overrides) -> RunConfig:
    """Return a run's configuration with overrides; it names no folder where nothing was written."""
    config = from_mapping(original.model_dump(mode="json"), overrides, source="--resume")
    folder, is_given = config.tracking.tensorboard_dir, TENSORBOARD_DIR in full_settings(overrides)
    is_here = Path(folder).resolve().is_relative_to(Path.cwd())
    has_files = any(Path(folder, Path(run_id).name).glob("events.out.tfevents.*"))
    if config.tracking.tensorboard and not (is_given or is_here or has_files):
        raise ConfigError(
            f"the run names {TENSORBOARD_DIR} {quoted(folder)}, outside this folder, and has no "
            f"files there; allow it with {TENSORBOARD_DIR}=..., or set tracking.tensorboard=false"
        )
    return config


def _refuse_changes(run_id: str, original: RunConfig, config: RunConfig) -> None:
    config, _ = fit_to_hardware(config, Hardware.of(resolve_device(config.training.device)))
    before, after = flatten(original), flatten(config)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) == after.get(key):
            continue
        # With a sharded table, the number of processes may change: only the sum of their batches
        # must stay the same.
        sharded = original.training.shard_entities or config.training.shard_entities
        shared = key == "training.batch_size" and sharded
        if (key.partition(".")[0] in FIXED_SECTIONS or key in FIXED_KEYS) and not shared:
            raise ConfigError(
                f"{key}: run {run_id} has {before.get(key)!r}, {after.get(key)!r} given; it "
                "cannot change in a resumed run: start a new run instead"
            )
        logger.info("resumed with %s %r instead of %r", key, after.get(key), before.get(key))


def _good(
    checkpoints: Sequence[Path], best: Path, source: str
) -> tuple[tuple[Path, ...], Path | None]:
    """Return the good checkpoints in order of their steps, and the best one if there is one.

    The run can continue from the last of them as if it had never stopped. Damaged checkpoints are
    left out. If the best checkpoint is damaged or missing, all checkpoints from its step on are
    left out too, because training must reach that step again.
    """
    found, problems = [], []
    for path in sorted(checkpoints):
        try:
            manifest = require_whole(path)
            best_step = load_training_values(path).progress.best_step
            found.append((manifest.step, path, best_step))
        except CheckpointError as error:
            problems.append(str(error).replace(f"{path.parent}/", ""))
    found.sort()
    has_best = False
    with suppress(CheckpointError):
        require_whole(best)
        has_best = True
    if found and (best_step := found[-1][2]) >= 0 and not has_best:
        problems.append(f"{best.name} is damaged or missing")
        found = [entry for entry in found if entry[0] < best_step]
    said = "; ".join(problems)
    if not found:
        raise CheckpointError(
            f"{source} has no checkpoint to resume from{f' ({said})' if said else ''}; start again "
            "with clew train --config"
        )
    if problems:
        logger.warning("%s: %s; continuing from %s", source, said, found[-1][1].name)
    return tuple(path for _, path, _ in found), best if has_best else None


def end_if_dead(run_id: str) -> None:
    """End a run whose process died, if the store has the run."""
    try:
        run = runs.find_run(run_id)
    except TrackingError:  # the folder may come from another machine, with another store
        return
    if run.status == "RUNNING":
        require_dead(run)
        # The records in its spool are sent first; its configuration may be one of them.
        kind = run.tags.get(names.TAG_KIND, names.KIND_TRAIN)
        with suppress(Interrupted), open_tracker(TrackingConfig(), kind=kind, run_id=run_id):
            raise Interrupted(DIED)


def require_dead(run: RunRecord) -> None:
    """Refuse a run whose process is alive.

    A process of this machine is alive if it holds the lock of the run's spool. If there is no spool
    here, the last sign of life in the store decides.
    """
    folder = store.spool_root() / run.run_id
    if folder in list_spools(folder.parent):
        open_spool(folder).close(keep=True)
    elif runs.last_heartbeat(run) is None:
        raise TrackingError(
            f"run {run.run_id} is marked as running and sent no heartbeat, so nobody knows whether "
            "it is alive; if it is not, run `clew sync` where it ran, or end it: MlflowClient()."
            f"set_terminated({run.run_id!r}, 'KILLED')"
        )
    elif runs.state_of(run) == "running":
        silent = time.time() - runs.last_sign_of_life(run)
        raise TrackingError(
            f"run {run.run_id} was alive {silent:.0f} s ago, on another machine or with another "
            "spool folder; wait until it ends; if its process was killed, wait until it has been "
            f"silent for {runs.HEARTBEAT_LIMIT_SECONDS:.0f} s"
        )
