"""Tune: search for the configuration with the best validation metric in a given time."""

import hashlib
import json
import logging
import math
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import flatten, to_yaml, with_settings
from clew.config.schema import RunConfig
from clew.config.services import ClusterRequest, SearchBudget
from clew.config.study import SearchSpace, Value, load_space
from clew.errors import ConfigError, Interrupted, UsageError, counted
from clew.files import as_typed, write_whole
from clew.runs.reading.run_details import TRIAL_COLUMNS
from clew.runs.tracker import MlflowTracker
from clew.spreadsheets import csv_text
from clew.training.precision import resolve_device
from clew.workflows.cluster import Cluster, opened_cluster
from clew.workflows.outputs import check_folder
from clew.workflows.resume import end_if_dead
from clew.workflows.subjects import build_task, data_fingerprint
from clew.workflows.training_run import open_other_run, task_tags
from clew.workflows.trials import PARENT, Ending, TrialRecord, TrialStudy, opened_study, train_trial
from clew.workflows.warm_start import with_named_start


def shown(settings: dict[str, Value]) -> str:
    """Return settings in one line."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
    )


def write_best(path: Path, config: RunConfig, best: TrialRecord, num_trials: int) -> None:
    """Write the best configuration as YAML, with its metric and its run in a comment."""
    head = (
        f"# Best of {counted(num_trials, 'trial')} by {config.evaluation.metric}: {best.value!r} "
        f"after epoch {best.epoch}, in run {best.run_id} (trial {best.number}).\n"
        "# Chosen by the validation split; no trial was evaluated on the test split.\n"
    )
    write_whole(path, head + to_yaml(config))


def write_trials(path: Path, records: Sequence[TrialRecord]) -> None:
    """Write a table of the trials: one row per trial, one column per setting."""
    keys = list(dict.fromkeys(key for record in records for key in record.settings))
    rows = [
        [
            *(r.number, r.state, r.value, r.epoch, round(r.seconds, 1), r.run_id),  # TRIAL_COLUMNS
            *(r.settings.get(key) for key in keys),
            r.problem,
        ]
        for r in records
    ]
    write_whole(path, csv_text([*TRIAL_COLUMNS, *keys, "problem"], rows))


logger = logging.getLogger(__name__)

Say = Callable[[str], object]
MOST_FAILURES = 10
"""Number of consecutive failures after which a search stops."""


class TuneRequest(SearchBudget):
    """What to search, and with which budget."""

    config: RunConfig
    """Configuration that all trials share."""


@dataclass
class Search:
    """The loop over trials."""

    request: TuneRequest
    study: TrialStudy
    tracker: MlflowTracker
    folder: Path
    began: float
    clock: Callable[[], float]
    say: Say
    progress: Callable[[float, str], object]
    nodes: Cluster | None
    found: str = ""
    """The best metric so far, as text."""

    def run(self) -> None:
        """Run trials until the time or the number of trials is used up.

        On a cluster, as many run at once as it has room for. If all nodes that try a trial die, it
        fails: its settings may need too much memory.
        """
        running: dict[int, optuna.Trial] = {}
        try:
            while self._begin(running) or running:
                number, ending = self._next(running)
                self.study.settle(running.pop(number), ending)
                self._ended(number)
        finally:
            for trial in running.values():
                self.study.settle(trial, Ending("stopped"))

    def _begin(self, running: dict[int, optuna.Trial]) -> bool:
        before, slots = len(running), self.nodes.slots if self.nodes else 1
        most = (self.request.trials or math.inf) - len(self.study.decided)
        # Asked for the time first: this shows the progress, also that of the last trial.
        while len(running) < slots and not self._is_time_up() and len(running) < most:
            trial = self.study.ask()
            running[trial.number] = trial
            if self.nodes is not None:
                is_over = partial(_is_over, time.time() + self._seconds_left())
                own = (self.request.config, trial, is_over, self.tracker.run_id)
                self.nodes.submit(trial.number, train_trial, *own)
        return len(running) > before

    def _next(self, running: dict[int, optuna.Trial]) -> tuple[int, Ending]:
        if self.nodes is None:
            ((number, trial),) = running.items()
            config = self.request.config
            return number, train_trial(config, trial, self._is_time_up, self.tracker.run_id)
        number, ended = next(self.nodes.finished())
        if ended.error is not None and not ended.is_lost:
            raise ended.error
        return number, ended.result or Ending("failed", str(ended.error))

    def _ended(self, number: int) -> None:
        """Report in one line how a trial ended, and update the search's run and files."""
        record = next(r for r in reversed(self.study.records) if r.number == number)
        best, decided = self.study.best, self.study.decided
        self.say(self._line(record, is_best=record == best))
        if best is not None and best.value is not None:
            self.found = f"{self._metric} {best.value:.4g}"
            self.tracker.metrics({self._metric: best.value}, len(decided))
            self.tracker.tags({names.TAG_BEST_RUN: best.run_id})
        shares = self.study.importances()
        named = {names.IMPORTANCE.format(setting=key): value for key, value in shares.items()}
        self.tracker.metrics(named, len(decided))
        self._write()
        last = decided[-MOST_FAILURES:]
        if len(last) == MOST_FAILURES and all(record.state == "failed" for record in last):
            raise UsageError(
                f"{MOST_FAILURES} trials failed one after another, the last because: "
                f"{last[-1].problem}; narrow the space"
            )

    def store(self) -> None:
        """Store the files of the search as artifacts of its run."""
        self._write()
        for name in (names.BEST_YAML, names.TRIALS_CSV):
            if (path := self.folder / name).is_file():
                self.tracker.artifact(path, names.ARTIFACT_TUNE)

    def _is_time_up(self) -> bool:
        """Return whether the time is up, and update the progress; called before each step."""
        return self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        seconds = self.clock() - self.began
        self.progress(seconds, self.found)
        return 60 * self.request.minutes - seconds

    @property
    def _metric(self) -> str:
        return self.request.config.evaluation.metric

    def _write(self) -> None:
        """Write all files after each trial, because a search can be killed at any time."""
        config, best, records = self.request.config, self.study.best, self.study.records
        write_trials(self.folder / names.TRIALS_CSV, records)
        if best is not None:
            found = with_settings(config, best.settings)
            write_best(self.folder / names.BEST_YAML, found, best, len(self.study.decided))

    def _line(self, record: TrialRecord, *, is_best: bool) -> str:
        match record.state:
            case "complete" | "pruned" if record.value is None:
                result = f"failed, {self._metric} is not finite"
            case "complete" | "pruned":
                after = "pruned" if record.state == "pruned" else f"{record.seconds:.0f} s"
                result = f"{self._metric} {record.value:.4g} after epoch {record.epoch}, {after}"
            case "failed":
                result = f"failed, {record.problem}"
            case "stopped":
                result = "stopped, the time is up"
        note = " (best so far)" if is_best else ""
        return f"[trial {record.number}] {result}: {shown(dict(record.settings))}{note}"


