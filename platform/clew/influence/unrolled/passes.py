"""Unfinished passes on the disk, and checks that refuse a run that cannot be replayed.

A killed pass continues after its last finished interval.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, described
from clew.files import replacing
from clew.influence.unrolled.adjoints import Adjoint
from clew.training.checkpoints import load_training_values
from clew.training.manifest import MODEL_FILE, CheckpointRecord, read_manifest, save_tensors

NEEDS = "--score unrolled and clew value-facts"
OTHERWISE = "explain with --score raw or cosine, or train again"
logger = logging.getLogger(__name__)
GROUPS = ("parameters", "buffers", "moments", "average")


def require_replayable(
    config: RunConfig, checkpoints: Sequence[CheckpointRecord], device: torch.device
) -> None:
    """Raise an error if the steps of a run cannot be repeated exactly."""
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


@dataclass(eq=False)
class Unfinished:
    """The progress of a pass."""

    intervals_left: int
    """Number of intervals left, counted from the first; the pass goes backwards."""
    adjoints: list[Adjoint]
    """One for each explained loss, for the state at the end of the last interval left."""
    totals: Tensor
    """Derivatives with respect to fact weights so far, `(interval, loss, fact)`."""


@dataclass(frozen=True)
class KeptInFile:
    """Keeps a pass in one safetensors file, which is written atomically.

    Args:
        path: The file; its name must identify the run, what is explained, and the settings.
        device: Device that tensors are loaded to.
    """

    path: Path
    device: torch.device

    def read(self) -> Unfinished | None:
        """Return the pass that an earlier process left; None if there is none or it is damaged."""
        if not self.path.is_file():
            return None
        try:
            return _unfinished(load_file(self.path, device=str(self.device)))
        except (OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError) as error:
            logger.warning(
                "%s cannot be read (%s); the pass begins again", self.path, described(error)
            )
            return None

    def write(self, unfinished: Unfinished) -> None:
        """Save a pass, replacing the one that was saved before."""
        tensors = {
            f"{number}|{group}|{name}": tensor
            for number, adjoint in enumerate(unfinished.adjoints)
            for group in GROUPS
            for name, tensor in getattr(adjoint, group).items()
        }
        left = torch.tensor(unfinished.intervals_left)
        tensors |= {"totals": unfinished.totals, "intervals_left": left}
        with replacing(self.path) as temporary:
            save_tensors(tensors, temporary)

    def remove(self) -> None:
        """Delete the file, because the pass is finished."""
        self.path.unlink(missing_ok=True)


def _unfinished(tensors: dict[str, Tensor]) -> Unfinished:
    """Return the pass that the tensors of a file hold."""
    totals = tensors.pop("totals")
    adjoints = [Adjoint({}, {}, {}, {}) for _ in range(totals.shape[1])]
    left = int(tensors.pop("intervals_left"))
    for key, tensor in tensors.items():
        number, group, name = key.split("|")
        if group not in GROUPS:
            raise KeyError(group)
        getattr(adjoints[int(number)], group)[name] = tensor
    return Unfinished(left, adjoints, totals)


def pass_name(
    checkpoints: Sequence[CheckpointRecord], data_fingerprint: str, *explained: bytes
) -> str:
    """Return a name that identifies an explanation of a run."""
    digest = hashlib.sha256()
    for record in checkpoints:
        digest.update(f"{record.step} {record.learning_rate_weight};".encode())
    digest.update((checkpoints[-1].path / MODEL_FILE).read_bytes())
    digest.update(data_fingerprint.encode())
    for part in explained:
        digest.update(part)
    return digest.hexdigest()[:24]
