"""Explain a continuation: which training windows of a language model made it likely."""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew import names
from clew.checkpoints import load_model
from clew.config.services import TrackingConfig
from clew.data.tokens import continuation_batch
from clew.errors import ConfigError
from clew.influence.scores import Scored
from clew.influence.text import TextExplanation, TextTracer
from clew.models.generation import generate
from clew.tasks.language_modeling import LanguageModeling
from clew.text_records import (
    TEXT_INFLUENCE_JSON,
    TextInfluenceReport,
    WindowEntry,
    write_text_influence,
)
from clew.tracking.mlflow_store import open_tracker
from clew.training.precision import resolve_device
from clew.training.setup import prepare_process
from clew.workflows.evaluate import tags_of
from clew.workflows.model_source import LoadedModel, ModelSource, check_fingerprint
from clew.workflows.tasks import build_task
from clew.workflows.trace_source import device_name, open_checkpoints

SHOWN_CHARACTERS = 96
WRITTEN_TOKENS = 64
"""Length of a continuation that the model writes itself."""


@dataclass(frozen=True)
class TextTraceResult:
    """An explanation and the run that records it."""

    report: TextInfluenceReport
    run_id: str | None

    def table(self) -> str:
        """Return the continuation and its strongest proponents and opponents."""
        report = self.report
        lines = [f"run {self.run_id or '(not recorded)'}", f"{report.prompt!r}"]
        lines.append(f"  ⟶ {report.continuation!r}   loss {report.loss:.3f} nats")
        for sign, entries in (("+", report.proponents), ("-", report.opponents)):
            lines += [
                f"  {sign} {entry.influence:+.4g}  window {entry.window}: {_shown(entry.text)}"
                for entry in entries
            ]
        return "\n".join([*lines, report.sign])


def trace_text(
    model: str,
    prompt: str,
    continuation: str,
    overrides: Mapping[str, Any],
    *,
    num_last_layers: int | None = None,
    output: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TextTraceResult:
    """Explain a continuation by all training windows, and record it as a run of kind `trace`.

    Args:
        model: A run id or a folder of checkpoints.
        prompt: Text before the continuation.
        continuation: Text whose likelihood is explained; empty: what the model writes.
        overrides: Settings of the explanation, `influence.key` to value.
        num_last_layers: Count only so many modules from the end; None: all.
        output: Where else to write the report.
        progress: Told windows done and to do.

    Raises:
        UsageError: the model is none of language, or its checkpoints or text cannot be used.
    """
    with open_checkpoints(model, overrides) as (source, checkpoints):
        task = _language_task(source)
        device = resolve_device("cpu" if source.config.training.device == "cpu" else "auto")
        tracer = TextTracer(task, checkpoints, device=device, num_last_layers=num_last_layers)
        loaded = LoadedModel(task, _last_model(tracer), device)
        continuation = continuation or _written(tracer, loaded.model, prompt)
        test = continuation_batch(task.splits.tokenizer, prompt, continuation)
        tracker = open_tracker(
            TrackingConfig(experiment=source.config.tracking.experiment),
            kind=names.KIND_TRACE,
            run_name=f"trace-text {task.dataset}",
            tags=tags_of(source, loaded),
        )
        with tracker, tempfile.TemporaryDirectory(prefix="clew-text-") as folder:
            started = time.perf_counter()
            explanation = tracer.explain(
                test, top_k=source.config.influence.top_k or 10, progress=progress
            )
            seconds = time.perf_counter() - started
            report = _report(tracer, source, explanation, prompt, continuation, seconds)
            path = Path(folder) / names.ARTIFACT_INFLUENCE / TEXT_INFLUENCE_JSON
            write_text_influence(report, path)
            tracker.metrics(
                {
                    names.INFLUENCE_SECONDS_PER_TEST: seconds,
                    names.INFLUENCE_PAIRS_PER_SECOND: report.num_windows / seconds,
                },
                source.manifest.step,
            )
            tracker.artifact(path.parent)
            if output is not None:
                write_text_influence(report, output)
        return TextTraceResult(report, tracker.run_id)


def _language_task(source: ModelSource) -> LanguageModeling:
    prepare_process(source.config)
    task = build_task(source.config)
    if not isinstance(task, LanguageModeling):
        raise ConfigError(
            f"{source.title} is a {task.kind} model; trace-text explains language models: for "
            "link prediction use tracin"
        )
    check_fingerprint(source, task.data_fingerprint)
    return task


def _last_model(tracer: TextTracer) -> torch.nn.Module:
    model = tracer.task.build_model()
    load_model(tracer.checkpoints[-1].path, model)
    return model.to(tracer.device).eval()


def _written(tracer: TextTracer, model: torch.nn.Module, prompt: str) -> str:
    """Return the likeliest continuation, token by token."""
    tokenizer = tracer.task.splits.tokenizer
    tokens = tokenizer.encode(prompt.encode()).astype(np.int64)
    if not len(tokens):
        raise ConfigError("no prompt given; expected text to continue")
    inputs = torch.from_numpy(tokens).unsqueeze(0).to(tracer.device)
    written = generate(tracer.task.as_model(model), inputs, WRITTEN_TOKENS, temperature=0.0)
    return tokenizer.decode(written[0].cpu().numpy())


def _report(  # noqa: PLR0917
    tracer: TextTracer,
    source: ModelSource,
    explanation: TextExplanation,
    prompt: str,
    continuation: str,
    seconds: float,
) -> TextInfluenceReport:
    settings: dict[str, Any] = {
        "top_k": source.config.influence.top_k,
        "num_last_layers": tracer.num_last_layers,
        "window": tracer.windows.length,
        "data_fingerprint": tracer.task.data_fingerprint,
        "config_hash": source.manifest.config_hash,
    }
    return TextInfluenceReport(
        run_id=source.run_id or "",
        dataset=tracer.task.dataset,
        prompt=prompt,
        continuation=continuation,
        loss=explanation.loss,
        self_influence=explanation.self_influence,
        num_windows=len(tracer.windows),
        seconds=seconds,
        device=device_name(tracer.device),
        steps=tuple(record.step for record in tracer.checkpoints),
        weights=tuple(tracer.weights),
        proponents=_entries(tracer, explanation.proponents, explanation.parts),
        opponents=_entries(tracer, explanation.opponents, explanation.parts),
        settings=settings,
    )


def _entries(tracer: TextTracer, scored: Scored, parts: tuple[str, ...]) -> tuple[WindowEntry, ...]:
    """Return the windows of one sign with their text; short lists are padded with -1."""
    windows, decode = tracer.windows, tracer.task.splits.tokenizer.decode
    entries = []
    for place, index in enumerate(scored.train[0].tolist()):
        if index < 0:
            break
        tokens = windows.batch(np.array([index])).tokens[0, :-1].numpy()
        entries.append(
            WindowEntry(
                rank=place + 1,
                window=index,
                first_token=windows.start + index * windows.stride,
                text=decode(tokens),
                influence=float(scored.influence[0, place]),
                cosine=None if scored.cosine is None else float(scored.cosine[0, place]),
                by_checkpoint=tuple(scored.by_checkpoint[:, 0, place].tolist()),
                by_part=dict(zip(parts, scored.by_part[:, 0, place].tolist(), strict=True)),
            )
        )
    return tuple(entries)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…")
