"""Explains predictions by training windows: what `trace-text` and `trace-sequence` share.

All tests are explained in one pass over the training windows, each as a run of kind `trace`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clew import names
from clew.errors import ConfigError
from clew.files import cache_folder, working_folder
from clew.influence.scores import Scored
from clew.influence.window_index import FOLDER
from clew.influence.window_tracer import UnrolledWindowTracer, WindowExplanation, WindowTracer
from clew.runs.reading.runs import keep_folder
from clew.runs.window_report import WindowReport, WindowScore
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.precision import device_name, half_precision_type
from clew.training.setup import prepare_process
from clew.training.task import B, Task
from clew.workflows.explaining.trace_source import replay_settings, require_same_device
from clew.workflows.explaining.tracin import metrics_of
from clew.workflows.model_source import (
    LoadedModel,
    ModelSource,
    average_setting,
    best_setting,
    device_of,
    own_task,
)
from clew.workflows.open_run import folder_meant
from clew.workflows.outputs import check_file, check_new_folder
from clew.workflows.training_run import trace_run

T = TypeVar("T", bound=Task[Any])
R = TypeVar("R", bound=WindowReport[Any])


def check_output(output: Path | None, count: int) -> None:
    """Refuse an output path where copies of `count` reports cannot be written."""
    check = check_file if count == 1 else check_new_folder
    check("--output", output)


def open_task(source: ModelSource, kind: type[T], explains: str) -> T:
    if source.manifest.task != kind.kind:
        raise ConfigError(
            f"{source.title} is a {source.manifest.task} model; {explains}: use tracin for link "
            "prediction, trace-text for text, trace-sequence for image sequences"
        )
    settings = source.config.influence
    if settings.score not in {"auto", "raw", "unrolled"}:
        raise ConfigError(
            f"influence.score is {settings.score}, but training windows have only raw scores, each "
            "with its cosine, or unrolled ones; other forms need a graph model: leave it at raw"
        )
    if settings.seeds > 1:
        raise ConfigError(
            f"influence.seeds is {settings.seeds}, but training windows are scored for one run; "
            "leave it at 1"
        )
    if settings.search == "index" and not 0 < settings.top_k <= settings.candidates:
        raise ConfigError(
            f"influence.top_k is {settings.top_k}, but a search scores influence.candidates = "
            f"{settings.candidates} windows of each sign; expected top_k from 1 to candidates, or "
            "influence.search=all"
        )
    prepare_process(source.config)
    task = own_task(source)
    assert isinstance(task, kind)
    return task


def open_tracer(
    task: Task[B],
    windows: ExampleSource[B],
    source: ModelSource,
    checkpoints: Sequence[CheckpointRecord],
    *,
    num_last_layers: int | None,
) -> WindowTracer[B]:
    """Return the tracer; unrolled scores use the task's own training examples as windows."""
    settings, device = source.config.influence, device_of(source.config)
    if settings.score == "unrolled":
        if num_last_layers is not None or settings.search != "all":
            given = "influence.search=index" if num_last_layers is None else "--num-last-layers"
            raise ConfigError(
                f"influence.score is unrolled, but {given} is given; unrolled scores differentiate "
                "the whole training run and score every window: leave that setting out"
            )
        require_same_device(source, device)
        return UnrolledWindowTracer(
            task, source.config, checkpoints, device=device, cache=cache_folder("unrolled")
        )
    return WindowTracer(
        task,
        windows,
        checkpoints,
        device=device,
        num_last_layers=num_last_layers,
        half=half_precision_type(settings, device),
        with_cosine=settings.with_cosine,
    )


