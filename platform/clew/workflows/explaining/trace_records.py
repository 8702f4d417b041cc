"""Recording explanations by training windows: a run each, and copies where a person wants them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clew import names
from clew.files import working_folder
from clew.influence.scores import Scored
from clew.influence.windows.estimates import Searched
from clew.influence.windows.index_files import FOLDER
from clew.influence.windows.tracer import WindowTracer
from clew.runs.base import Tracker
from clew.runs.reading.runs import keep_folder
from clew.runs.window_report import WindowReport, WindowScore
from clew.training.manifest import CheckpointRecord
from clew.training.task import B
from clew.workflows.explaining.trace_run import trace_run
from clew.workflows.explaining.trace_windows import Explained, explain
from clew.workflows.model_source import LoadedModel, ModelSource, folder_meant
from clew.workflows.outputs import check_file, check_new_folder

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
        return "\n".join([*lines, self.report.sign, *self.report.notes()])


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
    """Explain test windows, and record each explanation as a run; the first holds the memory.

    Args:
        tracer: What explains them.
        tests: Batches of one window each.
        source: The model.
        loaded: The model as evaluation sees it.
        command: What the runs are named after.
        report_of: Writes the report of one test into a folder, and returns it.
        progress: Called with the number of windows done and in total.
    """
    explained, results = None, []
    for test in range(len(tests)):
        with recording(source, loaded, command) as (tracker, folder):
            if explained is None:
                explained = explain(tracer, tests, source, progress)
                if explained.found[0].searched is not None:
                    keep_indices(source, tracer.checkpoints, explained.found[0].searched)
            tracker.metrics(explained.metrics, source.manifest.step)
            report = report_of(explained, test, folder)
        results.append(WindowTrace(report, tracker.run_id))
    return results


def said_of(explained: Explained, test: int, **more: object) -> dict[str, Any]:
    """Return what the report of one test says of how it was made."""
    found = explained.found[test]
    search = {} if found.searched is None else {names.SETTING_SEARCH: asdict(found.searched)}
    return {
        **explained.said,
        "loss": found.loss,
        "self_influence": found.self_influence,
        "settings": {**explained.said["settings"], **search, **more},
    }


def keep_indices(
    source: ModelSource, checkpoints: Sequence[CheckpointRecord], searched: Searched
) -> None:
    """Keep indices that were just made beside the checkpoints of a run, in the tracking store."""
    if not searched.indices_made or source.run_id is None or folder_meant(source.reference):
        return
    for record in checkpoints:
        place = f"{names.ARTIFACT_CHECKPOINTS}/{record.path.name}/{FOLDER}"
        keep_folder(source.run_id, record.path / FOLDER, place)


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


def check_outputs(output: Path | None, count: int) -> None:
    """Refuse a place where copies of so many reports cannot be written.

    Raises:
        ConfigError: it is of the wrong kind, or cannot be written.
    """
    if count == 1:
        check_file("--output", output)
    else:
        check_new_folder("--output", output)


def write_outputs(results: Sequence[WindowTrace[R]], output: Path | None) -> None:
    """Write copies of reports: one to a file, several to a folder, numbered from 0."""
    if output is None:
        return
    if len(results) == 1:
        results[0].report.write(output)
        return
    for number, result in enumerate(results):
        result.report.write(output / f"{number:04d}.json")
