"""Leave one group out: a model for each group in turn, and all predictions out of fold together."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import RunConfig
from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.files import working_folder
from clew.image_sequences.errors import RegressionResult
from clew.image_sequences.report import predictions_file, write_regression_report
from clew.image_sequences.splits import group_names, load_table
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import download_artifact
from clew.workflows.outputs import check_new_folder
from clew.workflows.train import TrainResult, train

logger = logging.getLogger(__name__)

SPLIT = "test"


@dataclass(frozen=True)
class LeaveOneOutResult(TrainResult):
    """Errors over all groups, and by group."""

    groups: list[dict[str, float | int | str]] = field(default_factory=list)

    def table(self) -> str:
        """Return the metrics, then one line for each group."""
        keys = [key for key in self.groups[0] if key == "mae" or key.endswith("_mae")]
        lines = [super().table(), "", "  ".join(f"{k:>16}" for k in ("group", "windows", *keys))]
        for row in self.groups:
            errors = "  ".join(f"{row[key]:16.4f}" for key in keys)
            lines.append(f"{row['group']:>16}  {row['windows']:16}  {errors}")
        return "\n".join(lines)


def leaves_one_out(config: RunConfig) -> bool:
    """Return whether a configuration asks for a model for each group."""
    return isinstance(config.data, ImageSequenceData) and config.data.leave_one_group_out


def train_each_group(
    config: RunConfig,
    *,
    output_dir: Path | None = None,
    checkpoint_dir: Path | None = None,
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> LeaveOneOutResult:
    """Train with each group held out for the test, in runs below one that reports all of them.

    Args:
        config: With `data.leave_one_group_out`.
        output_dir: Where to copy the runs' files, one folder for each group.
        checkpoint_dir: Where the runs keep their checkpoints, one folder for each group.
        parent_run_id: Run of which this one is a part.
        tags: Further tags of all runs; a study's cell is the run above them alone.

    Raises:
        UsageError: configuration, data or tracking store cannot be used.
    """
    assert isinstance(config.data, ImageSequenceData)
    check_new_folder("--output-dir", output_dir)
    table = load_table(config.data)
    tags = dict(tags or {})
    with (
        open_tracker(
            TrackingConfig(experiment=config.tracking.experiment),
            kind=names.KIND_EVALUATE,
            run_name=config.tracking.run_name or f"{Path(config.data.source).stem}, each group",
            tags={
                names.TAG_TASK: names.TASK_SEQUENCE_REGRESSION,
                names.TAG_DATASET: Path(config.data.source).stem,
                names.TAG_DATA_FINGERPRINT: table.fingerprint,
                names.TAG_CONFIG_HASH: config.config_hash,
                names.TAG_UNIT: table.unit,
            }
            | tags,
            parent_run_id=parent_run_id,
        ) as tracker,
        working_folder("groups") as name,
    ):
        parts = []
        for place, group in enumerate(group_names(table)):
            fold = train(
                _fold(config, group),
                output_dir=output_dir / f"group-{place:02d}" if output_dir else None,
                checkpoint_dir=checkpoint_dir / f"group-{place:02d}" if checkpoint_dir else None,
                parent_run_id=tracker.run_id,
                tags={key: value for key, value in tags.items() if key != names.TAG_CELL},
            )
            parts.append(_predictions(fold, name / str(place)))
            logger.info("group %s: %s", group, parts[-1].metrics(SPLIT))
        result = RegressionResult.together(parts)
        metrics = result.metrics(SPLIT)
        report = name / names.ARTIFACT_EVALUATION
        report.mkdir()
        write_regression_report(result, SPLIT, table.unit, report)
        tracker.metrics(metrics, 0)
        tracker.artifact(report)
        return LeaveOneOutResult(tracker.run_id, fold.variant, metrics, groups=result.by_group())


def _fold(config: RunConfig, group: str) -> RunConfig:
    """Return the configuration of one group's run; with it alone the run can be repeated."""
    content = config.model_dump(mode="json")
    content["data"] |= {"leave_one_group_out": False, "test_group": group}
    content["tracking"]["run_name"] = f"{config.tracking.run_name or 'without'} {group}"
    return RunConfig.model_validate(content)


def _predictions(fold: TrainResult, folder: Path) -> RegressionResult:
    """Fetch the predictions of a finished run."""
    if fold.run_id is None:
        raise TrackingError("the run of a group was not recorded, so its predictions are lost")
    folder.mkdir()
    evaluation = download_artifact(fold.run_id, names.ARTIFACT_EVALUATION, folder)
    return RegressionResult.read(evaluation / predictions_file(SPLIT))
