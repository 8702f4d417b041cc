"""Checks that refuse a run that cannot be replayed, before anything is computed."""

from collections.abc import Sequence

import torch

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError
from clew.training.checkpoints import load_training_values
from clew.training.manifest import CheckpointRecord, read_manifest

NEEDS = "--score unrolled and clew value-facts"
OTHERWISE = "explain with --score raw or cosine, or train again"


def require_replayable(
    config: RunConfig, checkpoints: Sequence[CheckpointRecord], device: torch.device
) -> None:
    """Raise an error if the steps of a run cannot be repeated exactly.

    Args:
        config: The run's configuration, with the settings of the explanation.
        checkpoints: All checkpoints of the run, in order of their steps.
        device: Device of the replay.

    Raises:
        ConfigError: A setting of the run or of the explanation does not allow a replay.
        CheckpointError: Checkpoints or their training states are missing, or the run had several
            configurations or several processes.
    """
    optimizations, influence = config.optimizations, config.influence
    settings = {
        "optimizations.use_mixed_precision": optimizations.use_mixed_precision,
        "optimizations.torch_compile": optimizations.torch_compile,
        "optimizations.use_tf32": optimizations.use_tf32 and device.type == "cuda",
    }
    for key, value in settings.items():
        if value:
            raise ConfigError(
                f"{NEEDS} repeat the steps of the training exactly, which is not possible with "
                f"{key}=true; {OTHERWISE} with {key}=false"
            )
    if isinstance(config.loss, EntityLoss) and config.loss.negatives is not None:
        raise ConfigError(
            f"{NEEDS} do not work with loss.negatives={config.loss.negatives}, whose samples "
            f"belong to no single triple; {OTHERWISE} without loss.negatives"
        )
    if device.type == "cuda" and not config.training.deterministic:
        raise ConfigError(
            f"{NEEDS} repeat the steps of the training exactly, which is not possible on a GPU "
            f"with training.deterministic=false; {OTHERWISE} with training.deterministic=true"
        )
    for name in ("use_mixed_precision", "use_last_layers_only"):
        if getattr(influence, name):
            raise ConfigError(
                f"influence.score is unrolled and influence.{name} is true; unrolled scores use "
                f"the whole model in the precision of the training; leave {name} out"
            )
    _require_states(checkpoints)


def _require_states(checkpoints: Sequence[CheckpointRecord]) -> None:
    first = checkpoints[0]
    if first.previous_step:
        raise CheckpointError(
            f"{first.path}: follows step {first.previous_step}, whose checkpoint was not given; "
            "score=unrolled needs all checkpoints of the run; give the run's id"
        )
    last = read_manifest(checkpoints[-1].path)
    for record in checkpoints:
        manifest = read_manifest(record.path)
        if manifest.config_hash != last.config_hash:
            raise CheckpointError(
                f"{record.path}: was trained with other settings than {checkpoints[-1].path.name} "
                f"(configuration {manifest.config_hash} and {last.config_hash}), for example "
                "because the run was resumed with a change; score=unrolled needs one "
                f"configuration; {OTHERWISE}"
            )
        size = load_training_values(record.path).world_size
        if size != 1:
            raise CheckpointError(
                f"{record.path}: was trained by {size} processes; score=unrolled can only replay "
                f"a run of one process; {OTHERWISE} in one process"
            )
