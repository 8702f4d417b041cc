"""A proxy on loopback that drops, delays or cuts off requests and answers on demand."""

import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["refuse", "hang", "500", "429", "half an answer", "no answer"]
"""With `half an answer` and `no answer`, the server has carried out the request."""
FAULTS: tuple[Fault, ...] = ("refuse", "hang", "500", "429", "half an answer", "no answer")
MOST_FAULTS = 12
"""After this many faults the outage ends: a checkpoint needs many requests without a fault."""
HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class FaultyProxy(ThreadingHTTPServer):
    """Forwards requests to a server; every `every`-th request that changes something fails."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host, self.port = str(urlsplit(target).hostname), int(urlsplit(target).port or 80)
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault: Fault | None = None
        self.every, self.num_faults, self._num_changes = 3, 0, 0
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def next_fault(self) -> Fault | None:
        """Return the fault of the next request that changes something, or None."""
        with self._lock:
            self._num_changes += 1
            over = self.num_faults == MOST_FAULTS
            if self.fault is None or over or self._num_changes % self.every:
                return None
            self.num_faults += 1
            return self.fault

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultyProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault() if self.command != "GET" else None
        match fault:
            case "refuse":
                return self._reset()
            case "hang":
                self.server.ended.wait()
                return self._reset()
            case "500" | "429":
                return self._answer(int(fault), [("Retry-After", "0")], b"no")
        connection = http.client.HTTPConnection(self.server.host, self.server.port)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content, headers = answer.read(), answer.getheaders()
        connection.close()
        if fault == "no answer":
            return self._reset()
        self._answer(answer.status, headers, content, cut=fault == "half an answer")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def _reset(self) -> None:
        """Reset the connection, so that the client sees an error instead of a normal end."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server."""
    proxy = FaultyProxy(target)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()
