"""Middleware of a scoring server ("door"): limits requests, and answers mistakes in one line.

MLflow's server parses a request of any size, waits for it without end, works on when nobody waits
for the answer, ignores names that the model's signature does not have, and answers a mistake with
the request itself and a stack trace. It has no option for a middleware, but it creates its
application after it has loaded the model. `close_door`, which the model calls, therefore replaces
FastAPI's class by one that is behind the door.
"""

import asyncio
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any

from clew.errors import quoted, valid_names
from clew.runs.store import local_path
from clew.subject import Waiting, current_request

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MISTAKE = "mistake"
"""Key of the message in MLflow's JSON for an error that the model itself has found."""
SERVED_PATH = "__pyfunc_model_path__"
"""Environment variable that MLflow sets in its scoring server before the model is loaded."""
EXAMPLE_FILE = "serving_input_example.json"
"""MLflow's file, in a model's folder, with a request that the model can answer."""
READY_PATH = "/ready"
LIMIT_VARIABLE, LIMIT_MIB = "CLEW_REQUEST_MIB", 16
TIME_VARIABLE, TIME_SECONDS = "MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", 60
BODY_SECONDS = 30.0
"""Longest time in which a request arrives."""
NUM_STEPS, NUM_LARGE, NUM_LARGE_SHARED = 50, 1, 8
"""A request with more than a 50th of the most work is large: it is answered in steps of this size,
and one at a time (or eight, if they share their work), so that small ones need not wait long."""
NUM_THREADS = 64
"""Requests that share their work wait in threads; asyncio has only four more than processors."""
MOST_WAITING, MOST_LARGE, MOST_BODIES = 256, 16, 16
"""Most small and large requests that wait for an answer, and most bodies of the largest size."""
FIRST_SECONDS = 2.0
"""When to come again, as long as no request has been answered that would tell."""
MAX_LINE = 600
JSON_KIND = b"application/json"
FORMS = ("dataframe_records", "dataframe_split", "inputs", "instances")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budget:
    """The most work of a request, and how much work one is: by number of rows, bytes, `params`."""

    most: int
    unit: str
    work: Callable[[int, int, Mapping[str, Any]], int]
    is_shared: bool = False
    """Whether requests that wait at the same time are answered together."""


def close_door(expects: str, columns: Set[str], parameters: Set[str], budget: Budget) -> None:
    """Add the door to the scoring server, if this process is one.

    `columns` and `parameters` are the names that a row and `params` may have.
    """
    if SERVED_PATH not in os.environ:
        return
    limit_bytes = limit(LIMIT_VARIABLE, LIMIT_MIB, "a number of MiB", 2**20)
    seconds = limit(TIME_VARIABLE, TIME_SECONDS, "a number of seconds")
    os.environ[TIME_VARIABLE] = str(2 * seconds)  # the door is first, because it knows why
    import fastapi

    class Guarded(fastapi.FastAPI):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await door(super().__call__, scope, receive, send)

    door = Door(expects, columns, parameters, budget, limit_bytes=limit_bytes, seconds=seconds)
    fastapi.FastAPI = Guarded  # type: ignore[misc]


def limit(variable: str, default: int, expected: str, factor: int = 1) -> int:
    """Return `factor` times the number that an environment variable sets, or the default."""
    given = os.environ.get(variable) or str(default)
    try:
        number = int(float(given) * factor)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise SystemExit(
            f"clew: {variable}={given!r}; expected {expected} above 0, such as {default}"
        )
    return number


class Unanswered(Exception):
    """The model does not answer a request; the error says why."""

    def __init__(self, status: int, line: str, code: str = "BAD_REQUEST", again: int = 0) -> None:
        super().__init__(line)
        self.status, self.code, self.retry_seconds = status, code, again


