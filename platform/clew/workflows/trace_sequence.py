"""Explain a prediction from a sequence of frames: which training windows drive it."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew import names
from clew.checkpoints import CheckpointRecord
from clew.config.services import TrackingConfig
from clew.data.frame_windows import SequenceWindows
from clew.errors import ConfigError
from clew.evaluation.regression_plots import draw_windows
from clew.influence.scores import Scored
from clew.influence.sequences import SequenceExplanation, explain_window
from clew.sequence_records import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    SequenceEntry,
    SequenceInfluenceReport,
    write_sequence_influence,
)
from clew.tasks.sequence_regression import SequenceRegression
from clew.tracking.mlflow_store import open_tracker
from clew.training.precision import resolve_device
from clew.training.setup import prepare_process
from clew.workflows.evaluate import tags_of
from clew.workflows.model_source import LoadedModel, ModelSource, check_fingerprint
from clew.workflows.tasks import build_task
from clew.workflows.trace_source import device_name, open_checkpoints

DRAWN_WINDOWS = 3
"""Training windows of each sign whose frames are drawn."""


@dataclass(frozen=True)
class SequenceTraceResult:
    """An explanation and the run that records it."""

    report: SequenceInfluenceReport
    run_id: str | None

    def table(self) -> str:
        """Return the prediction and its strongest proponents and opponents."""
        report = self.report
        lines = [
            f"run {self.run_id or '(not recorded)'}",
            f"window that ends at frame {report.last_frame} (group {report.group}): predicted "
            f"{report.prediction:.4g} {report.unit}, true {report.target:.4g} {report.unit}",
        ]
        for sign, entries in (("+", report.proponents), ("-", report.opponents)):
            lines += [
                f"  {sign} {entry.influence:+.4g}  frame {entry.last_frame} (group {entry.group}), "
                f"target {entry.target:.4g} {report.unit}"
                for entry in entries
            ]
        return "\n".join([*lines, report.sign])


def trace_sequence(
    model: str,
    frame: int | None,
    overrides: Mapping[str, Any],
    *,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SequenceTraceResult:
    """Explain a test window by all training windows, and record it as a run of kind `trace`.

    Args:
        model: A run id or a folder of checkpoints.
        frame: Last frame of the test window; None: the one with the largest error.
        overrides: Settings of the explanation, `influence.key` to value.
        num_last_layers: Count only so many modules from the end; None: all.
        output: Where else to write the report, as JSON.
        progress: Told windows done and to do.

    Raises:
        UsageError: the model is none of image sequences, or the frame ends no test window.
    """
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task = _sequence_task(source)
        device = resolve_device("cpu" if source.config.training.device == "cpu" else "auto")
        loaded = LoadedModel(task, task.load(checkpoints[-1].path, device), device)
        test = _test_window(loaded, task, frame)
        tracker = open_tracker(
            TrackingConfig(experiment=source.config.tracking.experiment),
            kind=names.KIND_TRACE,
            run_name=f"trace-sequence {task.dataset}",
            tags=tags_of(source, loaded),
        )
        with tracker, tempfile.TemporaryDirectory(prefix="clew-sequence-") as folder:
            started = time.perf_counter()
            explanation = explain_window(
                task,
                checkpoints,
                test,
                top_k=source.config.influence.top_k or 10,
                device=device,
                num_last_layers=num_last_layers,
                progress=progress,
            )
            seconds = time.perf_counter() - started
            report = _report(task, source, test, explanation, checkpoints)
            report = replace(
                report,
                seconds=seconds,
                device=device_name(device),
                settings=report.settings | {"num_last_layers": num_last_layers},
            )
            own = Path(folder) / names.ARTIFACT_INFLUENCE
            write_sequence_influence(report, own / SEQUENCE_INFLUENCE_JSON)
            _draw(task, test, explanation, report, own / SEQUENCE_INFLUENCE_PICTURE)
            tracker.metrics({names.INFLUENCE_SECONDS_PER_TEST: seconds}, source.manifest.step)
            tracker.artifact(own)
            if output is not None:
                write_sequence_influence(report, output)
        return SequenceTraceResult(report, tracker.run_id)


def _report(
    task: SequenceRegression,
    source: ModelSource,
    test: SequenceWindows,
    explanation: SequenceExplanation,
    checkpoints: Sequence[CheckpointRecord],
) -> SequenceInfluenceReport:
    """Return what is known of an explanation but for how it was computed."""
    return SequenceInfluenceReport(
        run_id=source.run_id or "",
        dataset=task.dataset,
        unit=task.splits.table.unit,
        last_frame=int(test.ends[0]),
        group=str(test.groups[0]),
        target=float(test.targets[0]),
        prediction=explanation.prediction,
        loss=explanation.loss,
        self_influence=explanation.self_influence,
        num_windows=len(task.train_examples()),
        seconds=0.0,
        device="",
        steps=tuple(record.step for record in checkpoints),
        weights=tuple(float(record.learning_rate_weight) for record in checkpoints),
        proponents=_entries(task, explanation.proponents, explanation.parts),
        opponents=_entries(task, explanation.opponents, explanation.parts),
        settings={
            "top_k": source.config.influence.top_k,
            "data_fingerprint": task.data_fingerprint,
            "config_hash": source.manifest.config_hash,
        },
    )


def _sequence_task(source: ModelSource) -> SequenceRegression:
    prepare_process(source.config)
    task = build_task(source.config)
    if not isinstance(task, SequenceRegression):
        raise ConfigError(
            f"{source.title} is a {task.kind} model; trace-sequence explains image sequences: for "
            "link prediction use tracin, for text trace-text"
        )
    check_fingerprint(source, task.data_fingerprint)
    return task


@torch.no_grad()
def _test_window(
    loaded: LoadedModel, task: SequenceRegression, frame: int | None
) -> SequenceWindows:
    """Return the test window that ends at a frame, or the one with the largest error."""
    windows = task.splits.windows["test"]
    if frame is None:
        errors = task.predict(loaded.model, windows, loaded.device) - windows.targets
        return windows.only(np.array([abs(errors).argmax()]))
    chosen = np.flatnonzero(windows.ends == frame)
    if not len(chosen):
        raise ConfigError(
            f"--frame is {frame}, which ends no test window; {windows.table.source} has test "
            f"windows that end at frames {windows.ends.min()} to {windows.ends.max()}"
        )
    return windows.only(chosen)


def _entries(
    task: SequenceRegression, scored: Scored, parts: tuple[str, ...]
) -> tuple[SequenceEntry, ...]:
    """Return the windows of one sign; short lists are padded with -1."""
    windows, entries = task.train_examples(), []
    for place, index in enumerate(scored.train[0].tolist()):
        if index < 0:
            break
        entries.append(
            SequenceEntry(
                rank=place + 1,
                window=index,
                last_frame=int(windows.ends[index]),
                group=str(windows.groups[index]),
                target=float(windows.targets[index]),
                influence=float(scored.influence[0, place]),
                cosine=None if scored.cosine is None else float(scored.cosine[0, place]),
                by_checkpoint=tuple(scored.by_checkpoint[:, 0, place].tolist()),
                by_part=dict(zip(parts, scored.by_part[:, 0, place].tolist(), strict=True)),
            )
        )
    return tuple(entries)


def _draw(
    task: SequenceRegression,
    test: SequenceWindows,
    explanation: SequenceExplanation,
    report: SequenceInfluenceReport,
    path: Path,
) -> None:
    """Draw the frames of the test window above those of its strongest training windows."""
    shown = [*report.proponents[:DRAWN_WINDOWS], *report.opponents[:DRAWN_WINDOWS]]
    batch = task.train_examples().batch(np.array([entry.window for entry in shown], dtype=int))
    rows = np.concatenate([test.batch(np.array([0])).images[:, :, 0], batch.images[:, :, 0]])
    titles = [f"test: predicted {explanation.prediction:.4g}, true {report.target:.4g}"]
    titles += [f"{e.influence:+.3g}: frame {e.last_frame}, target {e.target:.4g}" for e in shown]
    draw_windows(rows, titles, path)
