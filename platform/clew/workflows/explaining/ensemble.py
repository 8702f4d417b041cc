"""Which runs may be averaged: those of one configuration, on the same data, with other seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.influence.summation import all_steps
from clew.training.manifest import CheckpointRecord
from clew.workflows.model_source import ModelSource

FILES = {"name", "train", "valid", "test", "entity_to_id", "relation_to_id", "exclude"}
LABELS = {"node_name_dict", "edge_map"}
MAY_DIFFER: Mapping[str, set[str] | bool] = {
    "data": FILES | LABELS,
    "training": {"seed", "device", "num_workers"},
    "influence": True,
    "tracking": True,
}
"""Settings that do not say what is learned, and the seed. The data's fingerprint says whether files
in other places hold the same triples."""


def require_ensemble(models: Sequence[ModelSource]) -> None:
    """Refuse runs that differ in more than their seed, and a run that is there twice.

    Raises:
        ConfigError: they do not belong together.
    """
    first, seeds = models[0], {models[0].config.training.seed: models[0]}
    for other in models[1:]:
        ours, theirs = first.manifest.data_fingerprint, other.manifest.data_fingerprint
        if ours != theirs:
            raise ConfigError(
                f"{other.title} was trained on data {theirs}, {first.title} on {ours}; an ensemble "
                "needs runs of one configuration on the same data"
            )
        for key, value in _learned(other.config).items():
            own = _learned(first.config).get(key)
            if value != own:
                raise ConfigError(
                    f"{key} is {value!r} in {other.title} and {own!r} in {first.title}; an "
                    "ensemble needs runs of one configuration with other seeds"
                )
        seed = other.config.training.seed
        if seed in seeds:
            raise ConfigError(
                f"training.seed is {seed} in {other.title} and in {seeds[seed].title}; an ensemble "
                "needs runs with other seeds"
            )
        seeds[seed] = other


def mean_checkpoints(
    runs: Sequence[Sequence[CheckpointRecord]],
) -> tuple[CheckpointRecord, ...]:
    """Return one checkpoint for each step of any run, with the mean of its weights over all runs.

    A run that has no checkpoint of that step counts with weight 0, as in `MeanOfRuns`.
    """
    found = []
    for step in all_steps([[record.step for record in run] for run in runs]):
        same = [record for run in runs for record in run if record.step == step]
        weight = sum(record.learning_rate_weight for record in same) / len(runs)
        found.append(replace(same[0], learning_rate_weight=weight))
    return tuple(found)


def _learned(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine what is learned, by their full key, the seed apart."""
    content = config.model_dump(mode="json", exclude=MAY_DIFFER)
    return {
        f"{section}.{key}": value
        for section, values in content.items()
        for key, value in values.items()
    }
