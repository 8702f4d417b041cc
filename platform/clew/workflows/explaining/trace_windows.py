"""Shared steps of explaining texts and frame sequences: open, explain, record and copy."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clew import names
from clew.errors import ConfigError
from clew.files import cache_folder, working_folder
from clew.influence.scores import Scored
from clew.influence.windows.index_files import FOLDER
from clew.influence.windows.indexing import Searched, SearchSettings
from clew.influence.windows.tracer import WindowExplanation, WindowTracer
from clew.influence.windows.unrolled import UnrolledWindowTracer
from clew.runs.influence_forms import ESTIMATE
from clew.runs.influence_report import WindowReport, WindowScore
from clew.runs.reading.runs import keep_folder
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.precision import device_name, half_precision_type
from clew.training.setup import prepare_process
from clew.training.task import B, Task
from clew.workflows.explaining.trace_source import replay_settings, require_same_device
from clew.workflows.explaining.tracin import deviation as deviation_metrics
from clew.workflows.model_source import (
    LoadedModel,
    ModelSource,
    device_of,
    own_task,
)
from clew.workflows.open_run import folder_meant
from clew.workflows.outputs import check_file, check_new_folder
from clew.workflows.run_checkpoints import average_setting
from clew.workflows.training_run import trace_run

T = TypeVar("T", bound=Task[Any])
R = TypeVar("R", bound=WindowReport[Any])


def open_task(source: ModelSource, kind: type[T], explains: str) -> T:
    """Build a model's task."""
    if source.manifest.task != kind.kind:
        raise ConfigError(f"{source.title} is a {source.manifest.task} model; {explains}")
    score = source.config.influence.score
    if score not in {"auto", "raw", "unrolled"}:
        raise ConfigError(
            f"influence.score is {score}, but training windows have only raw scores, each with its "
            "cosine, or unrolled ones; other forms need a graph model: leave it at raw"
        )
    search_settings(source)  # refuses wrong settings before the data are read
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
                "the whole training and score every window: leave that setting out"
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


def search_settings(source: ModelSource) -> SearchSettings | None:
    """Return the settings of the search for windows; None: all windows are scored."""
    settings = source.config.influence
    if settings.search == "all":
        return None
    if not 0 < settings.top_k <= settings.candidates:
        raise ConfigError(
            f"influence.top_k is {settings.top_k}, but a search scores influence.candidates = "
            f"{settings.candidates} windows of each sign; expected top_k from 1 to candidates, or "
            "influence.search=all"
        )
    return SearchSettings(settings.candidates, settings.projection_rank, settings.search_opponents)


@dataclass(frozen=True, eq=False)
class Explained:
    """The explanation of one test."""

    found: WindowExplanation
    said: dict[str, Any]
    """Fields of its report that say how it was made."""


def explain(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    progress: Callable[[int, int], None],
) -> tuple[list[Explained], dict[str, float]]:
    """Explain test windows in one pass, and return the explanations and the metrics of speed.

    Each item of `tests` is a batch of one window.
    """
    top_k, num_windows = source.config.influence.top_k, len(tracer.windows)
    how, started = search_settings(source), time.perf_counter()
    found = tracer.explain(tests, top_k=top_k or num_windows, settings=how, progress=progress)
    searched = found[0].searched
    making = searched.making_seconds if searched else 0.0
    seconds = (time.perf_counter() - started - making) / len(tests)
    deviation = tracer.half_precision_deviation(tests) if tracer.half else None
    if source.config.influence.score == "unrolled":  # explains the run's average if it keeps one
        form = {"score": "unrolled"} | replay_settings(source.config, tracer.checkpoints[-1].step)
    else:
        form = {"score": "raw"} | average_setting(source.config)
    settings = {
        "top_k": top_k,
        "num_last_layers": tracer.num_last_layers,
        "tests_in_this_pass": len(tests),
        "search": source.config.influence.search,
        "use_mixed_precision": tracer.half is not None,
        **({} if deviation is None else {"half_precision_deviation": deviation}),
        "data_fingerprint": tracer.task.data_fingerprint,
        "config_hash": source.manifest.config_hash,
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
    metrics = {
        names.INFLUENCE_SECONDS_PER_TEST: seconds,
        names.INFLUENCE_PAIRS_PER_SECOND: num_windows / seconds,
        **deviation_metrics(settings),
    }
    explained = []
    for each in found:
        search = {} if each.searched is None else {names.SETTING_SEARCH: asdict(each.searched)}
        own = {"loss": each.loss, "self_influence": each.self_influence}
        explained.append(Explained(each, {**said, **own, "settings": settings | search}))
    return explained, metrics


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
        said = [self.report.sign, form.sentence, ESTIMATE, *self.report.notes()]
        said += ["next: clew ui, page Influence, shows the windows in full"] if self.run_id else []
        return "\n".join([*lines, *said])


def record_each(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    loaded: LoadedModel,
    *,
    command: str,
    report_of: Callable[[Explained, int, Path], R],
    progress: Callable[[int, int], None],
) -> list[WindowTrace[R]]:
    """Explain test windows, and record each explanation as a run.

    All tests are explained while the first run is open, so its peak memory includes all the work.
    """
    explained, metrics, results = list[Explained](), dict[str, float](), []
    for test in range(len(tests)):
        with (
            trace_run(source, loaded, f"{command} {loaded.task.dataset}") as tracker,
            working_folder("trace") as temporary,
        ):
            folder = temporary / names.ARTIFACT_INFLUENCE
            folder.mkdir()
            if not explained:
                explained, metrics = explain(tracer, tests, source, progress)
                if (searched := explained[0].found.searched) is not None:
                    keep_indices(source, tracer.checkpoints, searched)
            tracker.metrics(metrics, source.manifest.step)
            report = report_of(explained[test], test, folder)
            tracker.artifact(folder)
        results.append(WindowTrace(report, tracker.run_id))
    return results


def keep_indices(
    source: ModelSource, checkpoints: Sequence[CheckpointRecord], searched: Searched
) -> None:
    """Store indices that were just made in the tracking store, next to the run's checkpoints."""
    if not searched.indices_made or source.run_id is None or folder_meant(source.reference):
        return
    for record in checkpoints:
        place = f"{names.ARTIFACT_CHECKPOINTS}/{record.path.name}/{FOLDER}"
        keep_folder(source.run_id, record.path / FOLDER, place)


def window_scores(scored: Scored, parts: tuple[str, ...]) -> list[WindowScore]:
    """Return the windows of one sign, without the -1 that short lists are padded with."""
    found = []
    for place, index in enumerate(scored.train[0].tolist()):
        if index < 0:
            break
        found.append(
            WindowScore(
                rank=place + 1,
                window=index,
                influence=float(scored.influence[0, place]),
                cosine=None if scored.cosine is None else float(scored.cosine[0, place]),
                by_checkpoint=tuple(scored.by_checkpoint[:, 0, place].tolist()),
                by_part=dict(zip(parts, scored.by_part[:, 0, place].tolist(), strict=True)),
            )
        )
    return found


def check_outputs(output: Path | None, count: int) -> None:
    """Refuse an output path where copies of `count` reports cannot be written."""
    if count == 1:
        check_file("--output", output)
    else:
        check_new_folder("--output", output)


def write_outputs(results: Sequence[WindowTrace[R]], output: Path | None) -> None:
    """Write copies of the reports: one to a file, several to a folder, numbered from 0."""
    if output is None:
        return
    if len(results) == 1:
        results[0].report.write(output)
        return
    for number, result in enumerate(results):
        result.report.write(output / f"{number:04d}.json")
