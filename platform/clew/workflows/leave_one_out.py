"""Trains one model per held-out group, and reports all out-of-fold predictions together."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.errors import CheckpointError, ConfigError, Interrupted, TrackingError
from clew.files import remove, working_folder
from clew.image_sequences.errors import RegressionResult, predictions_file, write_regression_report
from clew.image_sequences.files import FrameTable
from clew.image_sequences.splits import group_names, load_table
from clew.runs import store
from clew.runs.base import Tracker
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import RunRecord, download_artifact, find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.workflows.dead_runs import end_if_dead
from clew.workflows.outputs import check_new_folder
from clew.workflows.resume import ResumePoint, find_in_folder, find_resume_point, runs_with
from clew.workflows.train import TrainResult, resume, train

logger = logging.getLogger(__name__)

SPLIT = "test"


@dataclass(frozen=True)
class LeaveOneOutResult(TrainResult):
    """Errors over all groups and for each group."""

    groups: list[dict[str, float | int | str]] = field(default_factory=list)

    def table(self) -> str:
        """Return the metrics, followed by one line per group."""
        keys = [key for key in self.groups[0] if key == "mae" or key.endswith("_mae")]
        lines = [super().table(), "", "  ".join(f"{k:>16}" for k in ("group", "windows", *keys))]
        for row in self.groups:
            errors = "  ".join(f"{row[key]:16.4f}" for key in keys)
            lines.append(f"{row['group']:>16}  {row['windows']:16}  {errors}")
        return "\n".join(lines)


def leaves_one_out(config: RunConfig) -> bool:
    """Return whether a configuration asks for one model per group."""
    return isinstance(config.data, ImageSequenceData) and config.data.leave_one_group_out


def train_each_group(
    config: RunConfig,
    *,
    resumes: bool = False,
    output_dir: Path | None = None,
    checkpoint_dir: Path | None = None,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    strict: bool = False,
) -> LeaveOneOutResult:
    """Train with each group as the test group in turn, as child runs of one run for all groups.

    Args:
        config: A configuration with `data.leave_one_group_out`.
        resumes: Continue the newest run of all groups with this configuration, if it did not
            finish. Groups that it finished are not trained again, and the interrupted one
            continues.
        output_dir: Where to copy the files of the runs, one folder per group.
        checkpoint_dir: Where the runs keep their checkpoints, one folder per group.
        parent_run_id: The parent of the run of all groups.
        tags: More tags of all runs. A study's cell tag is set only on the run of all groups.
        strict: Refuse options that cannot pay on this machine.

    Raises:
        UsageError: Configuration, data or tracking store cannot be used, or there is nothing to
            continue.
    """
    assert isinstance(config.data, ImageSequenceData)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "data.leave_one_group_out trains one model after another in one process; start it "
            "without torchrun"
        )
    check_new_folder("--output-dir", output_dir)
    table = load_table(config.data)
    tags = dict(tags or {})
    fold_tags = {key: value for key, value in tags.items() if key != names.TAG_CELL}
    parents = list(_unfinished(config, table.fingerprint)) if resumes else []
    if parents:
        tags[names.TAG_RESUMED_FROM] = parents[0].run_id
    with (
        _run_of_all(config, table, parent_run_id, tags) as tracker,
        working_folder("groups") as folder,
    ):
        parts = []
        for place, group in enumerate(group_names(table)):
            part = f"group-{place:02d}"
            fold = _trained(
                _fold(config, group),
                parents,
                output_dir=output_dir / part if output_dir else None,
                checkpoint_dir=checkpoint_dir / part if checkpoint_dir else None,
                parent_run_id=tracker.run_id,
                tags=fold_tags,
                strict=strict,
            )
            parts.append(_predictions(fold, folder / part))
            logger.info("group %s: %s", group, parts[-1].metrics(SPLIT))
        result = RegressionResult.together(parts)
        metrics = result.metrics(SPLIT)
        report = folder / names.ARTIFACT_EVALUATION
        report.mkdir()
        write_regression_report(result, SPLIT, table.unit, report)
        tracker.metrics(metrics, 0)
        tracker.artifact(report)
        return LeaveOneOutResult(tracker.run_id, fold.variant, metrics, groups=result.by_group())


@contextmanager
def _run_of_all(
    config: RunConfig, table: FrameTable, parent_run_id: str | None, tags: Mapping[str, str]
) -> Iterator[Tracker]:
    source = Path(config.data.source).stem
    with open_tracker(
        TrackingConfig(experiment=config.tracking.experiment),
        kind=names.KIND_EVALUATE,
        run_name=config.tracking.run_name or f"{source}, each group",
        tags={
            names.TAG_TASK: names.TASK_SEQUENCE_REGRESSION,
            names.TAG_DATASET: source,
            names.TAG_DATA_FINGERPRINT: table.fingerprint,
            names.TAG_CONFIG_HASH: config.config_hash,
            names.TAG_UNIT: table.unit,
        }
        | dict(tags),
        parent_run_id=parent_run_id,
    ) as tracker:
        try:
            yield tracker
        except Interrupted as error:
            raise Interrupted(
                f"{error}; to continue all groups: clew train --config FILE --resume"
            ) from None


def _fold(config: RunConfig, group: str) -> RunConfig:
    content = config.model_dump(mode="json")
    content["data"] |= {"leave_one_group_out": False, "test_group": group}
    content["tracking"]["run_name"] = f"{config.tracking.run_name or 'without'} {group}"
    return RunConfig.model_validate(content)


def _unfinished(config: RunConfig, fingerprint: str) -> Iterator[RunRecord]:
    """Yield the newest run of all groups, if it is unfinished, and the runs that it continued.

    Raises:
        TrackingError: There is no such run, or the newest one finished or is alive.
        CheckpointError: The run was trained on other data.
    """
    query = RunQuery(kind=names.KIND_EVALUATE, config_hash=config.config_hash)
    found = search_runs(query, limit=1).runs
    if not found or found[0].status == "FINISHED":
        raise TrackingError(
            f"--resume: in {store.in_use()}, the newest training of each group with this "
            "configuration finished, or there is none; leave --resume out to start one"
        )
    run = found[0]
    end_if_dead(run.run_id)
    if (before := run.tags.get(names.TAG_DATA_FINGERPRINT)) != fingerprint:
        raise CheckpointError(
            f"run {run.run_id} was trained on data {before}, the data now has fingerprint "
            f"{fingerprint}; resume with the same files, or start a new run"
        )
    yield run
    while earlier := run.tags.get(names.TAG_RESUMED_FROM):
        run = find_run(earlier)
        yield run


def _trained(
    fold: RunConfig,
    parents: Sequence[RunRecord],
    *,
    output_dir: Path | None,
    checkpoint_dir: Path | None,
    parent_run_id: str | None,
    tags: Mapping[str, str],
    strict: bool,
) -> TrainResult:
    earlier = [run for parent in parents for run in runs_with(fold, parent_run=parent.run_id)]
    for run in earlier:
        if run.status == "FINISHED":
            logger.info("%s: trained before, in run %s", run.name, run.run_id)
            return TrainResult(run.run_id, run.tags[names.TAG_VARIANT])

    def find(run_id: str, downloads: Path) -> ResumePoint:
        if checkpoint_dir is not None and checkpoint_dir.is_dir():
            return find_in_folder(checkpoint_dir, fold, {})
        return find_resume_point(run_id, {}, downloads)

    for run in earlier:
        try:
            return resume(
                partial(find, run.run_id),
                output_dir=output_dir,
                checkpoint_dir=checkpoint_dir,
                parent_run_id=parent_run_id,
                tags=tags,
                strict=strict,
            )
        except CheckpointError as error:
            logger.warning("%s", error)
    if parents and checkpoint_dir is not None and checkpoint_dir.is_dir():
        aside = checkpoint_dir.with_name(f".{checkpoint_dir.name}.aside")
        remove(aside)
        checkpoint_dir.rename(aside)  # no checkpoint in it can be used
    return train(
        fold,
        output_dir=output_dir,
        checkpoint_dir=checkpoint_dir,
        parent_run_id=parent_run_id,
        tags=tags,
        strict=strict,
    )


def _predictions(fold: TrainResult, folder: Path) -> RegressionResult:
    if fold.run_id is None:
        raise TrackingError("the run of a group was not recorded, so its predictions are lost")
    folder.mkdir()
    evaluation = download_artifact(fold.run_id, names.ARTIFACT_EVALUATION, folder)
    return RegressionResult.read(evaluation / predictions_file(SPLIT))
