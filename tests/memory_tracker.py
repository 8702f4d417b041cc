"""A tracker that stores everything in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clew.runs.base import DataSet, Status, Tracker, finite, parameter_key


@dataclass
class MemoryTracker(Tracker):
    """Keeps everything in memory."""

    parameters: dict[str, object] = field(default_factory=dict)
    tag_values: dict[str, str] = field(default_factory=dict)
    metric_values: list[tuple[str, float, int]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    checkpoints: list[tuple[str, int, dict[str, float]]] = field(default_factory=list)
    datasets: list[tuple[str, str, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    status: Status | None = None
    _left_out: set[str] = field(default_factory=set)

    def params(self, values: Mapping[str, object]) -> None:
        """Keep parameters."""
        self.parameters.update({parameter_key(key): value for key, value in values.items()})

    def tags(self, values: Mapping[str, str]) -> None:
        """Keep tags."""
        self.tag_values.update(values)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Keep metric values."""
        super().metrics(values, step)
        kept = finite(values)
        self.metric_values.extend((key, value, step) for key, value in kept.items())
        for key in values.keys() - kept.keys() - self._left_out:
            self._left_out.add(key)
            told = "values that are not finite are not recorded"
            self.warn(f"{key} was {float(values[key])} at step {step}; {told}")

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep the artifact's name."""
        self.artifacts.append(f"{folder}/{path.name}".lstrip("/"))

    def checkpoint(
        self, path: Path, *, folder: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Keep the checkpoint's folder, step and metrics."""
        self.checkpoints.append((folder, step, dict(metrics)))

    def dataset(self, data: DataSet) -> None:
        """Keep the data set."""
        self.datasets.append((data.name, data.fingerprint, data.source, data.context))

    def warn(self, message: str) -> None:
        """Keep the warning."""
        super().warn(message)
        self.warnings.append(message)

    def finish(self, status: Status) -> None:
        """Keep the status."""
        super().finish(status)
        self.status = status
