"""An unfinished pass on the disk, to go on from where a killed process had finished an interval."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import described
from clew.files import replacing
from clew.influence.unrolled.adjoints import Adjoint
from clew.training.checkpoint_files import save_tensors
from clew.training.manifest import MODEL_FILE, CheckpointRecord

logger = logging.getLogger(__name__)

GROUPS = ("parameters", "buffers", "moments", "average")


@dataclass(eq=False)
class Unfinished:
    """Where a pass stands."""

    intervals_left: int
    """Intervals between checkpoints, from the first, that are still to be gone through."""
    adjoints: list[Adjoint]
    """One for each explained loss, of the state where the last of these intervals ends."""
    totals: Tensor
    """Derivatives with respect to fact weights so far, `(interval, loss, fact)`."""


@dataclass(frozen=True)
class KeptInFile:
    """Keeps a pass in one safetensors file, written whole or not at all.

    Args:
        path: The file; its name must say what is explained of which run, by which settings.
        device: Where tensors go when they are read.
    """

    path: Path
    device: torch.device

    def read(self) -> Unfinished | None:
        """Return what an earlier process left, None if nothing."""
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
        """Keep a pass, in the place of what was kept before.

        Raises:
            OSError: it cannot be written.
        """
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
        """Forget it: the pass is finished."""
        self.path.unlink(missing_ok=True)


def _unfinished(tensors: dict[str, Tensor]) -> Unfinished:
    """Return the pass that a file's tensors are of.

    Raises:
        ValueError, KeyError, IndexError, RuntimeError: they are of none.
    """
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
    """Return a name that only the same explanation of the same run has.

    Args:
        checkpoints: All checkpoints of the run.
        data_fingerprint: What it was trained on.
        explained: What is explained, and by which settings.
    """
    digest = hashlib.sha256()
    for record in checkpoints:
        digest.update(f"{record.step} {record.learning_rate_weight};".encode())
    digest.update((checkpoints[-1].path / MODEL_FILE).read_bytes())
    digest.update(data_fingerprint.encode())
    for part in explained:
        digest.update(part)
    return digest.hexdigest()[:24]
