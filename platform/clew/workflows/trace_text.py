"""Explain a continuation: which training windows of a language model made it likely."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.errors import ConfigError
from clew.influence.scores import Scored
from clew.influence.windows import WindowTracer
from clew.language_modeling.generation import generate
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokens import TokenWindows, continuation_batch
from clew.runs.window_report import TEXT_INFLUENCE_JSON, TextInfluenceReport, TextWindow
from clew.workflows.model_source import LoadedModel
from clew.workflows.outputs import check_file
from clew.workflows.trace_source import open_checkpoints
from clew.workflows.trace_windows import (
    WindowTrace,
    explain,
    open_task,
    recording,
    window_scores,
)

EXPLAINS = (
    "trace-text explains language models: for link prediction use tracin, for image sequences "
    "trace-sequence"
)
WRITTEN_TOKENS = 64
"""Length of a continuation that the model writes itself."""


def trace_text(
    model: str,
    prompt: str,
    continuation: str,
    overrides: Mapping[str, Any],
    *,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WindowTrace[TextInfluenceReport]:
    """Explain a continuation by all training windows, and record it as a run of kind `trace`.

    Args:
        model: A run id or a folder of checkpoints.
        prompt: Text before the continuation.
        continuation: Text whose likelihood is explained; empty: what the model writes.
        overrides: Settings of the explanation, `influence.key` to value.
        num_last_layers: Count only this many modules from the end; None: all.
        output: Where else to write the report.
        progress: Called with the number of windows done and in total.

    Raises:
        UsageError: the model is none of language, or its checkpoints or text cannot be used.
    """
    check_file("--output", output)
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task, device = open_task(source, LanguageModeling, EXPLAINS)
        windows = task.train_examples().without_overlap()
        tracer = WindowTracer(
            task, windows, checkpoints, device=device, num_last_layers=num_last_layers
        )
        loaded = LoadedModel(task, tracer.model(checkpoints[-1]), device)
        continuation = continuation or _written(loaded, task, prompt)
        test = continuation_batch(task.splits.tokenizer, prompt, continuation)
        with recording(source, loaded, "trace-text") as (tracker, folder):
            found, said = explain(tracer, test, source, tracker, progress)
            report = TextInfluenceReport(
                prompt=prompt,
                continuation=continuation,
                proponents=_windows(task, windows, found.proponents, found.parts),
                opponents=_windows(task, windows, found.opponents, found.parts),
                **{**said, "settings": {**said["settings"], "window": windows.length}},
            )
            report.write(folder / TEXT_INFLUENCE_JSON)
        if output is not None:
            report.write(output)
        return WindowTrace(report, tracker.run_id)


def _written(loaded: LoadedModel, task: LanguageModeling, prompt: str) -> str:
    """Return the likeliest continuation, token by token."""
    tokens = task.splits.tokenizer.encode(prompt.encode()).astype(np.int64)
    if not len(tokens):
        raise ConfigError("no prompt given; expected text to continue")
    inputs = torch.from_numpy(tokens).unsqueeze(0).to(loaded.device)
    written = generate(task.as_model(loaded.model), inputs, WRITTEN_TOKENS, temperature=0.0)
    return task.splits.tokenizer.decode(written[0].cpu().numpy())


def _windows(
    task: LanguageModeling, windows: TokenWindows, scored: Scored, parts: tuple[str, ...]
) -> tuple[TextWindow, ...]:
    """Return the windows of one sign with their text."""
    decode = task.splits.tokenizer.decode
    return tuple(
        TextWindow(
            **vars(score),
            first_token=windows.start + score.window * windows.stride,
            text=decode(windows.batch(np.array([score.window])).tokens[0, :-1].numpy()),
        )
        for score in window_scores(scored, parts)
    )
