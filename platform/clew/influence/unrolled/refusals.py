"""What cannot be replayed, and is refused by name before anything is computed."""

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
    """Refuse a run whose steps cannot be taken again exactly.

    Args:
        config: The run's configuration, with the settings of the explanation.
        checkpoints: All its checkpoints, in order of their steps.
        device: Where it would be replayed.

    Raises:
        ConfigError: A setting of the run, or of the explanation, rules it out.
        CheckpointError: Checkpoints or their training states are missing.
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
                f"{NEEDS} take the steps of a training again exactly, which cannot be done with "
                f"{key}=true; {OTHERWISE} with {key}=false"
            )
    if isinstance(config.loss, EntityLoss) and config.loss.negatives is not None:
        raise ConfigError(
            f"{NEEDS} do not work with loss.negatives={config.loss.negatives}, whose samples "
            f"belong to no single triple; {OTHERWISE} without loss.negatives"
        )
    if device.type == "cuda" and not config.training.deterministic:
        raise ConfigError(
            f"{NEEDS} take the steps of a training again exactly, which cannot be done on a GPU "
            f"with training.deterministic=false; {OTHERWISE} with training.deterministic=true"
        )
    for name in ("use_mixed_precision", "use_last_layers_only"):
        if getattr(influence, name):
            raise ConfigError(
                f"influence.score is unrolled and influence.{name} is true; the whole training is "
                f"differentiated, in its own precision: leave {name} out"
            )
    _require_states(checkpoints)


def _require_states(checkpoints: Sequence[CheckpointRecord]) -> None:
    first = checkpoints[0]
    if first.previous_step:
        raise CheckpointError(
            f"{first.path}: follows step {first.previous_step}, whose checkpoint was not given; "
            "score=unrolled goes through the whole training: give the run's id"
        )
    last = read_manifest(checkpoints[-1].path)
    for record in checkpoints:
        manifest = read_manifest(record.path)
        if manifest.config_hash != last.config_hash:
            raise CheckpointError(
                f"{record.path}: was trained with other settings than {checkpoints[-1].path.name} "
                f"(configuration {manifest.config_hash} and {last.config_hash}), as when a run is "
                f"resumed with a change; score=unrolled needs one configuration: {OTHERWISE}"
            )
        size = load_training_values(record.path).world_size
        if size != 1:
            raise CheckpointError(
                f"{record.path}: was trained by {size} processes; score=unrolled replays a run of "
                f"one: {OTHERWISE} in one process"
            )
