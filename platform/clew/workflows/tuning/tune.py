"""Tune: search for the configuration with the best validation metric in a given time."""

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
from clew.config.load import flatten
from clew.config.search_space import SearchSpace, load_space
from clew.config.services import TrackingConfig
from clew.errors import ConfigError, Interrupted, UsageError
from clew.files import as_typed
from clew.runs.mlflow_store import open_tracker
from clew.runs.tracker import MlflowTracker
from clew.workflows.clusters.cluster import opened_cluster
from clew.workflows.clusters.nodes import ClusterRequest
from clew.workflows.outputs import check_folder
from clew.workflows.resume import end_if_dead
from clew.workflows.tasks import build_task, data_fingerprint
from clew.workflows.tuning.report import BEST_FILE
from clew.workflows.tuning.search import Say, Search, TuneRequest
from clew.workflows.tuning.study import TrialRecord, TrialStudy, opened_study
from clew.workflows.warm_start import with_named_start

logger = logging.getLogger(__name__)


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
        return self.folder / BEST_FILE

    def table(self) -> str:
        """Return the best trial, and the command that trains its configuration."""
        best = self.best
        lines = [
            f"run {self.run_id}  {_counts(self.trials)}",
            f"best: {self.metric} {best.value:.6g} after epoch {best.epoch}, run {best.run_id}",
            *(f"  {key:36} {value}" for key, value in best.settings.items()),
            f"train it: clew train --config {as_typed(self.best_file)}",
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

    The same request continues an earlier search in its folder.

    Args:
        request: What to search, and with which budget.
        cluster: Cluster on which trials train; None: in this process, one after another.
        say: Receives one line for each trial.
        progress: Receives the seconds that have passed, and the best metric so far as text.
        clock: Returns the seconds since any fixed time.

    Raises:
        UsageError: The configuration, space, data, folder, tracking store or cluster cannot be
            used, no trial was completed, or too many trials failed one after another.
        Interrupted: The user stopped the search. The trials that ended are kept.
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
    del task  # each trial reads the data itself and may need the memory
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
            search = Search(request, study, tracker, folder, began, clock, say, progress, nodes)
            best = _searched(search)
            return TuneResult(
                tracker.run_id,
                config.evaluation.metric,
                best,
                tuple(study.records),
                folder,
            )


def _searched(search: Search) -> TrialRecord:
    study = search.study
    try:
        search.run()
    except Interrupted:
        raise Interrupted(
            f"the search was stopped ({_counts(study.records)}); its trials are in "
            f"{search.folder}, and the same command continues it"
        ) from None
    finally:
        search.store()
    if study.best is None:
        raise UsageError(
            f"no trial was completed ({_counts(study.records)}), so there is no best one; give "
            "more --minutes or --trials, or shorten the training (training.num_epochs)"
        )
    return study.best


def _counts(records: Sequence[TrialRecord]) -> str:
    states = Counter(record.state for record in records)
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "no trial began"


def _check(request: TuneRequest) -> None:
    """Refuse a request that cannot be carried out, or only with the test split.

    Raises:
        ConfigError: Evaluation is not enabled, no group is held out for validation, or the output
            folder cannot be written.
    """
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


def _identity(request: TuneRequest, space: SearchSpace, fingerprint: str) -> str:
    content = [request.config.config_hash, space.model_dump(mode="json"), request.seed, fingerprint]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _parent_run(
    request: TuneRequest, study: TrialStudy, space: SearchSpace, tags: dict[str, str]
) -> MlflowTracker:
    if study.parent_run_id is not None:
        # Otherwise the first trial would use the run that `mlflow run` opened for this command.
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
