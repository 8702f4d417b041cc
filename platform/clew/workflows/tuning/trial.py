"""One trial of a search: a training that the search watches and can prune or stop."""

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import optuna

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.config.search_space import Value
from clew.errors import ConfigError, Interrupted, ProtectedStop
from clew.runs.base import Tracker
from clew.training.schedule import is_better
from clew.training.stopping import Watch
from clew.workflows.train import train
from clew.workflows.tuning.study import EPOCH, RUN, State, TrialStudy

PRUNED, OUT_OF_TIME = "pruned", "out of time"
# A trial keeps only its best model, and the test split chooses nothing.
OF_A_TRIAL: dict[str, Value] = {
    "evaluation.test_after_training": False,
    "training.checkpoint_frequency": 0,
    "training.checkpoint_every_steps": None,
    "tracking.log_checkpoints": False,
    "tracking.log_mfu": False,
}


class TrialPruned(Interrupted):
    """The search pruned a trial."""


class OutOfTime(Interrupted):
    """The time of the search was up."""


class Line(Protocol):
    """Connects the training of a trial with its search."""

    def began(self, run_id: str) -> None:
        """Report the run of the trial."""

    def give_up(self, value: float, epoch: int, *, is_last: bool) -> bool:
        """Report the validation metric after an epoch; return whether to prune the trial."""


@dataclass
class TrialLine:
    """Reports the progress of a trial to Optuna."""

    trial: optuna.Trial
    maximize: bool
    best: float = math.nan
    """Best validation metric so far."""
    _epochs: set[int] = field(default_factory=set)

    def began(self, run_id: str) -> None:
        """Store the run's id with the trial immediately, so that a killed search finds it again.

        On a cluster, this is called again when a trial restarts after its node died.
        """
        self.best = math.nan
        self.trial.set_user_attr(RUN, run_id)

    def give_up(self, value: float, epoch: int, *, is_last: bool) -> bool:
        """Report the metric; return whether Optuna prunes the trial, False if training ends now."""
        if epoch not in self._epochs:
            self.trial.report(value, epoch)
            self._epochs.add(epoch)
        if is_better(value, self.best, maximize=self.maximize):
            self.best = value
            self.trial.set_user_attr(EPOCH, epoch)
        if is_last or not self.trial.should_prune():
            return False
        self.trial.set_user_attr(EPOCH, epoch)
        return True


@dataclass
class TrialWatch(Watch):
    """Reports each validation to the search, and stops the training if pruned or out of time."""

    number: int
    line: Line
    is_time_up: Callable[[], bool]
    _tracker: Tracker = field(default_factory=Tracker)

    def started(self, tracker: Tracker) -> None:
        self._tracker = tracker
        assert tracker.run_id is not None
        self.line.began(tracker.run_id)

    def before_step(self) -> None:
        """Stop the training if the time is up.

        Raises:
            OutOfTime: The time of the search is up.
        """
        if self.is_time_up():
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: OUT_OF_TIME})
            raise OutOfTime(f"trial {self.number}: the time is up")

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """Report the metric, and stop the training if the search prunes the trial.

        Raises:
            TrialPruned: The search prunes the trial.
        """
        if self.line.give_up(value, epoch, is_last=is_last):
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: PRUNED})
            raise TrialPruned(f"trial {self.number}: pruned after epoch {epoch}")


@dataclass(frozen=True)
class Ending:
    """How the training of a trial ended."""

    state: State
    problem: str = ""


def run_trial(
    study: TrialStudy,
    config: RunConfig,
    *,
    parent_run_id: str,
    is_time_up: Callable[[], bool],
) -> None:
    """Train with the next settings, and store how the trial ended.

    A failure because of the settings (values that do not fit together, a loss that is not finite,
    too little memory) is a result.

    Raises:
        UsageError: The data or the tracking store cannot be used.
        Interrupted: The user stopped the search.
    """
    trial = study.ask()
    line = TrialLine(trial, config.evaluation.maximize)
    watch = TrialWatch(trial.number, line, is_time_up)
    try:
        ending = train_trial(config, trial.params, watch, parent_run_id)
    except BaseException:
        study.end(trial, "stopped")
        raise
    settle(study, line, ending, config.evaluation.metric)


def train_trial(
    config: RunConfig, settings: Mapping[str, Value], watch: TrialWatch, parent_run_id: str
) -> Ending:
    """Train with a trial's settings, and return how the training ended.

    Raises:
        UsageError: The data or the tracking store cannot be used.
        Interrupted: The user stopped the search.
    """
    name = f"{config.tracking.run_name or 'trial'} {watch.number}"
    own = {**settings, **OF_A_TRIAL, "tracking.run_name": name}
    try:
        train(
            with_settings(config, own, source="settings of the trial"),
            parent_run_id=parent_run_id,
            tags={names.TAG_TRIAL: str(watch.number)},
            watch=watch,
        )
    except TrialPruned:
        return Ending("pruned")
    except OutOfTime:
        return Ending("stopped")
    except (ConfigError, ProtectedStop) as error:
        return Ending("failed", str(error))
    finally:
        gc.collect()  # model and optimizer form a reference cycle; the next trial needs the memory
    return Ending("complete")


def settle(study: TrialStudy, line: TrialLine, ending: Ending, metric: str) -> None:
    """Store how a trial ended, with its best metric; without a finite metric it has failed."""
    state, value, problem = ending.state, None, ending.problem
    if state == "complete" and math.isfinite(line.best):
        value = line.best
    elif state == "complete":
        state, problem = "failed", f"{metric} was never a finite number"
    study.end(line.trial, state, value=value, problem=problem)
