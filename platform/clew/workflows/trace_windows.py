"""What explaining a text and explaining a sequence of frames share: open, time, record."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from clew import names
from clew.errors import ConfigError
from clew.files import working_folder
from clew.influence.scores import Scored
from clew.influence.windows import WindowExplanation, WindowTracer
from clew.runs.base import Tracker
from clew.runs.window_report import WindowReport, WindowScore
from clew.training.precision import device_name, resolve_device
from clew.training.setup import prepare_process
from clew.training.task import B
from clew.workflows.model_source import LoadedModel, ModelSource, check_fingerprint
from clew.workflows.tasks import build_task
from clew.workflows.trace_run import trace_run
from clew.workflows.trace_source import average_setting

T = TypeVar("T")
R = TypeVar("R", bound=WindowReport[Any])


@dataclass(frozen=True)
class WindowTrace(Generic[R]):
    """An explanation and the run that records it."""

    report: R
    run_id: str | None

    def table(self) -> str:
        """Return what is explained and its strongest proponents and opponents."""
        lines = [f"run {self.run_id or '(not recorded)'}", *self.report.headline()]
        for sign, windows in (("+", self.report.proponents), ("-", self.report.opponents)):
            lines += [f"  {sign} {w.influence:+.4g}  {self.report.shown(w)}" for w in windows]
        notes = names.average_notes(self.report.settings)
        return "\n".join([*lines, self.report.sign, *notes])


def open_task(source: ModelSource, kind: type[T], explains: str) -> tuple[T, torch.device]:
    """Build a model's task and choose the device.

    Args:
        source: The model.
        kind: The task's class.
        explains: What the command explains and which commands explain the rest, for people.

    Raises:
        ConfigError: the model's task is another, or the form of the score is not defined for it.
    """
    score = source.config.influence.score
    if score != "raw":
        raise ConfigError(
            f"influence.score is {score}, but training windows have raw scores, with the cosine "
            "beside each; other forms are defined for graph models: leave it at raw"
        )
    prepare_process(source.config)
    task = build_task(source.config)
    if not isinstance(task, kind):
        raise ConfigError(f"{source.title} is a {task.kind} model; {explains}")
    check_fingerprint(source, task.data_fingerprint)
    return task, resolve_device("cpu" if source.config.training.device == "cpu" else "auto")


@contextmanager
def recording(
    source: ModelSource, loaded: LoadedModel, command: str
) -> Iterator[tuple[Tracker, Path]]:
    """Open a run of kind `trace`; yield its tracker and a folder, logged where the run succeeds."""
    run_name = f"{command} {loaded.task.dataset}"
    with (
        trace_run(source, loaded, run_name) as tracker,
        working_folder("trace") as name,
    ):
        folder = name / names.ARTIFACT_INFLUENCE
        folder.mkdir()
        yield tracker, folder
        tracker.artifact(folder)


def explain(
    tracer: WindowTracer[B],
    test: B,
    source: ModelSource,
    tracker: Tracker,
    progress: Callable[[int, int], None],
) -> tuple[WindowExplanation, Mapping[str, Any]]:
    """Explain a test window; return also what every report says of how it was explained."""
    top_k, num_windows = source.config.influence.top_k, len(tracer.windows)
    started = time.perf_counter()
    explanation = tracer.explain(test, top_k=top_k or num_windows, progress=progress)
    seconds = time.perf_counter() - started
    tracker.metrics(
        {
            names.INFLUENCE_SECONDS_PER_TEST: seconds,
            names.INFLUENCE_PAIRS_PER_SECOND: num_windows / seconds,
        },
        source.manifest.step,
    )
    return explanation, {
        "run_id": source.run_id or "",
        "dataset": tracer.task.dataset,
        "loss": explanation.loss,
        "self_influence": explanation.self_influence,
        "num_windows": num_windows,
        "seconds": seconds,
        "device": device_name(tracer.device),
        "steps": tuple(record.step for record in tracer.checkpoints),
        "weights": tuple(map(float, tracer.weights)),
        "settings": {
            "top_k": top_k,
            "num_last_layers": tracer.num_last_layers,
            "data_fingerprint": tracer.task.data_fingerprint,
            "config_hash": source.manifest.config_hash,
            **average_setting(source.config),
        },
    }


def window_scores(scored: Scored, parts: tuple[str, ...]) -> list[WindowScore]:
    """Return the windows of one sign; short lists are padded with -1."""
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
