"""Reads what a stranger could hand in, in a process with little memory and time and no secrets.

    python -m clew.untrusted DESCRIPTOR MODULE SECONDS

An upload, or a file that someone names in a browser, can be small and take gigabytes, or use an
error of a library. Therefore such files are opened only in a child process. Its environment holds
the variables in `KEPT` alone, so no password. It cannot write a file. It runs `MODULE.answer` for
each request and sends back an Arrow table, never a pickle.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self

import pyarrow as pa

from clew import errors
from clew.errors import ClewError, DataError, described

MEMORY_MIB = 512
"""Memory that a child may use beyond its imports."""
MAX_ANSWER_MIB = 256
PROCESSOR_SECONDS = 10
"""Processor time for each request; what waits for a slow disk does not count."""
SECONDS = 600
"""Time for each request on the clock."""
KEPT = (
    "HDF5_USE_FILE_LOCKING",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
    "TZ",
)
FIXED = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "ignore",
    "OPENBLAS_NUM_THREADS": "1",  # each thread of a library reserves memory
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "HDF5_PLUGIN_PRELOAD": "::",  # no filters from other folders
}
ERROR, MESSAGE = b"error", b"message"


class LimitedReader:
    """A child process that answers requests; use it in a `with` block.

    `module` has a function `answer(**request) -> pa.Table`. `of`, what is read, is for messages.
    """

    def __init__(self, module: str, of: str, *, seconds: float = PROCESSOR_SECONDS) -> None:
        self._of = of
        self._requests, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "clew.untrusted"]
        command += [str(theirs.fileno()), module, str(seconds)]
        own = {name: os.environ[name] for name in KEPT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                command,
                env=own | FIXED,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()

    def ask(self, **request: Any) -> pa.Table:
        """Return the answer to a request, whose values are JSON.

        Raises:
            ClewError: The module refused the file.
            DataError: The file needs more memory or time than it gets, or the child died of it.
        """
        content = b""
        try:
            self._requests.send_bytes(json.dumps(request).encode())
            if self._requests.poll(SECONDS):
                content = self._requests.recv_bytes(MAX_ANSWER_MIB * 2**20)
        except (OSError, EOFError):  # the child ended, or its answer is too large
            pass
        if not content:
            raise DataError(
                f"{self._of}: it takes more than {MEMORY_MIB} MiB of memory or {PROCESSOR_SECONDS} "
                "seconds to read, or is damaged; give a smaller or an undamaged file"
            )
        table = pa.ipc.open_stream(content).read_all()
        said = table.schema.metadata or {}
        if ERROR in said:
            kind, message = said[ERROR].decode(), said[MESSAGE].decode()
            raise getattr(errors, kind, DataError)(message if kind else f"{self._of}: {message}")
        table.validate(full=True)
        return table


def read_limited(module: str, of: str, **request: Any) -> pa.Table:
    with LimitedReader(module, of) as reader:
        return reader.ask(**request)


def _answer(call: Callable[..., pa.Table], request: bytes) -> pa.Table:
    try:
        return call(**json.loads(request))
    except Exception as error:
        if isinstance(error, MemoryError) or isinstance(error.__context__, MemoryError):
            sys.exit(1)  # the other process names the limit
        kind, message = type(error).__name__, str(error)
        if not isinstance(error, ClewError):
            kind, message = "", f"cannot be read ({described(error)})"
    return pa.table({}).replace_schema_metadata({ERROR: kind, MESSAGE: message})


def _limit() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    most = used + MEMORY_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def main() -> None:
    """Answer requests until the other process ends."""
    requests: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    call = import_module(sys.argv[2]).answer
    _limit()
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[3]))
        table = _answer(call, request)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        requests.send_bytes(sink.getvalue())
        signal.setitimer(signal.ITIMER_PROF, 0)
        del table, sink
        gc.collect()


if __name__ == "__main__":
    main()