@dataclass(frozen=True)
class TuneResult:
    """The trials of a search so far, and the best one."""

    run_id: str
    """Id of the search's run, the parent of the trials' runs."""
    metric: str
    best: TrialRecord
    trials: tuple[TrialRecord, ...]
    folder: Path

    @property
    def best_file(self) -> Path:
        return self.folder / names.BEST_YAML

    def table(self) -> str:
        """Return the best trial, and the command that trains its configuration."""
        best = self.best
        lines = [
            f"run {self.run_id}  {_counts(self.trials)}",
            f"best: {self.metric} {best.value:.6g} after epoch {best.epoch}, run {best.run_id}",
            "settings: " + shlex.join(f"{key}={value}" for key, value in best.settings.items()),
            "one seed: trials can differ by less than seeds do; train the best with several seeds",
            f"next: clew train --config {as_typed(self.best_file)}",
        ]
        return "\n".join(lines)


def tune(
    request: TuneRequest,
    *,
    cluster: ClusterRequest | None = None,
    say: Say = logger.info,
    progress: Callable[[float, str], object] = lambda seconds, found: None,
    clock: Callable[[], float] = time.monotonic,
) -> TuneResult:
    """Run trials until the time or the number of trials is used up.

    The same request continues an earlier search in its folder. Without a cluster, trials train in
    this process, one after another. `say` receives one line for each trial, `progress` the seconds
    that have passed and the best metric so far as text; `clock` returns seconds.
    """
    began = clock()
    _check(request)
    config = request.config
    space = load_space(request.space, config)
    task = build_task(config)
    tags = task_tags(task, config.config_hash, resolve_device(config.training.device))
    content = [config.config_hash, space.model_dump(mode="json"), request.seed]
    text = json.dumps([*content, task.data_fingerprint])
    identity = hashlib.sha256(text.encode()).hexdigest()[:12]
    del task  # each trial reads the data itself and may need the memory
    place = re.sub(r"[^\w.-]+", "-", tags[names.TAG_DATASET])
    folder = request.output_dir or Path("runs") / "tune" / f"{place}-{identity}"
    opened = opened_study(folder, identity=identity, space=space, config=config, seed=request.seed)
    with opened as study, opened_cluster(cluster) as nodes:
        if nodes is not None:
            nodes.require_same("the data", data_fingerprint, config)
        for run_id in study.left:
            end_if_dead(run_id)
        with _parent_run(request, study, space, tags) as tracker:
            search = Search(request, study, tracker, folder, began, clock, say, progress, nodes)
            try:
                search.run()
            except Interrupted:
                raise Interrupted(
                    f"the search was stopped ({_counts(study.records)}); its trials are in "
                    f"{folder}, and the same command continues it"
                ) from None
            finally:
                search.store()
            if (best := study.best) is None:
                advice = "give more --minutes or --trials, or train fewer epochs"
                if {record.state for record in study.records} == {"failed"}:
                    advice = f"change the settings; the last failed: {study.records[-1].problem}"
                raise UsageError(f"no trial was completed ({_counts(study.records)}); {advice}")
            return TuneResult(
                tracker.run_id, config.evaluation.metric, best, tuple(study.records), folder
            )


