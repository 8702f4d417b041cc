"""Commands that ask a trained model in several processes, each with its own rows of the entities.

`torchrun --nproc_per_node=4 -m clew predict` is enough to ask for it: every process reads its rows
from the checkpoint's files and takes part in every answer. The main one alone writes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from clew.errors import ClewError, ConfigError
from clew.training.checkpoint_files import sha256
from clew.training.distributed import World, joined_world
from clew.training.manifest import MANIFEST_FILE
from clew.training.peers import code_digest, naming_lost_peers, require_same
from clew.training.sharding.table import sharded_tables

AGAIN = "nothing was written: start again"
"""What is left of a command when a process is lost."""


@contextmanager
def sharing_the_table(left: str = AGAIN) -> Iterator[World]:
    """Join the processes that torchrun started; models that are built meanwhile have own rows.

    Args:
        left: What is left when a process is lost, and what to do.

    Raises:
        PeerError: another process died or hangs.
        ClewError: what the block raises; its message says in which process.
    """
    with joined_world() as joined, naming_lost_peers(joined, left):
        world = joined.sharing_tables() if joined.size > 1 else joined
        try:
            with sharded_tables(world.exchange):
                yield world
        except ClewError as error:
            if world.size > 1:
                error.args = (f"rank {world.rank} of {world.size}: {error}",)
            raise


def require_same_question(
    world: World, checkpoints: Sequence[Path], num_entities: int, facts: Mapping[str, object]
) -> None:
    """Refuse processes that do not ask the same model the same, and more of them than entities.

    Args:
        world: The processes.
        checkpoints: The model's checkpoints.
        num_entities: Rows of its table.
        facts: What else must be equal, by what it is called.

    Raises:
        ConfigError: a process differs from the main one, or would have no row.
    """
    if world.size == 1:
        return
    manifests = "".join(sha256(folder / MANIFEST_FILE) for folder in checkpoints)
    same = {"code": code_digest(), "torch version": torch.__version__}
    same |= {"checkpoint": digest(manifests)}
    require_same(world, same | {name: str(fact) for name, fact in facts.items()})
    if num_entities < world.size:
        raise ConfigError(
            f"{num_entities} entities for {world.size} processes, and each needs one; start fewer "
            "processes"
        )


def digest(content: object) -> str:
    """Return sixteen hex digits over JSON values, for what is too long for a message."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
