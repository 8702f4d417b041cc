"""The trials of a search: the settings to try, the training of each, and how it ended.

Optuna keeps the trials in a journal file, which the processes of a cluster share.
"""

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.config.study import Parameter, SearchSpace, Value, takes_whole_numbers
from clew.errors import ConfigError, Interrupted, ProtectedStop, refusing
from clew.runs.base import Tracker
from clew.training.optimizer import is_better
from clew.training.progress import Watch
from clew.workflows.train import train

STUDY_FILE, LOCK_FILE, NAME = "study.journal", "study.lock", "search"
IDENTITY, PARENT, RUN, EPOCH, PROBLEM = "identity", "parent_run", "run", "epoch", "problem"
"""Names of user attributes in Optuna's study and trials."""
FEWEST_TRIALS = 8
"""Number of complete trials below which nothing is said of how much a setting matters."""
PRUNED, OUT_OF_TIME = "pruned", "out of time"
# A trial keeps only its best model, and the test split chooses nothing.
OF_A_TRIAL: dict[str, Value] = {
    "evaluation.test_after_training": False,
    "training.checkpoint_frequency": 0,
    "training.checkpoint_every_steps": None,
    "tracking.log_checkpoints": False,
    "tracking.log_mfu": False,  # each measurement takes a second
}

State = Literal["complete", "pruned", "failed", "stopped"]
STATES: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
"""Optuna's states; others are FAIL: a failed trial has a problem, a stopped trial has none."""


@dataclass(frozen=True)
class TrialRecord:
    """How one trial ended; a stopped trial counts as not tried."""

    number: int
    state: State
    settings: Mapping[str, Value]
    """Settings as `section.key` to value."""
    value: float | None = None
    """The best validation metric, or the last one of a pruned trial."""
    epoch: int | None = None
    """Number of finished epochs when the value was measured."""
    seconds: float = 0.0
    run_id: str = ""
    problem: str = ""
    """Why the trial failed; empty if it did not."""


@dataclass(frozen=True)
class TrialStudy:
    """The trials, and the sampler that learns from them.

    The settings of a trial depend only on the seed and the trials that were decided before it, so a
    search that was killed and continued tries the same settings as an uninterrupted one. On a
    cluster, trials run in parallel, and the settings also depend on the order in which they end.
    """

    study: optuna.Study
    distributions: Mapping[str, BaseDistribution]
    seed: int
    left: list[str] = field(default_factory=list)
    """Ids of the runs of trials whose process died."""

    @property
    def parent_run_id(self) -> str | None:
        """Id of the search's run, the parent of the trials' runs; None before the search begins."""
        return self.study.user_attrs.get(PARENT)

    def ask(self) -> optuna.Trial:
        """Begin a trial, and return it with the settings to try in its `params`."""
        running = len(self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]))
        entropy = np.random.SeedSequence([self.seed, len(self.decided) + running])
        self.study.sampler = optuna.samplers.TPESampler(seed=int(entropy.generate_state(1)[0]))
        return self.study.ask(dict(self.distributions))

    def settle(self, trial: optuna.Trial, ending: "Ending") -> None:
        """Store how a trial ended; without a finite metric it has failed.

        The settings of a failed trial are not tried again. A stopped trial says nothing about its
        settings, so they will be tried again.
        """
        state, value, problem = ending.state, None, ending.problem
        if state == "complete" and math.isfinite(ending.best):
            value = ending.best
        elif state == "complete":
            state, problem = "failed", "the metric was never a finite number"
        if problem:
            trial.set_user_attr(PROBLEM, problem)
        told = next((name for name, own in STATES.items() if own == state), TrialState.FAIL)
        self.study.tell(trial, value, state=told)

    @property
    def records(self) -> list[TrialRecord]:
        return [_record(trial) for trial in self.study.trials if trial.state.is_finished()]

    def importances(self) -> dict[str, float]:
        """Return each setting's share in what made trials good, by Optuna's PED-ANOVA.

        Empty with fewer trials than `FEWEST_TRIALS`.
        """
        if sum(record.state == "complete" for record in self.records) < FEWEST_TRIALS:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(self.study, evaluator=evaluator)

    @property
    def decided(self) -> list[TrialRecord]:
        """The trials that were not stopped."""
        return [record for record in self.records if record.state != "stopped"]

    @property
    def best(self) -> TrialRecord | None:
        """The complete trial with the best validation metric; the first one in case of a tie."""
        complete = [r for r in self.records if r.state == "complete" and r.value is not None]
        choose = max if self.study.direction == optuna.study.StudyDirection.MAXIMIZE else min
        return choose(complete, key=lambda record: record.value or 0.0, default=None)


