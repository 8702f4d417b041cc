"""Middleware of a scoring server ("door"): limits requests, and answers mistakes in one line.

MLflow's server parses a request of any size, ignores names that the model's signature does not
have, and answers a mistake with the request itself and a stack trace. It has no option for a
middleware, but it creates its application after it has loaded the model. `close_door`, which the
model calls, therefore gives FastAPI's class the door as middleware.
"""

import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Set
from functools import partial
from typing import Any

from clew.errors import quoted, valid_names

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MISTAKE = "mistake"
"""Key of the message in MLflow's JSON for an error that the model itself has found."""
SERVED_PATH = "__pyfunc_model_path__"
"""Environment variable that MLflow sets in its scoring server before the model is loaded."""
LIMIT_VARIABLE, LIMIT_MIB = "CLEW_REQUEST_MIB", 16
MAX_LINE = 600
FORMS = ("dataframe_records", "dataframe_split", "inputs", "instances")

logger = logging.getLogger(__name__)


def close_door(expects: str, columns: Set[str], parameters: Set[str]) -> None:
    """Add the door to the scoring server, if this process is one.

    `columns` and `parameters` are the names that a row and `params` may have.
    """
    if SERVED_PATH not in os.environ:
        return
    limit_bytes = _limit_bytes(os.environ.get(LIMIT_VARIABLE) or str(LIMIT_MIB))
    import fastapi
    from fastapi.middleware import Middleware

    door = Middleware(Door, expects, columns, parameters, limit_bytes)
    fastapi.FastAPI = partial(fastapi.FastAPI, middleware=[door])  # type: ignore[assignment,misc]


def _limit_bytes(given: str) -> int:
    try:
        limit = int(float(given) * 2**20)
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise SystemExit(
            f"clew: {LIMIT_VARIABLE}={given!r}; expected a number of MiB above 0, such as "
            f"{LIMIT_MIB}"
        )
    return limit


class Door:
    """An ASGI middleware that refuses invalid requests; see `close_door`."""

    def __init__(
        self,
        app: Application,
        expects: str,
        columns: Set[str],
        parameters: Set[str],
        limit_bytes: int = LIMIT_MIB * 2**20,
    ) -> None:
        self._app, self._expects, self._limit_bytes = app, expects, limit_bytes
        self._columns, self._parameters = columns, parameters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _read(receive, self._limit_bytes)
        if body is None:
            limit = f"{self._limit_bytes / 2**20:g} MiB"
            line = f"the request is larger than {limit}; send fewer rows at once"
            await _refuse(send, 413, "BAD_REQUEST", line)
        elif scope["method"] == "POST" and (fault := self._fault(scope, body)):
            await _refuse(send, 400, "BAD_REQUEST", f"{fault}; expected {self._expects}")
        else:
            await self._pass_on(scope, body, receive, send)

    def _fault(self, scope: Scope, body: bytes) -> str | None:
        """Return what is wrong with the form of a request; None if it is valid or not JSON."""
        kind = dict(scope["headers"]).get(b"content-type")
        if kind is None:
            return "the request has no content type"
        if not kind.startswith(b"application/json"):
            return None
        try:
            return self._fault_in(json.loads(body))
        except RecursionError:
            return "the request is nested too deeply"
        except ValueError as error:
            return f"the request is not valid JSON ({str(error)[:100]})"

    def _fault_in(self, content: object) -> str | None:
        if not isinstance(content, dict):
            return "the request is not a JSON object"
        given = [form for form in FORMS if form in content]
        if len(given) != 1:
            forms = ", ".join(FORMS)
            return f"the request has {' and '.join(given) or 'none'} of {forms}; give one"
        form, rows, asked = given[0], content[given[0]], content.get("params") or {}
        if not rows:
            return f"{form} is empty"
        if not isinstance(asked, dict):
            return "params is not a JSON object"
        if beside := sorted(self._parameters & content.keys()):
            return f"{beside[0]} is outside params; put it into params"
        return (
            _unknown("params", asked, self._parameters)
            or (_fault_in_table(rows) if form == "dataframe_split" else None)
            or _unknown("a row", _columns_of(form, rows), self._columns)
        )

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        waiting: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]
        events: list[Event] = []

        async def replay() -> Event:
            return waiting.pop() if waiting else await receive()

        async def keep(event: Event) -> None:
            events.append(event)

        try:
            await self._app(scope, replay, keep)
        except Exception:
            logger.exception("a request could not be answered")
            await _refuse(send, 500, "INTERNAL_ERROR", "the server failed; see its log")
            return
        if (status := events[0]["status"]) < 400:
            for event in events:
                await send(event)
            return
        text = b"".join(event.get("body", b"") for event in events[1:])
        code, line = self._told(text.decode("utf-8", "replace"))
        await _refuse(send, status, code, line)

    def _told(self, text: str) -> tuple[str, str]:
        try:
            content = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            content = {"message": text}
        if trace := content.get("stack_trace"):
            logger.error("a request could not be answered: %s", trace)
        code = str(content.get("error_code", "BAD_REQUEST"))
        if MISTAKE in content:
            return code, str(content[MISTAKE])
        # MLflow's message starts with the request itself, which can be long.
        reason = str(content.get("message") or content.get("detail")).rpartition("Error: ")[2]
        reason = (reason.strip().splitlines() or ["the request cannot be used"])[0][:300]
        return code, f"{reason.rstrip('.')}; expected {self._expects}"


def _unknown(where: str, given: Iterable[str], known: Set[str]) -> str | None:
    """Return which name is unknown; MLflow would ignore it."""
    if unknown := sorted(set(given) - known):
        return f"{where} has {quoted(unknown[0])}; {valid_names(unknown[0], sorted(known))}"
    return None


def _fault_in_table(table: object) -> str | None:
    """Return which part of `dataframe_split` should be a list of names and is not."""
    if not isinstance(table, dict):
        return None
    for key in ("columns", "index"):
        labels = table.get(key) or []
        if not isinstance(labels, list) or any(isinstance(each, dict | list) for each in labels):
            return f"{key} of dataframe_split is not a list of names"
    return None


def _columns_of(form: str, rows: object) -> Set[str]:
    if isinstance(rows, list):
        return {name for row in rows if isinstance(row, dict) for name in row}
    if isinstance(rows, dict):
        return set(map(str, rows.get("columns") or () if form == "dataframe_split" else rows))
    return set()


async def _read(receive: Receive, limit_bytes: int) -> bytes | None:
    """Return a request's body, or None if it is too large.

    A body that is too large is read to its end but not kept: a client whose connection is closed
    while it sends would not see the answer.
    """
    parts: list[bytes] = []
    num_bytes, more = 0, True
    while more:
        event = await receive()
        part = event.get("body", b"")
        num_bytes, more = num_bytes + len(part), event.get("more_body", False)
        if num_bytes > limit_bytes:
            parts.clear()
        else:
            parts.append(part)
    return None if num_bytes > limit_bytes else b"".join(parts)


async def _refuse(send: Send, status: int, code: str, line: str) -> None:
    content = json.dumps({"error_code": code, "message": line[:MAX_LINE]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
