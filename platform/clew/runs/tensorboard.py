"""Writes the metrics of a run to TensorBoard files, in addition to the tracking store.

To see them: tensorboard --logdir runs/
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from clew.extras import extra
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
        """Id of the run in the store."""
        return self.inner.run_id

    def params(self, values: Mapping[str, object]) -> None:
        """Forward parameters."""
        self.inner.params(values)

    def tags(self, values: Mapping[str, str]) -> None:
        """Forward tags."""
        self.inner.tags(values)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Forward metrics, and write finite values to the event file."""
        self.inner.metrics(values, step)
        for key, value in finite(values).items():
            self._writer.add_scalar(key, value, step)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Forward a file or folder."""
        self.inner.artifact(path, folder)

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Forward a checkpoint."""
        self.inner.checkpoint(path, folder=folder, step=step, metrics=metrics)

    def dataset(self, *, name: str, fingerprint: str, source: str, context: str) -> None:
        """Forward a data set."""
        self.inner.dataset(name=name, fingerprint=fingerprint, source=source, context=context)

    def warn(self, message: str) -> None:
        """Forward a warning."""
        self.inner.warn(message)

    def flush(self) -> None:
        """Flush the event files and the other tracker."""
        self._writer.flush()
        self.inner.flush()

    def finish(self, status: Status) -> None:
        """Close the event files and end the run."""
        self._writer.close()
        self.inner.finish(status)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the event files; the other tracker ends the run and can record the error."""
        self._writer.close()
        self.inner.__exit__(kind, error, trace)