@dataclass
class Door:
    """An ASGI middleware that limits requests to an application; see `close_door`."""

    expects: str
    columns: Set[str]
    parameters: Set[str]
    budget: Budget
    limit_bytes: int = LIMIT_MIB * 2**20
    seconds: float = TIME_SECONDS
    body_seconds: float = BODY_SECONDS

    def __post_init__(self) -> None:
        self._num_bytes, self._num_waiting = 0, {False: 0, True: 0}
        num_large = NUM_LARGE_SHARED if self.budget.is_shared else NUM_LARGE
        self._turns = {False: asyncio.Semaphore(MOST_WAITING), True: asyncio.Semaphore(num_large)}
        self._latest_seconds = {False: FIRST_SECONDS, True: FIRST_SECONDS}

    async def __call__(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan" and self.budget.is_shared:  # the server starts
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NUM_THREADS))
            await app(scope, receive, send)
            return
        body = bytearray()
        try:
            await self._read(receive, body)
            asked, content = _example(scope) if scope["path"] == READY_PATH else (scope, body)
            events = await self._answer(app, asked, content, receive)
        except Unanswered as error:
            events = _told_why(error)
        finally:
            self._num_bytes -= len(body)
        for event in events:
            await send(event)

    async def _read(self, receive: Receive, body: bytearray) -> None:
        """Read a request.

        If it is too large, it is read to its end but not kept: a client whose connection is closed
        while it sends would not see the answer.
        """
        num_bytes, more = 0, True
        try:
            async with asyncio.timeout(self.body_seconds):
                while more:
                    event = await receive()
                    part, more = event.get("body", b""), event.get("more_body", False)
                    num_bytes += len(part)
                    if num_bytes <= self.limit_bytes:
                        body += part
                        self._num_bytes += len(part)
                    if self._num_bytes > MOST_BODIES * self.limit_bytes:
                        raise self._busy(is_large=True)
        except TimeoutError:
            line = f"the request did not arrive within {self.body_seconds:g} s; send it faster"
            raise Unanswered(408, line) from None
        if num_bytes > self.limit_bytes:
            size = f"{self.limit_bytes / 2**20:g} MiB"
            raise Unanswered(413, f"the request is larger than {size}; send fewer rows at once")

    def _work(self, scope: Scope, body: bytes | bytearray) -> int:
        """Return how much work a request is; refuse too much, and an invalid form."""
        # MLflow reads the first of several content types. It reads CSV and Parquet too, where a
        # name such as NA counts as missing, and a few bytes of Parquet can hold any number of rows.
        kinds = [value for name, value in scope["headers"] if name == b"content-type"] or [b""]
        if kinds[0].partition(b";")[0].strip() != JSON_KIND:
            given = quoted(kinds[0].decode("latin-1"))
            raise Unanswered(415, f"the content type is {given}; send {JSON_KIND.decode()}")
        try:
            content = json.loads(body)
        except RecursionError:
            raise self._wrong("the request is nested too deeply") from None
        except ValueError as error:
            raise self._wrong(f"the request is not valid JSON ({str(error)[:100]})") from None
        if fault := self._fault_in(content):
            raise self._wrong(fault)
        num_rows = next(_num_rows(content[form]) for form in FORMS if form in content)
        params = content.get("params") or {}
        work, most = self.budget.work(num_rows, len(body), params), self.budget.most
        if work > most:
            line = f"the request takes {work:,} {self.budget.unit}; expected at most {most:,}"
            raise Unanswered(400, f"{line}: send fewer rows, or ask for less")
        return work

    def _wrong(self, fault: str) -> Unanswered:
        return Unanswered(400, f"{fault}; expected {self.expects}")

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
        if beside := sorted(self.parameters & content.keys()):
            return f"{beside[0]} is outside params; put it into params"
        return (
            _unknown("the request", content, {form, "params"})
            or _unknown("params", asked, self.parameters)
            or (_fault_in_table(rows) if form == "dataframe_split" else None)
            or _unknown("a row", _columns_of(form, rows), self.columns)
        )

    async def _answer(
        self, app: Application, scope: Scope, body: bytes | bytearray, receive: Receive
    ) -> list[Event]:
        """Return the application's answer; its work ends when nobody waits for it any more."""
        num_units = self._work(scope, body) if scope["method"] == "POST" else 0
        is_large = num_units * NUM_STEPS > self.budget.most
        num_others, began = self._num_waiting[is_large], monotonic()
        if num_others >= (MOST_LARGE if is_large else MOST_WAITING):
            raise self._busy(is_large)
        bodies: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]
        events: list[Event] = []
        leaving = asyncio.ensure_future(receive())

        async def replay() -> Event:
            return bodies.pop() if bodies else await asyncio.shield(leaving)

        async def keep(event: Event) -> None:
            events.append(event)

        async def run() -> None:
            async with self._turns[is_large]:
                await app(scope, replay, keep)

        request = Waiting()
        current_request.set(request)
        work = asyncio.ensure_future(run())
        self._num_waiting[is_large] += 1
        try:
            await asyncio.wait({work, leaving}, timeout=self.seconds, return_when="FIRST_COMPLETED")
        finally:
            self._num_waiting[is_large] -= 1
            request.is_over = work.cancel()
            leaving.cancel()
        if request.is_over:
            if not leaving.done():
                self._latest_seconds[is_large] = self.seconds
            if num_others or self._num_waiting[is_large] or not request.has_begun:
                raise self._busy(is_large)
            line = f"no answer within {self.seconds:g} s; send fewer rows, or ask for less"
            raise Unanswered(504, line)
        if error := work.exception():
            logger.error("a request could not be answered", exc_info=error)
            raise Unanswered(500, "the server failed; see its log", "INTERNAL_ERROR")
        if (status := events[0]["status"]) >= 400:
            text = b"".join(event.get("body", b"") for event in events[1:])
            code, line = self._told(text.decode("utf-8", "replace"))
            raise Unanswered(status, line, code)
        if num_units:
            self._latest_seconds[is_large] = monotonic() - began
        return events

    def _busy(self, is_large: bool) -> Unanswered:
        """Tell a client to come again when those who wait now will have been answered."""
        seconds = math.ceil(self._latest_seconds[is_large])
        line = f"the server is busy; try again in {seconds} s"
        return Unanswered(429, line, again=seconds)

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
        return code, f"{reason.rstrip('.')}; expected {self.expects}"