def _record(trial: optuna.trial.FrozenTrial) -> TrialRecord:
    problem = trial.user_attrs.get(PROBLEM, "")
    has_value = trial.value is not None and math.isfinite(trial.value)
    return TrialRecord(
        number=trial.number,
        state=STATES.get(trial.state, "failed" if problem else "stopped"),
        settings=dict(trial.params),
        value=trial.value if has_value else None,
        epoch=trial.user_attrs.get(EPOCH),
        seconds=trial.duration.total_seconds() if trial.duration else 0.0,
        run_id=trial.user_attrs.get(RUN, ""),
        problem=problem,
    )


@contextmanager
def opened_study(
    folder: Path, *, identity: str, space: SearchSpace, config: RunConfig, seed: int
) -> Iterator[TrialStudy]:
    """Open the search in a folder, or begin one; trials whose process died count as stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / LOCK_FILE).acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"{folder}: another clew tune is using this folder; wait until it ends, or name "
            "another folder with --output-dir"
        ) from None
    with lock:
        study = _begin(folder / STUDY_FILE, space, maximize=config.evaluation.maximize)
        if study.user_attrs.get(IDENTITY, identity) != identity:
            raise ConfigError(
                f"{folder} holds a search with another configuration, space or seed, or on other "
                "data; name another folder with --output-dir"
            )
        study.set_user_attr(IDENTITY, identity)
        distributions = {
            key: _distribution(parameter, whole=takes_whole_numbers(config, key))
            for key, parameter in space.parameters.items()
        }
        running = study.get_trials(states=[TrialState.RUNNING])
        for trial in running:
            study.tell(trial.number, state=TrialState.FAIL)
        left = [trial.user_attrs[RUN] for trial in running if RUN in trial.user_attrs]
        yield TrialStudy(study, distributions, seed, left)


def _begin(path: Path, space: SearchSpace, *, maximize: bool) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if path.exists() and (content := path.read_bytes()):
        # A full disk can leave a part of a line, and Optuna would write on in that line.
        os.truncate(path, content.rfind(b"\n") + 1 or len(content))
    wrong = f"{path}: not a file with trials of a search"
    kinds = ValueError, KeyError, TypeError, AssertionError  # the last for an unknown kind of line
    advice = "; name another folder with --output-dir"
    with refusing(wrong, *kinds, advice=advice, error=ConfigError):
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=NAME,
            load_if_exists=True,
            direction="maximize" if maximize else "minimize",
            pruner=optuna.pruners.MedianPruner(space.unpruned_trials, space.unpruned_epochs),
        )
    return study


def _distribution(parameter: Parameter, *, whole: bool) -> BaseDistribution:
    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    (low, high), step = parameter.ends, parameter.step
    if whole:
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=step)


class TrialPruned(Interrupted):
    """The search pruned a trial."""


class OutOfTime(Interrupted):
    """The time of the search was up."""


@dataclass
class TrialWatch(Watch):
    """Reports each validation to Optuna, and stops the training if pruned or out of time.

    A watch that is sent to a node of a cluster reports there, to the same journal.
    """

    trial: optuna.Trial
    maximize: bool
    is_time_up: Callable[[], bool]
    best: float = math.nan
    """Best validation metric so far."""
    _epochs: set[int] = field(default_factory=set)
    _tracker: Tracker = field(default_factory=Tracker)

    def started(self, tracker: Tracker) -> None:
        """Store the run's id with the trial, so that a killed search finds it again."""
        self._tracker = tracker
        assert tracker.run_id is not None
        self.trial.set_user_attr(RUN, tracker.run_id)

    def before_step(self) -> None:
        if self.is_time_up():
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: OUT_OF_TIME})
            raise OutOfTime(f"trial {self.trial.number}: the time is up")

    def validated(self, value: float, epoch: int, *, is_last: bool) -> None:
        """Report the metric, and stop the training if the search prunes the trial."""
        if epoch not in self._epochs:
            self.trial.report(value, epoch)
            self._epochs.add(epoch)
        if is_better(value, self.best, maximize=self.maximize):
            self.best = value
            self.trial.set_user_attr(EPOCH, epoch)
        if not is_last and self.trial.should_prune():
            self.trial.set_user_attr(EPOCH, epoch)
            self._tracker.tags({names.TAG_STOPPED_BECAUSE: PRUNED})
            raise TrialPruned(f"trial {self.trial.number}: pruned after epoch {epoch}")


@dataclass(frozen=True)
class Ending:
    """How the training of a trial ended, and its best validation metric."""

    state: State
    problem: str = ""
    best: float = math.nan


def train_trial(
    config: RunConfig, trial: optuna.Trial, is_time_up: Callable[[], bool], parent_run_id: str
) -> Ending:
    """Train with a trial's settings, and return how the training ended.

    A failure because of the settings (values that do not fit together, a loss that is not finite,
    too little memory) is a result.
    """
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
        return Ending("pruned")
    except OutOfTime:
        return Ending("stopped")
    except (ConfigError, ProtectedStop) as error:
        return Ending("failed", str(error))
    finally:
        gc.collect()  # model and optimizer form a reference cycle; the next trial needs the memory
    return Ending("complete", best=watch.best)
