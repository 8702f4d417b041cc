"""Tune: search for the best configuration within a budget of time, by the validation metric."""

import hashlib
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from clew import names
from clew.config.image_sequences import ImageSequenceData
from clew.config.load import flatten, with_settings
from clew.config.schema import RunConfig
from clew.config.search_space import SearchSpace, load_space
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, UsageError
from clew.runs.base import Tracker
from clew.runs.mlflow_store import MlflowTracker, open_tracker
from clew.workflows.clusters.cluster import Cluster, opened_cluster
from clew.workflows.clusters.nodes import ClusterRequest
from clew.workflows.dead_runs import end_if_dead
from clew.workflows.outputs import check_folder
from clew.workflows.tasks import build_task, data_fingerprint
from clew.workflows.tuning.cluster import ClusterTrials
from clew.workflows.tuning.report import (
    BEST_FILE,
    CHART_FILE,
    FILES,
    TRIALS_FILE,
    shown,
    write_best,
    write_chart,
    write_trials,
)
from clew.workflows.tuning.study import TrialRecord, TrialStudy, opened_study
from clew.workflows.tuning.trial import run_trial

logger = logging.getLogger(__name__)

Say = Callable[[str], object]
MOST_FAILURES = 10
"""Trials that may fail one after another."""


@dataclass(frozen=True)
class TuneRequest:
    """What to search, and for how long."""

    config: RunConfig
    """What the trials have in common."""
    space: str = ""
    """YAML file, or the name of a space that ships with Clew; empty: the one for the data's kind.
    """
    minutes: float = 60.0
    """Time for this command."""
    trials: int | None = None
    """Trials in all, those of earlier commands included."""
    seed: int = 0
    """Seed of the search; `training.seed` is that of the trainings."""
    output_dir: Path | None = None
    """Where the trials and the best configuration are kept."""


