"""Runs commands on a trained model in several processes that share the entity table.

`torchrun --nproc_per_node=4 -m clew predict` is enough to use this. Every process reads its own
rows of the table from the checkpoint's files and takes part in every answer. Only the main process
writes.
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
"""End of the message when a process is lost."""


@contextmanager
def sharing_the_table(left: str = AGAIN) -> Iterator[World]:
    """Join the processes that torchrun started; models built in this context share the table.

    Args:
        left: End of the message when a process is lost: what was saved and what to do.

    Raises:
        PeerError: Another process died or hangs.
        ClewError: The block raised it; the message names the process.
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
    """Refuse processes with different models or requests, or more processes than entities.

    Args:
        world: The processes.
        checkpoints: The model's checkpoints.
        num_entities: Number of rows of the entity table.
        facts: Other values that must be equal, by their names in messages.

    Raises:
        ConfigError: A process differs from the main one, or would have no row.
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
    """Return a hash of JSON values with 16 hex digits, short enough for a message."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
