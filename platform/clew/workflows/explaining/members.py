"""Trains the model of a run again with other seeds, so that the mean of all can be explained.

A member is an ordinary run, found again by its configuration and data, whoever trained it. One that
was stopped goes on from its last checkpoint. Members are trained several at once, each in a process
of its own with its share of the cores, because the steps of a small model hardly use a second one.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from subprocess import Popen
from typing import Any

from clew import names
from clew.config.graph_models import GraphModelSettings
from clew.config.schema import RunConfig
from clew.errors import ConfigError, Interrupted, TrackingError, counted
from clew.files import working_folder
from clew.runs.hardware import available_gib, num_cores
from clew.runs.reading.runs import RunRecord, find_run, list_artifact_folders
from clew.runs.reading.search import RunQuery, every_run
from clew.training.hardware import Hardware, fit_to_hardware
from clew.training.precision import resolve_device
from clew.training.reports import lasting
from clew.workflows.child import train_in_child
from clew.workflows.explaining.trace_source import GivenFiles, TraceSource, open_trace_source
from clew.workflows.model_source import ModelSource, trained_with
from clew.workflows.resume import NothingToResume, find_newest

Progress = Callable[[int, int], None]
logger = logging.getLogger(__name__)


@contextmanager
def open_with_members(
    reference: str,
    overrides: Mapping[str, Any],
    *,
    files: GivenFiles | None,
    check: Callable[[TraceSource], object],
    progress: Progress,
) -> Iterator[TraceSource]:
    """Open a model like `open_trace_source`, together with others if `influence.seeds` wants them.

    Args:
        reference: The run, or all runs of an ensemble with commas between them.
        overrides: Settings of the explanation.
        files: Files that should be the model's own.
        check: Refuses what cannot be explained, before anything is trained.
        progress: Called with how many training runs are done, and of how many.
    """
    with open_trace_source(reference, overrides, files=files) as source:
        seeds, given = source.model.config.influence.seeds, max(1, len(source.runs))
        if seeds in (1, given):
            yield source
            return
        if given > 1:
            raise ConfigError(
                f"influence.seeds is {seeds}, but {given} runs are given; give one of them, or "
                "leave influence.seeds at 1"
            )
        check(source)
        members = trained_members(source.model, progress)
    with open_trace_source(",".join([reference, *members]), overrides, files=files) as source:
        yield source


def trained_members(model: ModelSource, progress: Progress) -> list[str]:
    """Return the ids of the other runs of an ensemble of `influence.seeds` runs.

    They have the seeds that follow the model's own. Those that the store does not have are trained.

    Raises:
        ConfigError: The model cannot be trained again here.
        Interrupted: The user stopped the training runs; the same command goes on.
    """
    first = model.manifest.config["training"]["seed"]
    run, configs = None, dict[int, RunConfig]()
    with suppress(TrackingError):  # a folder can come from another store
        run = find_run(model.run_id or "")
    for seed in range(first + 1, first + model.config.influence.seeds):
        settings: dict[str, object] = {"training.seed": seed, "tracking.log_checkpoints": True}
        if run is not None:
            settings["tracking.run_name"] = f"{run.name}, seed {seed}"
        configs[seed] = trained_with(model.manifest, settings, source=model.title)
    found = {seed: _finished(config, model) for seed, config in configs.items()}
    missing = [config for seed, config in configs.items() if not found[seed]]
    if missing:
        _check(model, run, missing[0])
        found |= _train(missing, run, model.title, progress)
    return [*found.values()]


def _finished(config: RunConfig, model: ModelSource) -> str:
    """Return the id of a finished run with a configuration; empty if there is none."""
    query = RunQuery(kind=names.KIND_TRAIN, config_hash=config.config_hash, status="FINISHED")
    for run in every_run(query):
        is_same = run.tags.get(names.TAG_DATA_FINGERPRINT) == model.manifest.data_fingerprint
        if is_same and list_artifact_folders(run.run_id, names.ARTIFACT_CHECKPOINTS):
            return run.run_id
    return ""


def _check(model: ModelSource, run: RunRecord | None, config: RunConfig) -> None:
    """Refuse what cannot be trained again: an imported model, or a machine without its options."""
    assert isinstance(config.model, GraphModelSettings)
    is_started = run is not None and f"{names.TAG_WARM_START}.source" in run.tags
    if is_started and not config.model.warm_start:
        raise ConfigError(
            f"{model.title} was imported, so it cannot be trained again with other seeds; leave "
            "influence.seeds at 1"
        )
    fitted, remarks = fit_to_hardware(config, Hardware.of(resolve_device(config.training.device)))
    if fitted.config_hash != config.config_hash:
        raise ConfigError(
            f"{model.title} was trained with options that do not pay here ({remarks[0]}); train "
            "the other seeds on a machine like its own"
        )


def _train(
    configs: Sequence[RunConfig], run: RunRecord | None, title: str, progress: Progress
) -> dict[int, str]:
    """Train members, and return the ids of their runs by seed."""
    total, parent = len(configs), None if run is None else run.run_id
    at_once = _at_once(configs[0], run, total)
    seconds = 0.0 if run is None else run.metrics.get(names.TIME_TOTAL_SECONDS, 0.0)
    about = f", about {lasting(seconds * -(-total // at_once))}" if seconds else ""
    count = counted(total, "training run")
    logger.info("%s with other seeds to do, %d at once%s", count, at_once, about)
    tags = {names.TAG_MEMBER_OF: parent or title}
    threads, started = max(1, num_cores() // at_once), list[Popen[str]]()
    train = partial(
        train_in_child, parent_run_id=parent, tags=tags, num_threads=threads, started=started.append
    )
    left, found = [(config, _stopped(config)) for config in configs], dict[int, str]()
    progress(0, total)
    with ThreadPoolExecutor(at_once) as pool:
        ends = {pool.submit(train, one, resumes=run): one.training.seed for one, run in left}
        try:
            for end in as_completed(ends):
                run_id = end.result().run_id
                assert run_id is not None
                found[ends[end]] = run_id
                progress(len(found), total)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()
            if not isinstance(error, KeyboardInterrupt | Interrupted):
                raise
            raise Interrupted(
                f"stopped by the user after {len(found)} of {total} training runs; the same "
                "command goes on with what was kept"
            ) from None
    return found


def _stopped(config: RunConfig) -> str:
    """Return the id of the run from whose last checkpoint a member goes on; empty for none."""
    with suppress(NothingToResume), working_folder("member") as folder:
        return find_newest(config, {}, folder).run_id
    return ""


def _at_once(config: RunConfig, run: RunRecord | None, most: int) -> int:
    """Return how many members are trained at once: as many as there are cores, and memory for."""
    if resolve_device(config.training.device).type != "cpu":
        return 1
    peak = 0.0 if run is None else run.metrics.get(names.PROCESS_PEAK_GIB, 0.0)
    return max(1, min(most, num_cores(), int(available_gib() / peak) if peak else 1))
