"""Trials of a search on a cluster: nodes train, and only this process uses Optuna.

A node reports each validation over a channel; the answer is whether to prune the trial.
"""

import logging
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, TypeAdapter

from clew.config.schema import RunConfig
from clew.config.search_space import Value
from clew.errors import TrackingError
from clew.workflows.clusters.cluster import ChannelLine, Cluster
from clew.workflows.resume import end_if_dead
from clew.workflows.tuning.study import TrialStudy
from clew.workflows.tuning.trial import Ending, TrialLine, TrialWatch, settle, train_trial

logger = logging.getLogger(__name__)


class Began(BaseModel):
    """Message of a node that a trial began; the answer is how many seconds are left."""

    number: int
    run_id: str


class Validated(BaseModel):
    """Message of a node after a validation; the answer is whether to prune the trial."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # null would not validate as a float

    number: int
    value: float
    epoch: int
    is_last: bool


_SAID: TypeAdapter[Began | Validated] = TypeAdapter(Began | Validated)


class NodeLine:
    """Connects a trial on a node with the search, over the channel."""

    def __init__(self, channel: ChannelLine, number: int) -> None:
        self._channel, self._number = channel, number
        self._ends = float("inf")

    def began(self, run_id: str) -> None:
        seconds = self._ask(Began(number=self._number, run_id=run_id))
        self._ends = time.monotonic() + float(seconds)

    def give_up(self, value: float, epoch: int, *, is_last: bool) -> bool:
        said = Validated(number=self._number, value=value, epoch=epoch, is_last=is_last)
        return self._ask(said) == str(True)

    def is_time_up(self) -> bool:
        return time.monotonic() >= self._ends

    def _ask(self, said: Began | Validated) -> str:
        return self._channel.ask(said.model_dump_json())


def try_settings(
    config: RunConfig,
    settings: Mapping[str, Value],
    number: int,
    channel: ChannelLine,
    parent_run_id: str,
) -> Ending:
    line = NodeLine(channel, number)
    return train_trial(config, settings, TrialWatch(number, line, line.is_time_up), parent_run_id)


class ClusterTrials:
    """The trials that run on a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        study: TrialStudy,
        config: RunConfig,
        *,
        parent_run_id: str,
        seconds_left: Callable[[], float],
    ) -> None:
        self._cluster, self._study, self._config = cluster, study, config
        self._parent, self._seconds_left = parent_run_id, seconds_left
        self._running: dict[int, TrialLine] = {}
        self._runs: dict[int, str] = {}
        self._left: list[str] = []

    def run(self, wants_more: Callable[[int], bool], tell: Callable[[int], None]) -> None:
        """Run as many trials at a time as the cluster has room for, until no more are wanted.

        If all nodes that try a trial die, it fails: its settings may need too much memory.

        Args:
            wants_more: Receives the number of running trials, and returns whether to begin another.
            tell: Receives the number of each trial that ended.

        Raises:
            UsageError: The data or the tracking store cannot be used on a node.
        """
        channel = self._cluster.channel(self._answer)
        try:
            self._fill(wants_more, channel.line)
            for number, ended in self._cluster.finished(channel):
                line = self._running[number]
                if ended.error is not None and not ended.is_lost:
                    raise ended.error
                ending = ended.result or Ending("failed", str(ended.error))
                del self._running[number]
                settle(self._study, line, ending, self._config.evaluation.metric)
                tell(number)
                self._fill(wants_more, channel.line)
        finally:
            for line in self._running.values():
                self._study.end(line.trial, "stopped")
            self._end_left()

    def _fill(self, wants_more: Callable[[int], bool], channel: ChannelLine) -> None:
        while len(self._running) < self._cluster.slots and wants_more(len(self._running)):
            trial = self._study.ask()
            self._running[trial.number] = TrialLine(trial, self._config.evaluation.maximize)
            arguments = (self._config, trial.params, trial.number, channel, self._parent)
            self._cluster.submit(trial.number, try_settings, *arguments)

    def _answer(self, question: str) -> str:
        said = _SAID.validate_json(question)
        line = self._running[said.number]
        if isinstance(said, Validated):
            return str(line.give_up(said.value, said.epoch, is_last=said.is_last))
        if said.number in self._runs:
            self._left.append(self._runs[said.number])
        self._runs[said.number] = said.run_id
        line.began(said.run_id)
        return str(self._seconds_left())

    def _end_left(self) -> None:
        """End the earlier runs of trials that began again after their node died."""
        for run_id in self._left:
            try:
                end_if_dead(run_id)
            except TrackingError as error:
                logger.warning("%s", error)
