"""One trial of a search: a training that the search follows, prunes, and stops in time."""

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
# Nothing is chosen on the test split, and of a trial only its best model stays.
OF_A_TRIAL: dict[str, Value] = {
    "evaluation.test_after_training": False,
    "training.checkpoint_frequency": 0,
    "training.checkpoint_every_steps": None,
    "tracking.log_checkpoints": False,
    "tracking.log_mfu": False,  # it takes a second, each time
}


class TrialPruned(Interrupted):
    """A trial was given up."""


class OutOfTime(Interrupted):
    """The time of the search was up."""


class Line(Protocol):
    """How a training reaches the search that it is a part of."""

    def began(self, run_id: str) -> None:
        """Say which run it is."""

    def give_up(self, value: float, epoch: int, *, is_last: bool) -> bool:
        """Report the validation metric after an epoch; return whether to give the trial up."""


@dataclass
class TrialLine:
    """Tells Optuna of a trial."""

    trial: optuna.Trial
    maximize: bool
    best: float = math.nan
    """Best validation metric so far."""
    _epochs: set[int] = field(default_factory=set)

    def began(self, run_id: str) -> None:
        """Keep the run's id with the trial at once: a search that is killed must find it again.

        On a cluster, a trial whose node dies is begun again.
        """
        self.best = math.nan
        self.trial.set_user_attr(RUN, run_id)

    def give_up(self, value: float, epoch: int, *, is_last: bool) -> bool:
        """Report the metric; return whether Optuna prunes, unless training ends here anyway."""
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
    """Tells the search of each validation, and ends the training when it or the clock says so."""

    number: int
    line: Line
    is_time_up: Callable[[], bool]
    _tracker: Tracker = field(default_factory=Tracker)

    def started(self, tracker: Tracker) -> None:
        """Tell the run's id."""
        self._tracker = tracker
        assert tracker.run_id is not None
        self.line.began(tracker.run_id)

    def before_step(self) -> None:
        """Stop where the time is up."""
        if self.is_time_up():
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: OUT_OF_TIME})
            raise OutOfTime(f"trial {self.number}: the time is up")

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """Report the metric; end the training where the search gives the trial up."""
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
    """Try the settings that come next, and keep what became of them.

    Settings that do not train (values that do not fit together, a loss that is not finite, too
    little memory) are a result.

    Raises:
        UsageError: data or tracking store cannot be used.
        Interrupted: stopped by the person.
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
    """Train with a trial's settings, and return how that ended.

    Raises:
        UsageError: data or tracking store cannot be used.
        Interrupted: stopped by the person.
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
        gc.collect()  # model and optimizer refer to each other, and the next needs their memory
    return Ending("complete")


def settle(study: TrialStudy, line: TrialLine, ending: Ending, metric: str) -> None:
    """Keep with the search how a trial ended."""
    state, value, problem = ending.state, None, ending.problem
    if state == "complete" and math.isfinite(line.best):
        value = line.best
    elif state == "complete":
        state, problem = "failed", f"{metric} was never a finite number"
    study.end(line.trial, state, value=value, problem=problem)