def _unknown(where: str, given: Iterable[str], known: Set[str]) -> str | None:
    """Return which name is unknown; MLflow would ignore it."""
    if unknown := sorted(set(given) - known):
        return f"{where} has {quoted(unknown[0])}; {valid_names(unknown[0], sorted(known))}"
    return None


def _fault_in_table(table: object) -> str | None:
    """Return which part of `dataframe_split` is not a list as pandas writes it.

    MLflow would also read data that are an object, whose rows are not counted.
    """
    if not isinstance(table, dict):
        return None
    for key, kinds in (("columns", dict | list), ("index", dict | list), ("data", dict)):
        part = table.get(key) or []
        if not isinstance(part, list) or any(isinstance(each, kinds) for each in part):
            return f"{key} of dataframe_split is not a list as pandas writes it"
    return None


def _num_rows(rows: object) -> int:
    if not isinstance(rows, dict):
        return len(rows) if isinstance(rows, list) else 1
    columns = [rows["data"], rows.get("index")] if "data" in rows else rows.values()
    return max((len(column) for column in columns if isinstance(column, list)), default=1)


def _columns_of(form: str, rows: object) -> Set[str]:
    if isinstance(rows, list):
        return {name for row in rows if isinstance(row, dict) for name in row}
    if isinstance(rows, dict):
        return set(map(str, rows.get("columns") or () if form == "dataframe_split" else rows))
    return set()


def _example(scope: Scope) -> tuple[Scope, bytes]:
    """Return the scope and the body of a request that the served model can answer."""
    folder = local_path(os.environ[SERVED_PATH])
    assert folder is not None
    headers = [(b"content-type", JSON_KIND)]
    asked = {"method": "POST", "path": "/invocations", "raw_path": b"/invocations"}
    return {**scope, **asked, "headers": headers}, (folder / EXAMPLE_FILE).read_bytes()


def _told_why(error: Unanswered) -> list[Event]:
    body = json.dumps({"error_code": error.code, "message": str(error)[:MAX_LINE]}).encode()
    headers = [(b"content-type", JSON_KIND), (b"content-length", b"%d" % len(body))]
    if error.retry_seconds:
        headers.append((b"retry-after", b"%d" % error.retry_seconds))
    start = {"type": "http.response.start", "status": error.status, "headers": headers}
    return [start, {"type": "http.response.body", "body": body}]
