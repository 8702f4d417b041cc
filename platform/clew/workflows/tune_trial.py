"""One trial of a search: a training that the search follows, prunes, and stops in time."""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import optuna

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.config.search_space import Value
from clew.errors import ConfigError, Interrupted, ProtectedStop
from clew.runs.base import Tracker
from clew.training.schedule import is_better
from clew.training.watch import Watch
from clew.workflows.train import train
from clew.workflows.tune_study import EPOCH, RUN, TrialStudy

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


@dataclass
class TrialWatch(Watch):
    """Tells Optuna of each validation, and ends the training when Optuna or the clock says so."""

    trial: optuna.Trial
    maximize: bool
    is_time_up: Callable[[], bool]
    best: float = math.nan
    """Best validation metric so far."""
    _tracker: Tracker = field(default_factory=Tracker)

    def started(self, tracker: Tracker) -> None:
        """Keep the run's id with the trial at once: a search that is killed must find it again."""
        self._tracker = tracker
        self.trial.set_user_attr(RUN, tracker.run_id)

    def before_step(self) -> None:
        """Stop where the time is up."""
        if self.is_time_up():
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: OUT_OF_TIME})
            raise OutOfTime(f"trial {self.trial.number}: the time is up")

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """Report the metric; prune, unless training ends here anyway."""
        self.trial.report(value, epoch)
        if is_better(value, self.best, maximize=self.maximize):
            self.best = value
            self.trial.set_user_attr(EPOCH, epoch)
        if not is_last and self.trial.should_prune():
            self.trial.set_user_attr(EPOCH, epoch)
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: PRUNED})
            raise TrialPruned(f"trial {self.trial.number}: pruned after epoch {epoch}")


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
    watch = TrialWatch(trial, config.evaluation.maximize, is_time_up)
    name = f"{config.tracking.run_name or 'trial'} {trial.number}"
    own = {**trial.params, **OF_A_TRIAL, "tracking.run_name": name}
    try:
        train(
            with_settings(config, own, source="settings of the trial"),
            parent_run_id=parent_run_id,
            tags={names.TAG_TRIAL: str(trial.number)},
            watch=watch,
        )
    except TrialPruned:
        study.prune(trial)
    except OutOfTime:
        study.stop(trial)
    except (ConfigError, ProtectedStop) as error:
        study.fail(trial, str(error))
    except BaseException:
        study.stop(trial)
        raise
    else:
        if math.isfinite(watch.best):
            study.complete(trial, watch.best)
        else:
            study.fail(trial, f"{config.evaluation.metric} was never a finite number")
    gc.collect()  # the model and its optimizer refer to each other, and the next needs their memory
