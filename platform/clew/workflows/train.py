"""Trains a configuration, evaluates the model, and records the run in the tracking store."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clew import names
from clew.config.data import looked_up_in
from clew.config.graph_models import GraphModelSettings
from clew.config.load import to_yaml
from clew.config.schema import RunConfig
from clew.config.training import DEFAULT_TIMEOUT_SECONDS
from clew.errors import ConfigError
from clew.files import working_folder
from clew.link_prediction.other_models import OtherModel
from clew.link_prediction.task import LinkPrediction
from clew.runs.hardware import process_gib, process_peak_gib, reset_process_peak
from clew.training.checkpoints import load_model, load_training_values
from clew.training.distributed import (
    World,
    code_digest,
    joined_world,
    reporting_lost_peers,
    require_same,
)
from clew.training.hardware import Hardware, fit_to_hardware
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.training.precision import resolve_device, variant_name
from clew.training.progress import Watch
from clew.training.reports import Reports
from clew.training.seeding import own_process
from clew.training.setup import (
    build_trainer,
    count_parameters,
    measure_before_training,
    prepare_process,
)
from clew.training.task import Task
from clew.training.trainer import Trainer
from clew.workflows.evaluate import as_note, grouped, verdict_of_training
from clew.workflows.memory_guard import (
    explaining_lack_of_memory,
    predicted_memory,
    resolve_batch_size,
)
from clew.workflows.model_source import LoadedModel
from clew.workflows.plan import limited_to_data
from clew.workflows.resume import ResumePoint
from clew.workflows.subjects import SUBJECTS, build_task
from clew.workflows.training_run import (
    RUN_FILES,
    check_folders,
    check_output_dir,
    copy_outputs,
    free_output_dir,
    goes_on_with,
    keeping_checkpoints,
    only_training_in,
    open_training_run,
    origin_of,
    watched_at,
)
from clew.workflows.warm_start import check_start, start_warm, with_named_start

FindPoint = Callable[[Path], ResumePoint]
"""Finds the checkpoint to continue from; it can download it into the folder that is passed."""


@dataclass(frozen=True)
class TrainResult:
    """The run, the variant and the metrics of a finished training."""

    run_id: str | None
    variant: str
    metrics: dict[str, float] = field(default_factory=dict)
    verdict: list[str] = field(default_factory=list)
    """What came out, in at most seven lines; empty in a process that does not report."""

    def table(self, *, everything: bool = False) -> str:
        """Return the run and the verdict, and all metrics in groups if `everything` is true."""
        lines = [f"run {self.run_id or '(not recorded)'}  {self.variant}", *self.verdict]
        return "\n".join(lines + (grouped(self.metrics) if everything else []))


def train(
    start: RunConfig | FindPoint,
    *,
    output_dir: Path | None = None,
    checkpoint_dir: Path | None = None,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    watch: Watch | None = None,
    strict: bool = False,
    imported: OtherModel | None = None,
) -> TrainResult:
    """Train, evaluate and record one run; or continue one, as a new run with its checkpoints.

    Args:
        start: The configuration, or what finds the checkpoint to continue from.
        output_dir: Also copy the run's files to this new folder at the end; if it contains a
            finished training, to a new folder next to it. For a run that is continued, it can
            contain that run's files up to the checkpoint.
        checkpoint_dir: Keep the run's files in this folder during training: a new one, or that of
            the run that is continued.
        parent_run_id: Parent of the run, if it is part of another run.
        tags: More tags of the run.
        watch: Watches the training, and can stop it.
        strict: Refuse options that cannot pay on this machine, instead of switching them off.
        imported: A model of another library, which is recorded in place of a training run.

    Raises:
        UsageError: Configuration, data or tracking store cannot be used; nothing is left running.
        ProtectedStop: The training stopped to protect the result.
        Interrupted: The user stopped the training, which left a checkpoint, or the watch did.
    """
    is_part, watch = parent_run_id is not None, watch or Watch()
    check_folders(output_dir, checkpoint_dir, resumes=not isinstance(start, RunConfig))
    with _joined(start, output_dir, is_part=is_part) as (joined, reports, given, point):
        config = with_named_start(given, is_part=is_part)
        device = resolve_device(config.training.device, joined.local_rank)
        config, remarks = fit_to_hardware(config, Hardware.of(device), strict=strict)
        prepare_process(config)
        world = _sharing(joined, config)
        config = resolve_batch_size(config, device, world)
        place = os.getcwd() if point is None else point.folder_of_paths
        task = _checked_task(config, world, place, point, imported)
        planned, lines = limited_to_data(config, len(task.train_examples()), world.size)
        tracker = open_training_run(
            config, task, device=device, world=world, point=point, parent_run_id=parent_run_id
        )
        if point is None:
            output_dir = free_output_dir(output_dir, tracker)
        with (
            tracker,
            explaining_lack_of_memory(planned, task, device),
            working_folder("train") as temporary,
            only_training_in("--checkpoint-dir", checkpoint_dir, world),
            only_training_in("--output-dir", output_dir, world),
        ):
            check_output_dir(output_dir, point)  # another run may have filled it meanwhile
            tracker.tags(tags or {})
            for remark in [*remarks, *lines] if world.is_main else ():
                tracker.warn(remark)
            watch.started(tracker)
            folder = _folder_of_all(checkpoint_dir or temporary, world)
            reports.doing = "building the model"
            predicted, used_gib = predicted_memory(planned, task, device, world), process_gib()
            trainer = build_trainer(
                config,
                task,
                tracker,
                device=device,
                world=world,
                folder=folder,
                origin=origin_of(config, task, tracker, device, place),
                keep_all_checkpoints=output_dir is not None or checkpoint_dir is not None,
                goes_on_with=goes_on_with(config, tracker, checkpoint_dir),
                watch=watch,
                reports=reports,
            )
            with keeping_checkpoints(trainer.checkpointer, checkpoint_dir, temporary):
                return _run(
                    trainer, point, output_dir, imported, predicted=predicted, used_gib=used_gib
                )


@contextmanager
def _joined(
    start: RunConfig | FindPoint, output_dir: Path | None, *, is_part: bool
) -> Iterator[tuple[World, Reports, RunConfig, ResumePoint | None]]:
    """Join the other processes, if any, and find the checkpoint to continue from."""
    timeout = DEFAULT_TIMEOUT_SECONDS
    if isinstance(start, RunConfig):
        timeout = start.training.peer_timeout_seconds
    with (
        own_process(),
        joined_world(timeout) as world,
        reporting_lost_peers(world),
        Reports(speaks=world.is_main, is_part=is_part) as reports,
    ):
        if isinstance(start, RunConfig):
            yield world, reports, start, None
            return
        with working_folder("resume", holds="the resumed run") as downloads:
            with world.main_first():
                point = start(downloads)
                check_output_dir(output_dir, point)
            world.wait_for_peers(point.config.training.peer_timeout_seconds)
            yield world, reports, point.config, point


def _folder_of_all(folder: Path, world: World) -> Path:
    if world.exchange is not None:  # every process writes its rows to the main one's folder
        folder = Path(world.broadcast_text(str(folder.resolve()), torch.device("cpu")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _sharing(world: World, config: RunConfig) -> World:
    if not config.training.shard_entities:
        return world
    if world.size == 1:
        raise ConfigError(
            "training.shard_entities is true, but there is only one process; start with "
            "torchrun --nproc_per_node=4 -m clew train, or set it to false"
        )
    return world.sharing_tables()


def _checked_task(
    config: RunConfig,
    world: World,
    place: str,
    point: ResumePoint | None,
    imported: OtherModel | None,
) -> Task[Any]:
    """Read the data, and refuse what cannot be trained on them."""
    task = build_task(config.model_copy(update={"data": looked_up_in(place, config.data)}))
    _check_validation(config, task)
    _require_same_in_all(world, config, task)
    if point is not None:
        point.check_data(task.data_fingerprint)
    elif (earlier := _start_of(config, imported)) is not None:
        check_start(task, earlier)
    return task


def _start_of(config: RunConfig, imported: OtherModel | None) -> OtherModel | str | None:
    if imported is None and isinstance(config.model, GraphModelSettings):
        return config.model.warm_start or None
    return imported


def _require_same_in_all(world: World, config: RunConfig, task: Task[Any]) -> None:
    """Refuse processes with different code, data or configuration, or too many for the table."""
    if world.size == 1:
        return
    facts = {
        "code": code_digest(),
        "torch version": torch.__version__,
        "data fingerprint": task.data_fingerprint,
        "configuration": config.config_hash,
    }
    require_same(world, facts)
    if not config.training.shard_entities:
        return
    assert isinstance(task, LinkPrediction)
    shared = {"training examples": len(task.train_examples()), "entities": task.graph.num_entities}
    for things, number in shared.items():
        if number < world.size:
            raise ConfigError(
                f"{number} {things} for {world.size} processes, and each needs one; start fewer "
                "processes"
            )


def _check_validation(config: RunConfig, task: Task[Any]) -> None:
    """Refuse data without validation examples before training starts."""
    if config.evaluation.enabled and not task.has_examples("valid"):
        given = {
            "triples": "give data.valid, a file of triples",
            "tokens": "set data.valid_fraction to more than 0",
            "image_sequences": "set data.hold_out_validation=true",
        }[config.data.kind]
        raise ConfigError(
            f"{config.data.source}: no validation examples, but evaluation.enabled is true; "
            f"{given}, or set evaluation.enabled=false"
        )


def _run(
    trainer: Trainer[Any],
    point: ResumePoint | None,
    output_dir: Path | None,
    imported: OtherModel | None,
    *,
    predicted: dict[str, float],
    used_gib: float,
) -> TrainResult:
    config, tracker = trainer.config, trainer.history.tracker
    folder = trainer.checkpointer.folder
    parameters = count_parameters(trainer.model)
    tracker.tags({names.TAG_PARAMETERS: str(parameters)})
    _write_run_files(trainer)
    if point is None and (earlier := _start_of(config, imported)) is not None:
        tracker.tags(start_warm(trainer.model, trainer.task, earlier).tags())
    before = predicted | measure_before_training(trainer)
    if point is not None:
        _require_equal_batches(trainer, point)
        trainer.checkpointer.resumable.restore(point.checkpoint)
        if trainer.world.is_main:  # the new run also contains the earlier checkpoints
            point.put_aside()
            trainer.checkpointer.adopt([*point.earlier, point.checkpoint], point.best)
    subject, watched = SUBJECTS[config.data.kind], watched_at(config, tracker)
    data = subject.describe_data(trainer.task)
    findings = subject.findings(trainer.task) if trainer.world.is_main else []
    trainer.reports.begin(trainer, data, findings, watched)
    reset_gpu_peaks(trainer.precision.device)
    reset_process_peak()
    trainer.history.start()
    trainer.record(before)
    progress = trainer.train() if imported is None else trainer.adopt()
    trainer.reports.doing = "evaluating the test split and storing the run"
    peak = process_peak_gib()
    metrics = gpu_peaks(trainer.precision.device) | {
        names.PROCESS_PEAK_GIB: peak,
        names.PROCESS_GROWTH_GIB: peak - used_gib,
        names.TIME_TOTAL_SECONDS: trainer.history.elapsed_seconds,
        names.TRAIN_SKIPPED_STEPS: float(progress.skipped_steps),
    }
    metrics |= _test(trainer)
    trainer.record(metrics)
    if progress.best_step >= 0:
        tracker.tags({names.TAG_BEST_STEP: str(progress.best_step)})
    if trainer.world.is_main:
        trainer.history.write(folder / names.ARTIFACT_HISTORY)
        tracker.artifact(folder / names.ARTIFACT_HISTORY)
        if output_dir is not None:
            copy_outputs(folder, output_dir)
    latest = {entry.key: entry.value for entry in trainer.history.entries}
    said = []
    if trainer.world.is_main and trainer.world.exchange is None:
        kind, run_id = config.data.kind, tracker.run_id
        said = verdict_of_training(trainer.task, kind, latest, run_id=run_id, output_dir=output_dir)
        tracker.tags(as_note(said))
    variant = variant_name(trainer.config.optimizations, trainer.precision.name)
    return TrainResult(tracker.run_id, variant, latest, said)


def _require_equal_batches(trainer: Trainer[Any], point: ResumePoint) -> None:
    """Refuse a resumed run whose processes together have another batch size than before."""
    before = point.manifest.config["training"]["batch_size"]
    processes = load_training_values(point.checkpoint).world_size
    now, size = trainer.settings.batch_size, trainer.world.size
    if before * processes != now * size:
        raise ConfigError(
            f"training.batch_size is {now} in {size} processes, but the run had "
            f"{before} in {processes}; a resumed run needs the same number of examples in a step: "
            f"{before * processes} in all"
        )


def _test(trainer: Trainer[Any]) -> dict[str, float]:
    evaluation = trainer.config.evaluation
    if not (evaluation.enabled and evaluation.test_after_training) or not trainer.world.evaluates:
        return {}
    if trainer.checkpointer.best.is_dir():
        load_model(trainer.checkpointer.best, trainer.model)
    metrics = LoadedModel(trainer.task, trainer.model, trainer.precision.device).metrics("test")
    if not trainer.world.is_main:
        return metrics
    report = trainer.checkpointer.folder / names.ARTIFACT_EVALUATION
    trainer.task.write_report("test", report)
    if report.is_dir():
        trainer.history.tracker.artifact(report)
    return metrics


def _write_run_files(trainer: Trainer[Any]) -> None:
    """Write configuration and names, so that the run can be repeated, and used without its data."""
    if not trainer.world.is_main:
        return
    config, folder = trainer.config, trainer.checkpointer.folder
    as_yaml, as_json = folder / names.ARTIFACT_CONFIG_YAML, folder / names.ARTIFACT_CONFIG_JSON
    as_yaml.write_text(to_yaml(config), encoding="utf-8")
    as_json.write_text(json.dumps(config.model_dump(mode="json"), indent=2), encoding="utf-8")
    extra = folder / RUN_FILES
    extra.mkdir(exist_ok=True)
    trainer.task.write_artifacts(extra)
    for path in (as_yaml, as_json, *sorted(extra.iterdir())):
        trainer.history.tracker.artifact(path)
