"""Joins waiting messages into as few requests as MLflow's limits allow, without changing order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mlflow.entities import Metric

from clew.runs.messages import Message, Metrics, Params, Tags
from clew.runs.spool import Entry

MAX_METRICS = 1000  # MLflow's limits for one log_batch; the first counts all three together
MAX_PARAMS = 100
MAX_TAGS = 100
MAX_CHARACTERS = 500_000  # half of what MLflow takes in one request


@dataclass
class Batch:
    """Consecutive messages that one `log_batch` carries."""

    metrics: list[Metric] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    characters: int = 0

    def add(self, message: Metrics | Params | Tags) -> bool:
        """Take up the message if it fits, or if the batch is empty."""
        size = sum(len(key) + len(str(value)) + 40 for key, value in message.values.items())
        if self.messages and not self._fits(message, size):
            return False
        match message:
            case Metrics(values, step, time_ms):
                self.metrics += [Metric(k, v, time_ms, step) for k, v in values.items()]
            case Params(values):
                self.params |= values
            case Tags(values):
                self.tags |= values
        self.messages.append(message)
        self.characters += size
        return True

    def _fits(self, message: Metrics | Params | Tags, size: int) -> bool:
        total = len(self.metrics) + len(self.params) + len(self.tags) + len(message.values)
        if total > MAX_METRICS or self.characters + size > MAX_CHARACTERS:
            return False
        match message:
            case Params(values):
                same = all(self.params.get(key, value) == value for key, value in values.items())
                return same and len(self.params) + len(values) <= MAX_PARAMS
            case Tags(values):
                return len(self.tags) + len(values) <= MAX_TAGS
        return True


def grouped(entries: Iterable[Entry]) -> Iterator[tuple[Batch | Message, Entry]]:
    """Yield what goes to the store in one call, each with the last entry that it covers."""
    batch, last = Batch(), None
    for entry in entries:
        if isinstance(entry.message, Metrics | Params | Tags):
            if last is not None and not batch.add(entry.message):
                yield batch, last
                batch, last = Batch(), None
            if last is None:
                batch.add(entry.message)
            last = entry
            continue
        if last is not None:
            yield batch, last
            batch, last = Batch(), None
        yield entry.message, entry
    if last is not None:
        yield batch, last
