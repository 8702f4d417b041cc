"""Explain a continuation of a prompt by training windows of a language model's text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from clew.errors import ConfigError, DataError, described, quoted
from clew.input_files import read_lines
from clew.language_modeling.model import Sampling, generate
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import encode_prompt
from clew.language_modeling.tokens import continuation_batch
from clew.runs.window_report import (
    TEXT_INFLUENCE_JSON,
    TextInfluenceReport,
    TextWindow,
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
