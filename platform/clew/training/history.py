"""Keeps every metric value of a run in order, for the tracker and the history file."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.errors import CheckpointError, described
from clew.runs.base import Tracker


@dataclass(frozen=True)
class MetricValue:
    """One value of one metric."""

    key: str
    value: float
    step: int
    epoch: int
    elapsed_seconds: float


@dataclass
class History:
    """Records metric values and sends them to the tracker.

    `elapsed_seconds` counts from the start of training and continues after a resume.
    """

    tracker: Tracker
    entries: list[MetricValue] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def record(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        elapsed = self.elapsed_seconds
        self.entries.extend(
            MetricValue(key, float(value), step, epoch, elapsed) for key, value in values.items()
        )
        self.tracker.metrics(values, step)

    def start(self) -> None:
        """Start the clock; after a resume, it continues from the last recorded time."""
        before = self.entries[-1].elapsed_seconds if self.entries else 0.0
        self.started = time.perf_counter() - before

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since training started, including the time before a resume."""
        return time.perf_counter() - self.started

    def restore(self, entries: Sequence[MetricValue]) -> None:
        """Restore saved entries and send them again, so that a resumed run has complete curves."""
        self.entries = list(entries)
        together = itertools.groupby(self.entries, key=lambda e: (e.step, e.elapsed_seconds))
        for (step, _), same in together:
            self.tracker.metrics({entry.key: entry.value for entry in same}, step)

    def write(self, path: Path) -> None:
        """Write all entries as Parquet: key, value, step, epoch, elapsed_seconds."""
        columns = {
            name: [getattr(entry, name) for entry in self.entries]
            for name in MetricValue.__dataclass_fields__
        }
        schema = pa.schema(
            [
                ("key", pa.string()),
                ("value", pa.float64()),
                ("step", pa.int64()),
                ("epoch", pa.int64()),
                ("elapsed_seconds", pa.float64()),
            ]
        )
        pq.write_table(pa.table(columns, schema=schema), path)


def last_step(path: Path) -> int:
    """Return the last optimizer step of a finished run, which its last checkpoint has too.

    Raises:
        CheckpointError: The file is not a history file.
    """
    try:
        steps = pq.read_table(path, columns=["step"])["step"].cast(pa.int64())
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a run's history ({described(error)}); copy it here again"
        ) from None
    return int(pc.max(steps).as_py() or 0)
