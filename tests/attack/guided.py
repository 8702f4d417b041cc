"""Coverage-guided cases: atheris leads them to code of Clew that no earlier case has reached."""

import inspect
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

NUM_FIRST = 20
"""The number of random cases from which atheris makes the others."""


def fuzz_guided(case: Callable[[bytes], bytes | None], number: int, length: int) -> None:
    """Try `number` cases of up to `length` bytes in a child process, which atheris ends.

    If a case fails, atheris prints the exception and the file with the case's bytes.
    """
    atheris = pytest.importorskip("atheris", reason="pip install atheris")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="clew-guided-") as corpus:
        for first in range(NUM_FIRST):
            (Path(corpus) / str(first)).write_bytes(random.Random(first).randbytes(length))
        if (child := os.fork()) == 0:
            for function in _functions():
                atheris.instrument_func(function)
            kept = f"-artifact_prefix={tempfile.gettempdir()}/clew-guided-"
            options = (f"-runs={number}", f"-max_len={length}", "-len_control=0", "-seed=1", kept)
            try:
                atheris.Setup([sys.argv[0], corpus, *options], case)
                atheris.Fuzz()
            finally:
                os._exit(1)  # reached only if something raised: atheris ends the process itself
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see what was printed"


def _functions() -> Iterator[FunctionType]:
    """Yield all functions and methods of Clew's imported modules."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "clew"]
    classes = [found for module in modules for found in _own(module, inspect.isclass)]
    for owner in (*modules, *classes):
        yield from _own(owner, inspect.isfunction)


def _own(owner: ModuleType | type, is_kind: Callable[[object], bool]) -> list[Any]:
    """Return the members of a kind that a module or class defines itself."""
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    members = list(vars(owner).values())
    return [found for found in members if is_kind(found) and found.__module__ == module]
