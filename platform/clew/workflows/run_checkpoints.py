"""Finds the checkpoints that influence is summed over: of a run, a registered model or a folder."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from clew import names
from clew.config.load import flatten
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, quoted
from clew.training.checkpoints import AVERAGE_FILE
from clew.training.manifest import CheckpointRecord, read_manifest
from clew.training.progress import last_step
from clew.workflows.model_source import ModelSource, trained_with
from clew.workflows.open_run import OpenedRun, open_run

OF_THE_TRAINING = ("model", "loss", "optimizer", "schedule", "training")
"""Sections of a configuration that describe the training, not the explanation."""
OF_THE_MACHINE = {
    "loss.implementation",
    "loss.chunk_mib",
    "training.deterministic",
    "training.device",
    "training.num_threads",
    "training.num_workers",
    "training.peer_timeout_seconds",
}
"""Settings in these sections that change only where and how fast the training is computed."""
MISSING = (
    "is missing; influence is a sum over all checkpoints of a run: copy the missing one here, or "
    "give the run's id"
)


@contextmanager
def open_checkpoints(
    reference: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[ModelSource, tuple[CheckpointRecord, ...]]]:
    """Find a model's checkpoints, in order of their steps, and keep them on local disk."""
    with open_run(reference, "trace") as run:
        records = run.checkpoints()
        config = _common_config(records, overrides)
        _refuse_average(records, config)
        records = _complete(records, run)
        manifest = read_manifest(records[-1].path)
        run_id = run.run_id or manifest.run_id or None
        model = ModelSource(
            reference,
            records[-1].path,
            manifest,
            config,
            run_id,
            run.version,
            best=run.best_manifest(),
        )
        yield model, tuple(records)


def _complete(records: list[CheckpointRecord], run: OpenedRun) -> list[CheckpointRecord]:
    """Return the checkpoints of a run, one per step, if none is missing; or a single named one.

    A resumed run can have two checkpoints of one step, under two names; only one of them is kept.
    """
    if run.folder is not None and records[0].path == run.folder:
        return records
    history = run.kept(names.ARTIFACT_HISTORY)
    if history is not None and (end := last_step(history)) > records[-1].step:
        raise CheckpointError(f"{run.title}: the checkpoint of the last step, {end}, {MISSING}")
    ordered = sorted(records, key=lambda c: (c.step, c.learning_rate_weight, c.epoch))
    kept = list({record.step: record for record in ordered}.values())
    reached = 0
    for record in kept:
        name = f"{record.path.name} (step {record.step})"
        previous = reached if record.previous_step is None else record.previous_step
        if previous > reached:
            raise CheckpointError(
                f"{run.title}: the checkpoint of step {previous}, before {name}, {MISSING}"
            )
        if previous < reached:
            raise CheckpointError(
                f"{run.title}: {name} follows step {previous}, but there is a checkpoint of step "
                f"{reached} between them; expected the checkpoints of one run"
            )
        reached = record.step
    return kept


def _common_config(records: list[CheckpointRecord], overrides: Mapping[str, Any]) -> RunConfig:
    """Return the explanation's settings; refuse those of another training than the run's."""
    manifests = [read_manifest(record.path) for record in records]
    for record, manifest in zip(records, manifests, strict=True):
        if manifest.data_fingerprint != manifests[-1].data_fingerprint:
            raise CheckpointError(
                f"{record.path}: was trained on data {manifest.data_fingerprint}, but "
                f"{records[-1].path.name} on {manifests[-1].data_fingerprint}; expected the "
                "checkpoints of one run"
            )
    source = "settings of the explanation"
    config = trained_with(manifests[-1], overrides, source=source)
    before, now = flatten(trained_with(manifests[-1], {}, source=source)), flatten(config)
    for key in sorted((before.keys() | now.keys()) - OF_THE_MACHINE):
        if key.partition(".")[0] in OF_THE_TRAINING and before.get(key) != now.get(key):
            raise ConfigError(
                f"{key} is {quoted(now.get(key))}, but the run was trained with "
                f"{quoted(before.get(key))}; an explanation needs the settings of the run: leave "
                "this one out, or train with it"
            )
    return config


def _refuse_average(records: list[CheckpointRecord], config: RunConfig) -> None:
    """Refuse averaged weights, because influence is a sum over the weights at training steps."""
    decay = config.training.ema_decay
    for path in (record.path for record in records):
        if decay is not None and not (path / AVERAGE_FILE).is_file():
            raise CheckpointError(
                f"{path}: contains the average of the parameters (training.ema_decay is {decay}), "
                "not the parameters of a training step; give the run's id, or a folder of its "
                "checkpoints"
            )


def average_setting(config: RunConfig) -> dict[str, float]:
    """Return the setting that records the decay of the run's average; empty without an average."""
    decay = config.training.ema_decay
    return {} if decay is None else {names.SETTING_EMA_DECAY: decay}


def best_setting(models: Sequence[ModelSource]) -> dict[str, Any]:
    """Return the setting that records the best checkpoints of runs at their last checkpoints.

    It is empty if the best checkpoint of each run is its last one, or is not known.
    """
    pairs = [(model.manifest, model.best or model.manifest) for model in models]
    other = [(last, best) for last, best in pairs if last.step != best.step]
    if not other:
        return {}
    unit = "step" if any(last.epoch == best.epoch for last, best in other) else "epoch"
    last, best = ([getattr(each, unit) for each in of] for of in zip(*pairs, strict=True))
    return {names.SETTING_BEST: {"unit": unit, "last": last, "best": best}}
