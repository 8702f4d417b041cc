"""What explanations ask of processes that share work: they work in one process alone."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from clew.training.distributed import World


@contextmanager
def sharing_the_table(left: str = "") -> Iterator[World]:
    """Yield the one process that explains."""
    yield World()


def require_same_question(*_: object) -> None:
    """Do nothing: one process is asked one question."""


def digest(content: object) -> str:
    """Return a hash of JSON values with 16 hex digits, short enough for a message."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