def _counts(records: Sequence[TrialRecord]) -> str:
    states = Counter(record.state for record in records)
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "no trial began"


def _check(request: TuneRequest) -> None:
    """Refuse a request that cannot be carried out, or only with the test split."""
    config = request.config
    check_folder("--output-dir", request.output_dir)
    with_named_start(config, is_part=True)
    if not config.evaluation.enabled:
        raise ConfigError(
            f"evaluation.enabled is false, but a search chooses by {config.evaluation.metric}; "
            "set it to true"
        )
    if isinstance(config.data, ImageSequenceData) and not config.data.hold_out_validation:
        raise ConfigError(
            "a search needs a validation group, because it must not choose by the test group; set "
            "data.hold_out_validation=true and evaluation.every_epochs=1"
        )


def _parent_run(
    request: TuneRequest, study: TrialStudy, space: SearchSpace, tags: dict[str, str]
) -> MlflowTracker:
    if study.parent_run_id is not None:
        # Otherwise the first trial would use the run that `mlflow run` opened for this command.
        os.environ.pop("MLFLOW_RUN_ID", None)
    config, earlier = request.config, study.parent_run_id
    name = config.tracking.run_name or f"tune {tags[names.TAG_DATASET]}"
    tracker = open_other_run(config, names.KIND_TUNE, name, tags, earlier)
    study.study.set_user_attr(PARENT, tracker.run_id)
    tracker.params(flatten(config))
    tracker.params({"tune.seed": request.seed, "tune.space": space.model_dump(mode="json")})
    return tracker


def _is_over(ends_at: float) -> bool:
    """Return whether a time in seconds since 1970 is over; nodes have other monotonic clocks."""
    return time.time() >= ends_at