def explain(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    progress: Callable[[int, int], None],
) -> tuple[list[WindowExplanation], list[dict[str, Any]], dict[str, float]]:
    """Explain test windows in one pass, each a batch of one window.

    Return the explanations, what their reports say of how they were made, and metrics of speed.
    """
    asked, num_windows = source.config.influence, len(tracer.windows)
    top_k, how = asked.top_k or num_windows, asked if asked.search == "index" else None
    started = time.perf_counter()
    found = tracer.explain(tests, top_k=top_k, settings=how, progress=progress)
    searched = found[0].searched
    making = searched.making_seconds if searched else 0.0
    seconds = (time.perf_counter() - started - making) / len(tests)
    deviation = tracer.half_precision_deviation(tests) if tracer.half else None
    if asked.score == "unrolled":  # explains the run's average if it keeps one
        form = {"score": "unrolled"} | replay_settings(source.config, tracer.checkpoints[-1].step)
    else:
        form = {"score": "raw"} | average_setting(source.config)
    settings = {
        "top_k": asked.top_k,
        "num_last_layers": tracer.num_last_layers,
        "tests_in_this_pass": len(tests),
        "search": asked.search,
        "use_mixed_precision": tracer.half is not None,
        **({} if deviation is None else {"half_precision_deviation": deviation}),
        "data_fingerprint": tracer.task.data_fingerprint,
        "config_hash": source.manifest.config_hash,
        **best_setting([source]),
        **form,
    }
    said = {
        "run_id": source.run_id or "",
        "dataset": tracer.task.dataset,
        "num_windows": num_windows,
        "seconds": seconds,
        "device": device_name(tracer.device),
        "steps": tuple(record.step for record in tracer.checkpoints),
        "weights": tuple(map(float, tracer.weights)),
    }
    metrics = metrics_of(1, num_windows, seconds, settings)
    reports = []
    for each in found:
        search = {} if each.searched is None else {names.SETTING_SEARCH: asdict(each.searched)}
        own = {"loss": each.loss, "self_influence": each.self_influence}
        reports.append({**said, **own, "settings": settings | search})
    return found, reports, metrics


@dataclass(frozen=True)
class WindowTrace(Generic[R]):
    """An explanation and the run that records it."""

    report: R
    run_id: str | None

    def table(self) -> str:
        """Return the explained prediction with its strongest proponents and opponents."""
        form = self.report.form
        lines = [f"run {self.run_id or '(not recorded)'}", *self.report.headline()]
        lines.append(f"  {form.heading}, of {self.report.num_scored:,} training windows:")
        for sign, windows in (("+", self.report.proponents), ("-", self.report.opponents)):
            lines += [
                f"  {sign} {w.influence:+.4g}"
                + ("" if w.cosine is None else f" (cosine {w.cosine:+.2f})")
                + f"  {self.report.shown(w)}"
                for w in windows
            ]
        said = [self.report.sign, form.sentence, *self.report.notes(), self.report.label.sentence]
        said += ["next: clew ui, page Influence, shows the windows in full"] if self.run_id else []
        return "\n".join([*lines, *said])


def record_each(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    loaded: LoadedModel,
    *,
    command: str,
    window_of: Callable[[WindowScore], Any],
    report_of: Callable[[dict[str, Any], int, Path], R],
    output: Path | None,
    progress: Callable[[int, int], None],
) -> list[WindowTrace[R]]:
    """Explain test windows, and record each explanation as a run.

    All tests are explained while the first run is open, so its peak memory includes all the work.
    `window_of` describes a training window, and `report_of` makes the report of a test from what is
    said of it. Copies of the reports are written to the file `output`, or several to that folder.
    """
    found, results = list[WindowExplanation](), []
    for test in range(len(tests)):
        with (
            trace_run(source, loaded, f"{command} {loaded.task.dataset}") as tracker,
            working_folder("trace") as temporary,
        ):
            folder = temporary / names.ARTIFACT_INFLUENCE
            folder.mkdir()
            if not found:
                found, said, metrics = explain(tracer, tests, source, progress)
                searched, run_id = found[0].searched, source.run_id
                new = searched is not None and searched.indices_made > 0
                if new and run_id is not None and not folder_meant(source.reference):
                    for record in tracer.checkpoints:  # next to the checkpoints, in the store
                        place = f"{names.ARTIFACT_CHECKPOINTS}/{record.path.name}/{FOLDER}"
                        keep_folder(run_id, record.path / FOLDER, place)
            tracker.metrics(metrics, source.manifest.step)
            for side in ("proponents", "opponents"):
                scores = window_scores(getattr(found[test], side), found[test].parts)
                said[test][side] = tuple(map(window_of, scores))
            report = report_of(said[test], test, folder)
            tracker.artifact(folder)
        results.append(WindowTrace(report, tracker.run_id))
    if output is not None:
        for number, result in enumerate(results):
            result.report.write(output if len(results) == 1 else output / f"{number:04d}.json")
    return results


def window_scores(scored: Scored, parts: tuple[str, ...]) -> list[WindowScore]:
    """Return the windows of one sign, without the -1 that short lists are padded with."""
    return [
        WindowScore(
            rank=place + 1,
            window=index,
            influence=float(scored.influence[0, place]),
            cosine=None if scored.cosine is None else float(scored.cosine[0, place]),
            by_checkpoint=tuple(scored.by_checkpoint[:, 0, place].tolist()),
            by_part=dict(zip(parts, scored.by_part[:, 0, place].tolist(), strict=True)),
        )
        for place, index in enumerate(scored.train[0].tolist())
        if index >= 0
    ]
