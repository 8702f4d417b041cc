"""Files of unfinished passes, so that a killed pass continues after its last finished interval."""

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
from clew.training.manifest import MODEL_FILE, CheckpointRecord, save_tensors

logger = logging.getLogger(__name__)

GROUPS = ("parameters", "buffers", "moments", "average")


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
        """Save a pass, replacing the one that was saved before.

        Raises:
            OSError: The file cannot be written.
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
        """Delete the file, because the pass is finished."""
        self.path.unlink(missing_ok=True)


def _unfinished(tensors: dict[str, Tensor]) -> Unfinished:
    """Return the pass that the tensors of a file hold.

    Raises:
        ValueError, KeyError, IndexError, RuntimeError: The tensors do not hold a pass.
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
    """Return a name that identifies an explanation of a run.

    Args:
        checkpoints: All checkpoints of the run.
        data_fingerprint: Fingerprint of the run's training data.
        explained: What is explained, and the settings.
    """
    digest = hashlib.sha256()
    for record in checkpoints:
        digest.update(f"{record.step} {record.learning_rate_weight};".encode())
    digest.update((checkpoints[-1].path / MODEL_FILE).read_bytes())
    digest.update(data_fingerprint.encode())
    for part in explained:
        digest.update(part)
    return digest.hexdigest()[:24]
