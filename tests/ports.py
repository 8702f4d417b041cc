"""Ports for the servers and process groups of tests that no other program takes.

The system uses a range of ports for outgoing connections. A free port of this range can be taken
before a server opens it, and processes whose port is taken wait for half an hour.
"""

import json
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]

BELOW_OUTGOING = range(15_000, 30_000)
"""Ports that systems do not use for outgoing connections by default."""
_choice = random.SystemRandom()


def free_port() -> int:
    """Return a port on which no program listens."""
    while True:
        port = _choice.choice(BELOW_OUTGOING)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@contextmanager
def meeting_place() -> Iterator[dict[str, str]]:
    """Yield the variables by which processes find each other; hold the port, as torchrun does."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    del store


@contextmanager
def meeting_place_for_forks() -> Iterator[dict[str, str]]:
    """Yield what `meeting_place` yields, for processes that this one forks.

    The store runs in a separate process. One of its threads resolves names; a process forked at
    that moment would inherit a locked resolver and wait forever in its own first look-up.
    """
    from_server, to_parent = os.pipe()
    until_closed, held = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(held)
        with meeting_place() as place:
            os.write(to_parent, json.dumps(place).encode())
            os.read(until_closed, 1)  # returns when the last process that holds the pipe has ended
        os._exit(0)
    os.close(to_parent)
    os.close(until_closed)
    place = json.loads(os.read(from_server, 4096))
    os.close(from_server)
    try:
        yield place
    finally:
        os.close(held)
        os.waitpid(server, 0)
