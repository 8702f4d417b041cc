"""Explain a continuation of a prompt, or a prediction from frames, by training windows.

All tests are explained in one pass over the training windows, each as a run of kind `trace`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import nn

from clew import names
from clew.errors import ConfigError, quoted
from clew.files import cache_folder, working_folder
from clew.image_sequences.errors import draw_windows
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import SequenceWindows
from clew.influence.scores import Scored
from clew.influence.window_index import FOLDER
from clew.influence.window_tracer import UnrolledWindowTracer, WindowExplanation, WindowTracer
from clew.language_modeling.model import Sampling, generate
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import encode_prompt
from clew.language_modeling.tokens import TokenWindows, continuation_batch
from clew.runs.reading.runs import keep_folder
from clew.runs.window_report import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    TEXT_INFLUENCE_JSON,
    FrameWindow,
    SequenceInfluenceReport,
    TextInfluenceReport,
    TextWindow,
    WindowReport,
    WindowScore,
)
from clew.training.manifest import CheckpointRecord
from clew.training.precision import device_name, half_precision_type
from clew.training.setup import prepare_process
from clew.training.task import Task
from clew.workflows.explaining.members import Progress
from clew.workflows.explaining.trace_source import replay_settings, require_same_device
from clew.workflows.explaining.tracin import metrics_of
from clew.workflows.model_source import (
    LoadedModel,
    ModelSource,
    average_setting,
    best_setting,
    device_of,
    open_checkpoints,
    own_task,
)
from clew.workflows.open_run import folder_meant
from clew.workflows.outputs import check_file, check_new_folder
from clew.workflows.predict_windows import Text
from clew.workflows.training_run import trace_run

DRAWN_WINDOWS = 3
"""Number of training windows of each sign whose frames are drawn."""
WRITTEN_TOKENS = 64
"""Number of tokens in a continuation that the model generates itself."""
T = TypeVar("T", bound=Task[Any])
R = TypeVar("R", bound=WindowReport[Any])


class Tracing(TypedDict, total=False):
    """How windows are explained, and where copies of the reports go: a file, or a folder."""

    num_last_layers: int | None
    output: Path | None
    progress: Progress


@dataclass(frozen=True)
class Asked(Generic[R]):
    """What is to be explained, and how the reports describe it."""

    tests: Sequence[Any]
    """Test windows, each a batch of one."""
    window_of: Callable[[WindowScore], Any]
    """Describes a training window."""
    report_of: Callable[[dict[str, Any], int, Path], R]
    """Makes the report of a test from what is said of it, and writes it to a folder."""


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
            for window in windows:
                cosine = "" if window.cosine is None else f" (cosine {window.cosine:+.2f})"
                line = f"{sign} {window.influence:+.4g}{cosine}  {self.report.shown(window)}"
                lines.append(f"  {line}")
        said = [self.report.sign, form.sentence, *self.report.notes(), self.report.label.sentence]
        said += ["next: clew ui, page Influence, shows the windows in full"] if self.run_id else []
        return "\n".join([*lines, *said])


def trace_texts(
    model: str, texts: Sequence[Text], overrides: Mapping[str, Any], **how: Unpack[Tracing]
) -> list[WindowTrace[TextInfluenceReport]]:
    """Explain continuations in one pass over the windows, each as a run of kind `trace`."""

    def ask(
        task: LanguageModeling, tracer: WindowTracer[Any], model: nn.Module
    ) -> Asked[TextInfluenceReport]:
        windows, tokenizer = tracer.windows, task.splits.tokenizer
        assert isinstance(windows, TokenWindows)
        whole = [
            replace(text, continuation=text.continuation or _written(task, model, text.prompt))
            for text in texts
        ]

        def window_of(score: WindowScore) -> TextWindow:
            tokens = windows.batch(np.array([score.window])).tokens[0, :-1].numpy()
            first = windows.start + score.window * windows.stride
            return TextWindow(**vars(score), first_token=first, text=tokenizer.decode(tokens))

        def report_of(said: dict[str, Any], test: int, folder: Path) -> TextInfluenceReport:
            said["settings"] |= {"window": windows.length}
            report = TextInfluenceReport(**vars(whole[test]), **said)
            report.write(folder / TEXT_INFLUENCE_JSON)
            return report

        tests = [continuation_batch(tokenizer, text.prompt, text.continuation) for text in whole]
        return Asked(tests, window_of, report_of)

    explains = "trace-text explains language models"
    return _trace(model, texts, overrides, ask, kind=LanguageModeling, explains=explains, **how)


def _written(task: LanguageModeling, model: nn.Module, prompt: str) -> str:
    """Return what the model writes after a prompt, up to the end of the document."""
    tokenizer = task.splits.tokenizer
    tokens = encode_prompt(tokenizer, prompt).astype(np.int64)
    inputs = torch.from_numpy(tokens).unsqueeze(0).to(next(model.parameters()).device)
    found = generate(task.as_model(model), inputs, WRITTEN_TOKENS, Sampling(temperature=0.0))
    written = found[0].cpu().numpy()
    kept = written[: np.argmax(np.append(written, tokenizer.end_of_text) == tokenizer.end_of_text)]
    if not len(kept):
        raise ConfigError(
            f"after the prompt {quoted(prompt)} the model ends the text at once; give a "
            "continuation to explain"
        )
    return tokenizer.decode(kept)


def trace_sequences(
    model: str, frames: Sequence[int | None], overrides: Mapping[str, Any], **how: Unpack[Tracing]
) -> list[WindowTrace[SequenceInfluenceReport]]:
    """Explain test windows in one pass over the training windows, each as a run of kind `trace`."""

    def ask(
        task: SequenceRegression, tracer: WindowTracer[Any], model: nn.Module
    ) -> Asked[SequenceInfluenceReport]:
        windows, device = tracer.windows, tracer.device
        assert isinstance(windows, SequenceWindows)
        chosen = [_test_window(task, model, frame, device) for frame in frames]

        def window_of(score: WindowScore) -> FrameWindow:
            return FrameWindow(**vars(score), **_told(windows, score.window))

        def report_of(said: dict[str, Any], test: int, folder: Path) -> SequenceInfluenceReport:
            window = chosen[test]
            predicted = float(task.predict(model, window, device)[0])
            unit, told = task.splits.table.unit, _told(window, 0)
            report = SequenceInfluenceReport(unit=unit, prediction=predicted, **told, **said)
            report.write(folder / SEQUENCE_INFLUENCE_JSON)
            _draw(windows, window, report, folder / SEQUENCE_INFLUENCE_PICTURE)
            return report

        return Asked([window.batch(np.array([0])) for window in chosen], window_of, report_of)

    explains = "trace-sequence explains image sequences"
    return _trace(model, frames, overrides, ask, kind=SequenceRegression, explains=explains, **how)


def _told(windows: SequenceWindows, place: int) -> dict[str, Any]:
    return {
        "last_frame": int(windows.ends[place]),
        "group": str(windows.groups[place]),
        "target": float(windows.targets[place]),
    }


def _test_window(
    task: SequenceRegression, model: nn.Module, frame: int | None, device: torch.device
) -> SequenceWindows:
    windows = task.splits.windows["test"]
    if frame is None:
        errors = task.predict(model, windows, device) - windows.targets
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


def _trace(
    model: str,
    given: Sequence[object],
    overrides: Mapping[str, Any],
    ask: Callable[[T, WindowTracer[Any], nn.Module], Asked[R]],
    *,
    kind: type[T],
    explains: str,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> list[WindowTrace[R]]:
    """Explain test windows of a model of one kind, and record each explanation as a run.

    All tests are explained while the first run is open, so its peak memory includes all the work.
    """
    count, command = len(given), explains.partition(" ")[0]
    check_output(output, count)
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task = open_task(source, kind, explains)
        tracer = open_tracer(task, source, checkpoints, num_last_layers)
        loaded = LoadedModel(task, tracer.model(checkpoints[-1]), tracer.device)
        asked, results = ask(task, tracer, loaded.model), list[WindowTrace[R]]()
        found = list[WindowExplanation]()
        for test in range(count):
            run = trace_run(source, loaded, f"{command} {task.dataset}")
            with run as tracker, working_folder("trace") as temporary:
                folder = temporary / names.ARTIFACT_INFLUENCE
                folder.mkdir()
                if not found:
                    found, said, metrics = explain(tracer, asked.tests, source, progress)
                tracker.metrics(metrics, source.manifest.step)
                for side in ("proponents", "opponents"):
                    scores = window_scores(getattr(found[test], side), found[test].parts)
                    said[test][side] = tuple(map(asked.window_of, scores))
                report = asked.report_of(said[test], test, folder)
                tracker.artifact(folder)
            results.append(WindowTrace(report, tracker.run_id))
    if output is not None:
        for number, result in enumerate(results):
            result.report.write(output if count == 1 else output / f"{number:04d}.json")
    return results


def check_output(output: Path | None, count: int) -> None:
    """Refuse an output path where copies of `count` reports cannot be written."""
    check = check_file if count == 1 else check_new_folder
    check("--output", output)


def open_task(source: ModelSource, kind: type[T], explains: str) -> T:
    if source.manifest.task != kind.kind:
        raise ConfigError(
            f"{source.title} is a {source.manifest.task} model; {explains}: give triples "
            "to tracin, text to trace-text, a frame to trace-sequence, or any to clew.attribute"
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
    task: Task[Any],
    source: ModelSource,
    checkpoints: Sequence[CheckpointRecord],
    num_last_layers: int | None,
) -> WindowTracer[Any]:
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
    windows = task.train_examples()
    return WindowTracer(
        task,
        windows.without_overlap() if isinstance(windows, TokenWindows) else windows,
        checkpoints,
        device=device,
        num_last_layers=num_last_layers,
        half=half_precision_type(settings, device),
        with_cosine=settings.with_cosine,
    )


def explain(
    tracer: WindowTracer[Any], tests: Sequence[Any], source: ModelSource, progress: Progress
) -> tuple[list[WindowExplanation], list[dict[str, Any]], dict[str, float]]:
    """Explain test windows in one pass, each a batch of one window.

    Return the explanations, what their reports say of how they were made, and metrics of speed.
    """
    asked, num_windows = source.config.influence, len(tracer.windows)
    top_k, how = asked.top_k or num_windows, asked if asked.search == "index" else None
    started = time.perf_counter()
    found = tracer.explain(tests, top_k=top_k, settings=how, progress=progress)
    searched, run_id = found[0].searched, source.run_id
    making = searched.making_seconds if searched else 0.0
    seconds = (time.perf_counter() - started - making) / len(tests)
    if searched and searched.indices_made and run_id and not folder_meant(source.reference):
        for record in tracer.checkpoints:  # next to the checkpoints, in the store
            place = f"{names.ARTIFACT_CHECKPOINTS}/{record.path.name}/{FOLDER}"
            keep_folder(run_id, record.path / FOLDER, place)
    deviation = tracer.half_precision_deviation(tests) if tracer.half else None
    form = {"score": "raw"} | average_setting(source.config)
    if asked.score == "unrolled":  # explains the run's average if it keeps one
        form = {"score": "unrolled"} | replay_settings(source.config, tracer.checkpoints[-1].step)
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
        "run_id": run_id or "",
        "dataset": tracer.task.dataset,
        "num_windows": num_windows,
        "seconds": seconds,
        "device": device_name(tracer.device),
        "steps": tuple(record.step for record in tracer.checkpoints),
        "weights": tuple(map(float, tracer.weights)),
    }
    reports = []
    for each in found:
        search = {} if each.searched is None else {names.SETTING_SEARCH: asdict(each.searched)}
        own = {"loss": each.loss, "self_influence": each.self_influence}
        reports.append({**said, **own, "settings": settings | search})
    return found, reports, metrics_of(1, num_windows, seconds, settings)


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
