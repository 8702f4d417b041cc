"""Explain a continuation of a prompt, or a prediction from frames, by training windows.

All tests are explained in one pass over the training windows, each as a run of kind `trace`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew import names
from clew.errors import ConfigError, DataError, described, quoted
from clew.files import cache_folder, working_folder
from clew.image_sequences.errors import draw_windows
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import SequenceWindows
from clew.influence.scores import Scored
from clew.influence.window_index import FOLDER, SearchSettings
from clew.influence.window_tracer import UnrolledWindowTracer, WindowExplanation, WindowTracer
from clew.input_files import read_lines
from clew.language_modeling.model import Sampling, generate
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import encode_prompt
from clew.language_modeling.tokens import continuation_batch
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
from clew.training.loaders import ExampleSource
from clew.training.manifest import CheckpointRecord
from clew.training.precision import device_name, half_precision_type
from clew.training.setup import prepare_process
from clew.training.task import B, Task
from clew.workflows.explaining.trace_source import replay_settings, require_same_device
from clew.workflows.explaining.tracin import deviation as deviation_metrics
from clew.workflows.model_source import LoadedModel, ModelSource, device_of, own_task
from clew.workflows.open_run import folder_meant
from clew.workflows.outputs import check_file, check_new_folder
from clew.workflows.run_checkpoints import average_setting, best_setting, open_checkpoints
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
    score = source.config.influence.score
    if score not in {"auto", "raw", "unrolled"}:
        raise ConfigError(
            f"influence.score is {score}, but training windows have only raw scores, each with its "
            "cosine, or unrolled ones; other forms need a graph model: leave it at raw"
        )
    if source.config.influence.seeds > 1:
        raise ConfigError(
            f"influence.seeds is {source.config.influence.seeds}, but training windows are scored "
            "for one run; leave it at 1"
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


def explain(
    tracer: WindowTracer[B],
    tests: Sequence[B],
    source: ModelSource,
    progress: Callable[[int, int], None],
) -> tuple[list[WindowExplanation], list[dict[str, Any]], dict[str, float]]:
    """Explain test windows in one pass, each a batch of one window.

    Return the explanations, what their reports say of how they were made, and metrics of speed.
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
    metrics = {
        names.INFLUENCE_SECONDS_PER_TEST: seconds,
        names.INFLUENCE_PAIRS_PER_SECOND: num_windows / seconds,
        **deviation_metrics(settings),
    }
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


WRITTEN_TOKENS = 64
"""Number of tokens in a continuation that the model generates itself."""
DRAWN_WINDOWS = 3
"""Number of training windows of each sign whose frames are drawn."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Text:
    """A continuation of a prompt to explain; if it is empty, the model generates one."""

    prompt: str
    continuation: str = ""


_TEXTS = TypeAdapter(Text)


def read_texts(path: Path) -> list[Text]:
    """Read a file with one JSON object per line, with `prompt` and optionally `continuation`."""
    texts = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                texts.append(_TEXTS.validate_json(line))
            except ValidationError as error:
                raise DataError(
                    f"{path}, line {number}: {described(error)}; expected "
                    '{"prompt": TEXT, "continuation": TEXT}, the latter is optional'
                ) from None
    if not texts:
        raise DataError(f"{path}: holds no prompt; expected a JSON object with `prompt` per line")
    return texts


def trace_texts(
    model: str,
    texts: Sequence[Text],
    overrides: Mapping[str, Any],
    *,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[WindowTrace[TextInfluenceReport]]:
    """Explain continuations in one pass over the windows, each as a run of kind `trace`."""
    check_output(output, len(texts))
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task = open_task(source, LanguageModeling, "trace-text explains language models")
        windows = task.train_examples()
        if source.config.influence.score != "unrolled":
            windows = windows.without_overlap()
        tracer = open_tracer(task, windows, source, checkpoints, num_last_layers=num_last_layers)
        loaded = LoadedModel(task, tracer.model(checkpoints[-1]), tracer.device)
        whole = [
            replace(text, continuation=text.continuation or _written(loaded, task, text.prompt))
            for text in texts
        ]
        tests = [
            continuation_batch(task.splits.tokenizer, text.prompt, text.continuation)
            for text in whole
        ]

        def window_of(score: WindowScore) -> TextWindow:
            tokens = windows.batch(np.array([score.window])).tokens[0, :-1].numpy()
            first = windows.start + score.window * windows.stride
            text = task.splits.tokenizer.decode(tokens)
            return TextWindow(**vars(score), first_token=first, text=text)

        def report_of(said: dict[str, Any], test: int, folder: Path) -> TextInfluenceReport:
            said["settings"] |= {"window": windows.length}
            report = TextInfluenceReport(**vars(whole[test]), **said)
            report.write(folder / TEXT_INFLUENCE_JSON)
            return report

        return record_each(
            tracer,
            tests,
            source,
            loaded,
            command="trace-text",
            window_of=window_of,
            report_of=report_of,
            output=output,
            progress=progress,
        )


def _written(loaded: LoadedModel, task: LanguageModeling, prompt: str) -> str:
    """Return what the model writes after a prompt, up to the end of the document."""
    tokenizer = task.splits.tokenizer
    tokens = encode_prompt(tokenizer, prompt).astype(np.int64)
    inputs = torch.from_numpy(tokens).unsqueeze(0).to(loaded.device)
    model = task.as_model(loaded.model)
    written = generate(model, inputs, WRITTEN_TOKENS, Sampling(temperature=0.0))[0].cpu().numpy()
    kept = written[: np.argmax(np.append(written, tokenizer.end_of_text) == tokenizer.end_of_text)]
    if not len(kept):
        raise ConfigError(
            f"after the prompt {quoted(prompt)} the model ends the text at once; give a "
            "continuation to explain"
        )
    return tokenizer.decode(kept)


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