@dataclass(frozen=True)
class TuneResult:
    """What a search found so far."""

    run_id: str
    """Run of which the trials are parts."""
    metric: str
    best: TrialRecord
    trials: tuple[TrialRecord, ...]
    folder: Path

    @property
    def best_file(self) -> Path:
        """The best configuration."""
        return self.folder / BEST_FILE

    def table(self) -> str:
        """Return the best trial, and how to train it."""
        best = self.best
        lines = [
            f"run {self.run_id}  {_counts(self.trials)}",
            f"best: {self.metric} {best.value:.6g} after epoch {best.epoch}, run {best.run_id}",
            *(f"  {key:36} {value}" for key, value in best.settings.items()),
            f"train it: clew train --config {self.best_file}",
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
    """Try settings until the time or the trials run out; the same request goes on where it was.

    Args:
        request: What to search.
        cluster: Where trials train; None: in this process, one after another.
        say: Receives one line for each trial.
        progress: Receives the seconds that have passed, and what was found so far.
        clock: Seconds since some moment.

    Raises:
        UsageError: configuration, space, data, folder, tracking store or cluster cannot be used; or
            no trial was completed, or too many failed one after another.
        Interrupted: stopped by the person; the trials that ended are kept.
    """
    began = clock()
    _check(request)
    config = request.config
    space = load_space(request.space, config)
    task = build_task(config)
    tags = {
        names.TAG_TASK: task.kind,
        names.TAG_DATASET: task.dataset,
        names.TAG_DATA_FINGERPRINT: task.data_fingerprint,
        names.TAG_CONFIG_HASH: config.config_hash,
    }
    identity = _identity(request, space, task.data_fingerprint)
    del task  # each trial reads the data itself, and may need the memory
    place = re.sub(r"[^\w.-]+", "-", tags[names.TAG_DATASET])
    folder = request.output_dir or Path("runs") / "tune" / f"{place}-{identity}"
    with (
        opened_study(
            folder, identity=identity, space=space, config=config, seed=request.seed
        ) as study,
        opened_cluster(cluster) if cluster else nullcontext() as nodes,
    ):
        if nodes is not None:
            nodes.require_same("the data", data_fingerprint, config)
        for run_id in study.left:
            end_if_dead(run_id)
        with _parent_run(request, study, space, tags) as tracker:
            search = _Search(request, study, tracker, folder, began, clock, say, progress, nodes)
            try:
                search.run()
            finally:
                search.store()
            if study.best is None:
                raise UsageError(
                    f"no trial was completed ({_counts(study.records)}), so there is no best one; "
                    "give more --minutes or --trials, or shorten the training "
                    "(training.num_epochs)"
                )
            return TuneResult(
                tracker.run_id,
                config.evaluation.metric,
                study.best,
                tuple(study.records),
                folder,
            )


def _counts(records: Sequence[TrialRecord]) -> str:
    """Return how many trials ended in which way."""
    states = Counter(record.state for record in records)
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none was begun"


def _check(request: TuneRequest) -> None:
    """Refuse what cannot be searched, or not without looking at the test split.

    Raises:
        ConfigError: the configuration does not validate, or trains in several processes.
    """
    config = request.config
    check_folder("--output-dir", request.output_dir)
    if not config.evaluation.enabled:
        raise ConfigError(
            f"evaluation.enabled is false, but a search chooses by {config.evaluation.metric}; "
            "set it to true"
        )
    if isinstance(config.data, ImageSequenceData) and (
        config.data.leave_one_group_out or not config.data.hold_out_validation
    ):
        raise ConfigError(
            "a search needs a validation group, so that the test group chooses nothing; set "
            "data.leave_one_group_out=false, data.hold_out_validation=true and "
            "evaluation.every_epochs=1"
        )


def _identity(request: TuneRequest, space: SearchSpace, fingerprint: str) -> str:
    """Return twelve hexadecimal digits of what makes trials comparable."""
    content = [request.config.config_hash, space.model_dump(mode="json"), request.seed, fingerprint]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _parent_run(
    request: TuneRequest, study: TrialStudy, space: SearchSpace, tags: dict[str, str]
) -> MlflowTracker:
    """Open the run of which the trials are parts, or go on with it."""
    if study.parent_run_id is not None:
        # The run that `mlflow run` opened for this command would become that of its first trial.
        os.environ.pop("MLFLOW_RUN_ID", None)
    tracking = request.config.tracking
    tracker = open_tracker(
        TrackingConfig(experiment=tracking.experiment),
        kind=names.KIND_TUNE,
        run_name=tracking.run_name or f"tune {tags[names.TAG_DATASET]}",
        tags=tags,
        run_id=study.parent_run_id,
    )
    study.set_parent(tracker.run_id)
    tracker.params(flatten(request.config))
    tracker.params({"tune.seed": request.seed, "tune.space": space.model_dump(mode="json")})
    return tracker


@dataclass
class _Search:
    """The loop over trials."""

    request: TuneRequest
    study: TrialStudy
    tracker: Tracker
    folder: Path
    began: float
    clock: Callable[[], float]
    say: Say
    progress: Callable[[float, str], object]
    nodes: Cluster | None
    found: str = ""
    """The best so far, in words."""

    def run(self) -> None:
        """Try settings until the time or the trials run out.

        Raises:
            UsageError: too many trials failed one after another.
        """
        parent = self.tracker.run_id
        assert parent is not None
        if self.nodes is not None:
            trials = ClusterTrials(
                self.nodes,
                self.study,
                self.request.config,
                parent_run_id=parent,
                seconds_left=self._seconds_left,
            )
            trials.run(self._wants_more, self._ended)
            return
        while self._wants_more(0):
            run_trial(
                self.study,
                self.request.config,
                parent_run_id=parent,
                is_time_up=self._is_time_up,
            )
            self._ended(self.study.records[-1].number)

    def _wants_more(self, running: int) -> bool:
        """Return whether to begin another trial beside those that run."""
        limit = self.request.trials
        has_room = limit is None or len(self.study.decided) + running < limit
        return not self._is_time_up() and has_room

    def _ended(self, number: int) -> None:
        """Say what became of a trial; give up where too many failed."""
        self._tell(next(r for r in reversed(self.study.records) if r.number == number))
        self._refuse_failures()

    def store(self) -> None:
        """Store the files of the search with its run."""
        self._write()
        for path in (self.folder / name for name in FILES):
            if path.is_file():
                self.tracker.artifact(path, names.ARTIFACT_TUNE)

    def _is_time_up(self) -> bool:
        """Return whether the time is up; it passes with each step, so the progress is shown too."""
        return self._seconds_left() <= 0

    def _seconds_left(self) -> float:
        seconds = self.clock() - self.began
        self.progress(seconds, self.found)
        return 60 * self.request.minutes - seconds

    @property
    def _metric(self) -> str:
        return self.request.config.evaluation.metric

    def _tell(self, record: TrialRecord) -> None:
        """Say in one line what became of a trial, and bring run and files up to date."""
        best = self.study.best
        self.say(self._line(record, is_best=record == best))
        if best is not None and best.value is not None:
            self.found = f"{self._metric} {best.value:.4g}"
            self.tracker.metrics({self._metric: best.value}, len(self.study.decided))
            self.tracker.tags({names.TAG_BEST_RUN: best.run_id})
        self._write()

    def _write(self) -> None:
        """Write the files, whole at any time: a search may be killed after each trial."""
        config, best, records = self.request.config, self.study.best, self.study.records
        write_trials(self.folder / TRIALS_FILE, records)
        maximize = config.evaluation.maximize
        write_chart(self.folder / CHART_FILE, records, self._metric, maximize=maximize)
        if best is not None:
            found = with_settings(config, best.settings)
            write_best(self.folder / BEST_FILE, found, best, len(self.study.decided))

    def _line(self, record: TrialRecord, *, is_best: bool) -> str:
        match record.state:
            case "complete" | "pruned":
                after = "pruned" if record.state == "pruned" else f"{record.seconds:.0f} s"
                result = f"{self._metric} {record.value:.4g} after epoch {record.epoch}, {after}"
            case "failed":
                result = f"failed, {record.problem}"
            case "stopped":
                result = "stopped, the time is up"
        note = " (best so far)" if is_best else ""
        return f"[trial {record.number}] {result}: {shown(dict(record.settings))}{note}"

    def _refuse_failures(self) -> None:
        last = self.study.decided[-MOST_FAILURES:]
        if len(last) == MOST_FAILURES and all(record.state == "failed" for record in last):
            raise UsageError(
                f"{MOST_FAILURES} trials failed one after another, the last because: "
                f"{last[-1].problem}; narrow the space"
            )
