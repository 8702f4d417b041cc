"""Sets the number of cases that a run of these tests tries, and the allowed outcomes of a case.

By default a test run tries the same `NUM_CASES` cases each time, drawn from the random bytes of
seed 0. `CLEW_ATTACK_CASES=1000000` tries more cases, `CLEW_ATTACK_SEED=7` others. A failure prints
the number of its case, and `CLEW_ATTACK_SEED=7:1234` starts with case 1234. With
`CLEW_ATTACK_SHRINK=1` Hypothesis chooses the cases and makes a failed one as small as possible;
its cases depend on which modules are imported. `CLEW_ATTACK_GUIDED=1` uses code coverage to choose
the cases (`pip install atheris`; see `guided`).
"""

import itertools
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.errors import ClewError, DataError, of_the_system
from tests.attack.guided import fuzz_guided

NUM_CASES = 10_000
"""The number of cases in all fuzzers together."""
NUM_BYTES = 2**15
"""The number of random bytes that a case is drawn from when a seed is given; few need them all."""
MAX_MESSAGE = 2_000
MAX_PROCESSOR_SECONDS = 10
MAX_MORE_BYTES = 2**30
MAX_FRAMES = 950
"""A command starts a few frames below Python's limit of 1,000."""
SIZE_FILE = "/proc/self/statm"


def fuzz(share: float, case: Callable[[DrawFn], object]) -> None:
    """Try a fuzzer's share of all cases; each case draws its input."""
    number = max(1, round(share * int(os.environ.get("CLEW_ATTACK_CASES") or NUM_CASES)))

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def each(data: st.DataObject) -> None:
        case(data.draw)

    if os.environ.get("CLEW_ATTACK_GUIDED"):
        fuzz_guided(each.hypothesis.fuzz_one_input, number, NUM_BYTES)
    elif os.environ.get("CLEW_ATTACK_SHRINK"):
        each()
    else:
        seed, _, first = (os.environ.get("CLEW_ATTACK_SEED") or "0").partition(":")
        _fuzz_from_bytes(each.hypothesis.fuzz_one_input, int(seed), int(first or 0), number)


def _fuzz_from_bytes(
    case: Callable[[bytes], bytes | None], seed: int, first: int, number: int
) -> None:
    """Try cases until enough were complete; a case that needs too many bytes is not counted."""
    tried = 0
    for index in itertools.count(first):
        try:
            tried += case(random.Random(f"{seed}:{index}").randbytes(NUM_BYTES)) is not None
        except BaseException as failure:
            failure.add_note(f"CLEW_ATTACK_SEED={seed}:{index} begins with this case")
            raise
        if tried == number:
            return
        assert index - first < 100 + 2 * tried, f"of {index - first + 1} cases {tried} were whole"


class Endless(BaseException):
    """Raised when a case takes too much processor time; nothing in the product catches it."""


class _Messages(logging.Handler):
    """Stores the longest logged message."""

    longest = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.longest = max(self.longest, record.getMessage(), key=len)


def attempt(call: Callable[[], object]) -> ClewError | None:
    """Call a command's function; it must succeed, or raise an error with one short line.

    Any other exception, an unprintable message, more than `MAX_PROCESSOR_SECONDS` of this
    process's own time, or more than `MAX_MORE_BYTES` of memory, is a failure.

    Returns:
        The error if the call was refused, else None.
    """
    refused: ClewError | None = None
    with limits(), _logged() as messages:
        try:
            call()
        except ClewError as error:
            refused = error
        except OSError as error:  # `clew.__main__` prints these as one line
            if (refused := of_the_system(error)) is None:
                raise
    if refused is not None:
        require_one_line(str(refused))
        assert refused.exit_code in {2, 3}, repr(refused)
    require_one_line(messages.longest or "nothing")
    return refused


def refused(call: Callable[[], object], says: str, kind: type[Exception] = DataError) -> None:
    """Check that a call raises an error whose message is one line and matches."""
    with pytest.raises(kind, match=says) as caught:
        call()
    require_one_line(str(caught.value))


def require_one_line(message: str) -> None:
    """Check that a terminal shows a message as one line of reasonable length."""
    assert 0 < len(message) <= MAX_MESSAGE, f"{len(message)} characters: {message[:200]!r}"
    assert len(message.splitlines()) == 1, repr(message)
    assert message.isprintable() or "\t" in message, repr(message)


@contextmanager
def _logged() -> Iterator[_Messages]:
    messages, logger = _Messages(), logging.getLogger("clew")
    logger.addHandler(messages)
    try:
        yield messages
    finally:
        logger.removeHandler(messages)


@contextmanager
def limits() -> Iterator[None]:
    """Limit time, memory and recursion depth to those that a command can use."""

    def stop(*_: object) -> None:
        raise Endless

    # The first allocation reserves a gibibyte of addresses, which would count against the limit.
    pa.allocate_buffer(1)
    with open(SIZE_FILE) as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
    before, depth = resource.getrlimit(resource.RLIMIT_DATA), sys.getrecursionlimit()
    earlier = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_DATA, (data + MAX_MORE_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_PROCESSOR_SECONDS)
    sys.setrecursionlimit(_num_frames() + MAX_FRAMES)  # Hypothesis doubles the limit
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _num_frames() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """Replace a file's content inside this context; open handles still see the old file."""
    before = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(before)
