"""Loops over chunks: through all of them, or through two that show how much memory one takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHOWN = ContextVar[int | None]("shown", default=None)


def chunks(length: int, size: int, *, kept: int = 0) -> Iterator[slice]:
    """Yield slices of `size` that cover `length`; the last one may be shorter.

    Args:
        length: What to cover.
        size: Size of a chunk.
        kept: Number of first chunks that stay in memory: planning goes through all of them.
    """
    shown = _SHOWN.get()
    for start in list(range(0, length, size))[: shown and max(shown, kept)]:
        yield slice(start, min(start + size, length))


@contextmanager
def two_chunks() -> Iterator[None]:
    """Let every loop stop after two chunks, for planning: all others need the same memory again.

    The second is made while the first one's tensors are still alive.
    """
    token = _SHOWN.set(2)
    try:
        yield
    finally:
        _SHOWN.reset(token)
