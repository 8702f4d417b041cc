"""Ports for servers of tests, and for processes that look for each other, which nobody else takes.

The system gives ports of its own range to every outgoing connection: a free port of that range may
be taken before a server gets to it, and processes whose port is taken wait for half an hour.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]

BELOW_OUTGOING = range(15_000, 30_000)
"""Ports that no system gives to outgoing connections unless it is set up to."""
_choice = random.SystemRandom()


def free_port() -> int:
    """Return a port that nobody listens on."""
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
    """Yield variables by which processes find each other; as torchrun does, the port is held."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    del store
