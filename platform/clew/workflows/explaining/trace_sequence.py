"""Explain a prediction from frames by training windows of frames."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import ConfigError
from clew.image_sequences.errors import draw_windows
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import SequenceWindows
from clew.runs.window_report import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    FrameWindow,
    SequenceInfluenceReport,
    WindowScore,
)
from clew.workflows.explaining.trace_windows import (
    WindowTrace,
    check_output,
    open_task,
    open_tracer,
    record_each,
)
from clew.workflows.model_source import LoadedModel, open_checkpoints

DRAWN_WINDOWS = 3
"""Number of training windows of each sign whose frames are drawn."""


def trace_sequences(
    model: str,
    frames: Sequence[int | None],
    overrides: Mapping[str, Any],
    *,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[WindowTrace[SequenceInfluenceReport]]:
    """Explain test windows in one pass over the training windows, each as a run of kind `trace`."""
    check_output(output, len(frames))
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task = open_task(source, SequenceRegression, "trace-sequence explains image sequences")
        windows = task.train_examples()
        tracer = open_tracer(task, windows, source, checkpoints, num_last_layers=num_last_layers)
        loaded = LoadedModel(task, tracer.model(checkpoints[-1]), tracer.device)
        chosen = [_test_window(loaded, task, frame) for frame in frames]

        def window_of(score: WindowScore) -> FrameWindow:
            return FrameWindow(
                **vars(score),
                last_frame=int(windows.ends[score.window]),
                group=str(windows.groups[score.window]),
                target=float(windows.targets[score.window]),
            )

        def report_of(said: dict[str, Any], test: int, folder: Path) -> SequenceInfluenceReport:
            window = chosen[test]
            report = SequenceInfluenceReport(
                unit=task.splits.table.unit,
                last_frame=int(window.ends[0]),
                group=str(window.groups[0]),
                target=float(window.targets[0]),
                prediction=float(task.predict(loaded.model, window, tracer.device)[0]),
                **said,
            )
            report.write(folder / SEQUENCE_INFLUENCE_JSON)
            _draw(windows, window, report, folder / SEQUENCE_INFLUENCE_PICTURE)
            return report

        tests = [window.batch(np.array([0])) for window in chosen]
        return record_each(
            tracer,
            tests,
            source,
            loaded,
            command="trace-sequence",
            window_of=window_of,
            report_of=report_of,
            output=output,
            progress=progress,
        )


def _test_window(
    loaded: LoadedModel, task: SequenceRegression, frame: int | None
) -> SequenceWindows:
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


def _draw(
    windows: SequenceWindows, test: SequenceWindows, report: SequenceInfluenceReport, path: Path
) -> None:
    shown = [*report.proponents[:DRAWN_WINDOWS], *report.opponents[:DRAWN_WINDOWS]]
    batch = windows.batch(np.array([window.window for window in shown], dtype=int))
    rows = np.concatenate([test.batch(np.array([0])).images[:, :, 0], batch.images[:, :, 0]])
    titles = [f"test: predicted {report.prediction:.4g}, true {report.target:.4g}"]
    titles += [f"{w.influence:+.3g}: frame {w.last_frame}, target {w.target:.4g}" for w in shown]
    draw_windows(rows, titles, path)
