"""The loop of a search, which runs trials until the time or the number of trials is used up."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clew import names
from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.errors import UsageError
from clew.runs.base import Tracker
from clew.workflows.clusters.cluster import Cluster
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
from clew.workflows.tuning.study import TrialRecord, TrialStudy
from clew.workflows.tuning.trial import run_trial

Say = Callable[[str], object]
MOST_FAILURES = 10
"""Number of consecutive failures after which a search stops."""


@dataclass(frozen=True)
class TuneRequest:
    """What to search, and with which budget."""

    config: RunConfig
    """Configuration that all trials share."""
    space: str = ""
    """YAML file, or the name of a space that ships with Clew; empty: the one for the data's kind.
    """
    minutes: float = 60.0
    """Time budget of this command."""
    trials: int | None = None
    """Total number of trials, including those of earlier commands; None: no limit."""
    seed: int = 0
    """Seed of the search; `training.seed` is the seed of the trainings."""
    output_dir: Path | None = None
    """Folder for the trials and the best configuration; None: one below `runs/tune`."""


@dataclass
class Search:
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
    """The best metric so far, as text."""

    def run(self) -> None:
        """Run trials until the time or the number of trials is used up.

        Raises:
            UsageError: Too many trials failed one after another.
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
        limit = self.request.trials
        has_room = limit is None or len(self.study.decided) + running < limit
        return not self._is_time_up() and has_room

    def _ended(self, number: int) -> None:
        """Report in one line how a trial ended, and update the search's run and files.

        Raises:
            UsageError: Too many trials failed one after another.
        """
        record = next(r for r in reversed(self.study.records) if r.number == number)
        best, decided = self.study.best, self.study.decided
        self.say(self._line(record, is_best=record == best))
        if best is not None and best.value is not None:
            self.found = f"{self._metric} {best.value:.4g}"
            self.tracker.metrics({self._metric: best.value}, len(decided))
            self.tracker.tags({names.TAG_BEST_RUN: best.run_id})
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
        for path in (self.folder / name for name in FILES):
            if path.is_file():
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
        write_trials(self.folder / TRIALS_FILE, records)
        maximize = config.evaluation.maximize
        write_chart(self.folder / CHART_FILE, records, self._metric, maximize=maximize)
        if best is not None:
            found = with_settings(config, best.settings)
            write_best(self.folder / BEST_FILE, found, best, len(self.study.decided))

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
