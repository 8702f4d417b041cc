"""Ports for the servers and process groups of tests that no other program takes.

The system uses a range of ports for outgoing connections. A free port of this range can be taken
before a server opens it, and processes whose port is taken wait for half an hour.
"""

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
