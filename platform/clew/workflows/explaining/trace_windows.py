"""Explain a continuation of a prompt, or a prediction from frames, by training windows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew.errors import ConfigError, DataError, described, quoted
from clew.image_sequences.errors import draw_windows
from clew.image_sequences.task import SequenceRegression
from clew.image_sequences.windows import SequenceWindows
from clew.input_files import read_lines
from clew.language_modeling.model import Sampling, generate
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import encode_prompt
from clew.language_modeling.tokens import continuation_batch
from clew.runs.window_report import (
    SEQUENCE_INFLUENCE_JSON,
    SEQUENCE_INFLUENCE_PICTURE,
    TEXT_INFLUENCE_JSON,
    FrameWindow,
    SequenceInfluenceReport,
    TextInfluenceReport,
    TextWindow,
    WindowScore,
)
from clew.workflows.explaining.window_traces import (
    WindowTrace,
    check_output,
    open_task,
    open_tracer,
    record_each,
)
from clew.workflows.model_source import LoadedModel, open_checkpoints

DRAWN_WINDOWS = 3
"""Number of training windows of each sign whose frames are drawn."""
WRITTEN_TOKENS = 64
"""Number of tokens in a continuation that the model generates itself."""


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
