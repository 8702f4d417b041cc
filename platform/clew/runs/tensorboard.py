"""Writes the metrics of a run to TensorBoard files, in addition to the tracking store.

To see them: tensorboard --logdir runs/
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from clew.errors import extra
from clew.runs.base import Status, Tracker, finite


class TensorBoardTracker(Tracker):
    """Forwards all records to another tracker, and also writes metrics to event files.

    Args:
        inner: The tracker that records the run.
        folder: The folder for event files, with one subfolder per run.
    """

    def __init__(self, inner: Tracker, folder: Path) -> None:
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        self.inner = inner
        name = inner.run_id or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.folder = folder / name
        self._writer = SummaryWriter(log_dir=str(self.folder))

    @property
    def run_id(self) -> str | None:
        return self.inner.run_id

    def params(self, values: Mapping[str, object]) -> None:
        self.inner.params(values)

    def tags(self, values: Mapping[str, str]) -> None:
        self.inner.tags(values)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self.inner.metrics(values, step)
        for key, value in finite(values).items():
            self._writer.add_scalar(key, value, step)

    def artifact(self, path: Path, folder: str = "") -> None:
        self.inner.artifact(path, folder)

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        self.inner.checkpoint(path, folder=folder, step=step, metrics=metrics)

    def dataset(self, *, name: str, fingerprint: str, source: str, context: str) -> None:
        self.inner.dataset(name=name, fingerprint=fingerprint, source=source, context=context)

    def warn(self, message: str) -> None:
        self.inner.warn(message)

    def flush(self) -> None:
        self._writer.flush()
        self.inner.flush()

    def finish(self, status: Status) -> None:
        self._writer.close()
        self.inner.finish(status)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        self.inner.__exit__(kind, error, trace)
