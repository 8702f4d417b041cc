"""The trials of a search, which Optuna stores in a folder, and the settings to try next."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from clew.config.schema import RunConfig
from clew.config.search_space import Parameter, SearchSpace, Value, takes_whole_numbers
from clew.errors import ConfigError, described

STUDY_FILE = "study.db"
LOCK_FILE = "study.lock"
NAME = "search"
IDENTITY, PARENT, RUN, EPOCH, PROBLEM = "identity", "parent_run", "run", "epoch", "problem"
"""Names of user attributes in Optuna's study and trials."""

State = Literal["complete", "pruned", "failed", "stopped"]
STATES: dict[State, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "stopped": TrialState.FAIL,
}
"""Optuna's names of the states. A failed trial has a problem, a stopped trial has none."""


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

    def set_parent(self, run_id: str) -> None:
        self.study.set_user_attr(PARENT, run_id)

    def ask(self) -> optuna.Trial:
        """Begin a trial, and return it with the settings to try in its `params`."""
        running = len(self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]))
        entropy = np.random.SeedSequence([self.seed, len(self.decided) + running])
        seed = int(entropy.generate_state(1)[0])
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        return self.study.ask(dict(self.distributions))

    def end(
        self, trial: optuna.Trial, state: State, *, value: float | None = None, problem: str = ""
    ) -> None:
        """End a trial, with its metric if the training was complete.

        The settings of a failed trial are not tried again. A stopped trial says nothing about its
        settings, so they will be tried again.
        """
        if problem:
            trial.set_user_attr(PROBLEM, problem)
        self.study.tell(trial, value, state=STATES[state])

    @property
    def records(self) -> list[TrialRecord]:
        return [_record(trial) for trial in self.study.trials if trial.state.is_finished()]

    @property
    def decided(self) -> list[TrialRecord]:
        """The trials that were not stopped."""
        return [record for record in self.records if record.state != "stopped"]

    @property
    def best(self) -> TrialRecord | None:
        """The complete trial with the best validation metric; the first one in case of a tie."""
        complete = [
            record
            for record in self.records
            if record.state == "complete" and record.value is not None
        ]
        maximize = self.study.direction == optuna.study.StudyDirection.MAXIMIZE
        choose = max if maximize else min
        return choose(complete, key=lambda record: record.value or 0.0, default=None)


def _record(trial: optuna.trial.FrozenTrial) -> TrialRecord:
    problem = trial.user_attrs.get(PROBLEM, "")
    states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
    has_value = trial.value is not None and math.isfinite(trial.value)
    return TrialRecord(
        number=trial.number,
        state=states.get(trial.state, "failed" if problem else "stopped"),
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
    """Open the search in a folder, or begin one; trials whose process died count as stopped.

    Args:
        folder: Folder of the trials.
        identity: Hash of what must be the same for all trials: configuration, data, space and seed.
        space: The settings to vary.
        config: Configuration that all trials share.
        seed: Seed of the search.

    Raises:
        ConfigError: Another process is using the folder, or the folder has another search.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"{folder}: another clew tune is using this folder; wait until it ends, or name "
            "another folder with --output-dir"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY_FILE}")
    except (SQLAlchemyError, RuntimeError) as error:
        lock.release()
        raise ConfigError(
            f"{folder / STUDY_FILE}: not a file with trials of a search ({described(error)}); name "
            "another folder with --output-dir"
        ) from None
    try:
        study = _begin(storage, space, maximize=config.evaluation.maximize)
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
        yield TrialStudy(study, distributions, seed, _stop_running(study))
    finally:
        storage.remove_session()
        storage.engine.dispose()
        lock.release()


def _begin(
    storage: optuna.storages.BaseStorage, space: SearchSpace, *, maximize: bool
) -> optuna.Study:
    return optuna.create_study(
        storage=storage,
        study_name=NAME,
        load_if_exists=True,
        direction="maximize" if maximize else "minimize",
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=space.unpruned_trials, n_warmup_steps=space.unpruned_epochs
        ),
    )


def _stop_running(study: optuna.Study) -> list[str]:
    running = study.get_trials(states=[TrialState.RUNNING])
    for trial in running:
        study.tell(trial.number, state=TrialState.FAIL)
    return [trial.user_attrs[RUN] for trial in running if RUN in trial.user_attrs]


def _distribution(parameter: Parameter, *, whole: bool) -> BaseDistribution:
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    low, high = parameter.ends
    if whole:
        return IntDistribution(
            int(low), int(high), log=parameter.log, step=int(parameter.step or 1)
        )
    return FloatDistribution(low, high, log=parameter.log, step=parameter.step)
