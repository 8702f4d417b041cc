"""What the door of a scoring server does with requests that are slow, large, many or abandoned."""

import asyncio
import json
from collections.abc import Iterator
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.model import EigenstateLM, Sampling, read_text, write_text
from clew.runs import request_door
from clew.runs.request_door import Budget, Door, Event, Receive, Scope, Send
from clew.subject import Row, Settings, Waiting, current_request, go_on

ROW = {"name": "a"}
SMALL, LARGE, TOO_LARGE = [ROW], [ROW] * 10, [ROW] * 101
Answer = tuple[int, dict[bytes, bytes]]


class App:
    """An application that answers when `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.requests: list[Waiting | None] = []
        self.num_ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(current_request.get())
        try:
            await self.may_answer.wait()
        finally:
            self.num_ended += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def door(*, is_shared: bool = False, **limits: Any) -> Door:
    budget = Budget(100, "rows", lambda num_rows, num_bytes, params: num_rows, is_shared)
    return Door("rows", {"name"}, set(), budget, **limits)


async def ask(to: Door, app: App, rows: list[Row], *then: Event) -> Answer:
    """Send rows, then further events; return the status and the headers of the answer."""
    body = json.dumps({"dataframe_records": rows}).encode()
    coming = [{"type": "http.request", "body": body, "more_body": False}, *then]
    answer: list[Event] = []

    async def receive() -> Event:
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    async def send(event: Event) -> None:
        answer.append(event)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/invocations", "headers": headers}
    await to(app, scope, receive, send)
    return answer[0]["status"], dict(answer[0]["headers"])


def test_work_ends_when_the_client_leaves() -> None:
    async def scenario() -> None:
        app = App()
        await ask(door(), app, SMALL, {"type": "http.disconnect"})
        await asyncio.sleep(0)  # the cancelled work ends
        (request,) = app.requests
        assert request is not None
        assert request.is_over
        assert app.num_ended == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("has_begun", "status"), [(True, 504), (False, 429)])
def test_work_ends_when_the_time_is_over(has_begun: bool, status: int) -> None:
    class Begun(App):
        async def __call__(self, *arguments: Any) -> None:
            if has_begun:
                go_on()
            await super().__call__(*arguments)

    async def scenario() -> None:
        app = Begun()
        found, headers = await ask(door(seconds=0.01), app, SMALL)
        await asyncio.sleep(0)
        assert (found, b"retry-after" in headers) == (status, not has_begun)
        assert app.num_ended == 1

    asyncio.run(scenario())


def test_who_waited_beside_others_comes_again() -> None:
    """Only a request that had the server for itself is told that it asks for too much."""

    class Begun(App):
        async def __call__(self, *arguments: Any) -> None:
            go_on()
            await super().__call__(*arguments)

    async def scenario() -> None:
        app = Begun()
        for to, num_requests, status in (
            (door(seconds=0.01), 1, 504),
            (door(seconds=0.01), 3, 429),
        ):
            found = await asyncio.gather(*(ask(to, app, LARGE) for _ in range(num_requests)))
            assert [each[0] for each in found] == [status] * num_requests

    asyncio.run(scenario())


def test_a_request_that_does_not_arrive_is_refused() -> None:
    async def scenario() -> None:
        app = App()
        part = {"type": "http.request", "body": b"{", "more_body": True}
        answer: list[Event] = []

        async def receive() -> Event:
            if not answer:
                answer.append({})
                return part
            return await asyncio.Event().wait() or part

        async def send(event: Event) -> None:
            answer.append(event)

        scope = {"type": "http", "method": "POST", "path": "/invocations", "headers": []}
        await door(body_seconds=0.01)(app, scope, receive, send)
        assert answer[1]["status"] == 408
        assert not app.requests

    asyncio.run(scenario())


def test_too_much_work_is_refused_before_it_begins() -> None:
    async def scenario() -> None:
        app = App()
        app.may_answer.set()
        assert (await ask(door(), app, TOO_LARGE))[0] == 400
        assert not app.requests
        assert (await ask(door(), app, TOO_LARGE[1:]))[0] == 200

    asyncio.run(scenario())


JSON, CSV = b"application/json", b"text/csv"


def status_of(content: object, *kinds: bytes) -> int:
    """Return the status with which the door refuses content; 200 if it does not."""
    scope = {"headers": [(b"content-type", kind) for kind in kinds]}
    try:
        door()._work(scope, json.dumps(content).encode())
    except request_door.Unanswered as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ([JSON], 400),
        ([b"application/json; charset=utf-8"], 400),
        ([JSON, CSV], 400),
        ([CSV, JSON], 415),
        ([b"\xa0application/json"], 415),
        ([b"application/vnd.apache.parquet"], 415),
        ([], 415),
    ],
)
def test_only_json_whose_rows_are_counted_comes_in(kinds: list[bytes], status: int) -> None:
    """MLflow reads the first of several content types, and takes CSV and Parquet too."""
    assert status_of({"dataframe_records": TOO_LARGE}, *kinds) == status


@pytest.mark.parametrize(
    "content",
    [
        {"dataframe_records": SMALL, "messages": 1, "name": ["a"] * 101},
        {"dataframe_split": {"data": {"name": ["a"] * 101}}},
        {"dataframe_split": {"data": {"name": dict.fromkeys("abc", "a")}}},
        {"dataframe_split": {"data": [{"name": "a", "other": "b"}]}},
        {"dataframe_split": {"columns": ["name"], "index": [1] * 101, "data": []}},
    ],
)
def test_rows_that_would_not_be_counted_are_refused(content: dict[str, object]) -> None:
    """MLflow reads rows beside its forms if a key is one of a chat, and data that are an object."""
    assert status_of(content, JSON) == 400


def test_large_requests_wait_for_each_other_and_small_ones_do_not() -> None:
    async def scenario() -> None:
        to, app = door(), App()
        large = [asyncio.create_task(ask(to, app, LARGE)) for _ in range(3)]
        small = asyncio.create_task(ask(to, app, SMALL))
        while len(app.requests) < 2:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(app.requests) == 2, "one large and one small"
        app.may_answer.set()
        assert [(await each)[0] for each in (*large, small)] == [200] * 4

    asyncio.run(scenario())


def test_large_requests_that_share_their_work_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        to, app = door(is_shared=True), App()
        large = [asyncio.create_task(ask(to, app, LARGE)) for _ in range(3)]
        while len(app.requests) < 3:
            await asyncio.sleep(0)
        app.may_answer.set()
        assert [(await each)[0] for each in large] == [200] * 3

    asyncio.run(scenario())


def test_requests_that_share_their_work_have_a_thread_each() -> None:
    """asyncio's own number of threads is at most 32."""
    together = Barrier(40, timeout=30)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(40)))

    async def scenario() -> None:
        await door(is_shared=True)(app, {"type": "lifespan"}, None, None)  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert not together.broken


def test_a_busy_server_names_the_time_that_its_latest_answer_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_door, "MOST_LARGE", 1)

    async def scenario() -> None:
        to, app, now = door(), App(), [0.0]
        monkeypatch.setattr(request_door, "monotonic", lambda: now[0])

        async def seconds_to_wait(answered_at: float) -> int:
            first = asyncio.create_task(ask(to, app, LARGE))
            await asyncio.sleep(0)
            status, headers = await ask(to, app, LARGE)
            assert status == 429
            now[0] = answered_at
            app.may_answer.set()
            assert (await first)[0] == 200
            app.may_answer.clear()
            return int(headers[b"retry-after"])

        assert await seconds_to_wait(answered_at=7.2) == request_door.FIRST_SECONDS
        assert await seconds_to_wait(answered_at=8.0) == 8
        assert await seconds_to_wait(answered_at=9.0) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", ["MOST_WAITING", "MOST_BODIES"])
def test_a_full_server_says_when_to_come_again(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_door, limit, 1)

    async def scenario() -> None:
        size = len(json.dumps({"dataframe_records": SMALL}))
        to, app = door(limit_bytes=size), App()
        first = asyncio.create_task(ask(to, app, SMALL))
        while not app.requests:
            await asyncio.sleep(0)
        status, headers = await ask(to, app, SMALL)
        assert (status, int(headers[b"retry-after"]) > 0) == (429, True)
        app.may_answer.set()
        assert (await first)[0] == 200
        assert (await ask(to, app, SMALL))[0] == 200

    asyncio.run(scenario())


@pytest.fixture
def asked() -> Iterator[Waiting]:
    """Return the request that is being answered."""
    token = current_request.set(request := Waiting())
    yield request
    current_request.reset(token)


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType")
def test_a_served_model_stops_between_steps(asked: Waiting) -> None:
    from clew.runs.served_model import ServedModel

    sizes: list[int] = []

    def answer(_: object, rows: list[Row], settings: Settings) -> list[dict[str, Any]]:
        sizes.append(len(rows))
        asked.is_over = len(sizes) == 3
        return [{"found": True} for _ in rows]

    subject = SimpleNamespace(
        settings=Settings, answer=answer, work=lambda _, num_rows, *__: num_rows, expects="rows"
    )
    model = ServedModel(lambda folder: subject)  # type: ignore[arg-type, return-value]
    model._subject, model._most_work, model._loaded = subject, 500, None
    frame = pd.DataFrame({"name": ["a"] * 100})
    with pytest.raises(InterruptedError):
        model.predict(None, frame)  # type: ignore[arg-type]
    assert sizes == [10] * 3
    asked.is_over = False
    assert model.predict(None, frame) == [{"found": True}] * 100  # type: ignore[arg-type]


def test_a_text_ends_between_two_tokens(asked: Waiting) -> None:
    settings = EigenstateLMModel(d_model=8, n_layers=1, num_eigenstates=4)
    model = EigenstateLM(11, settings).eval()
    state = read_text(model, torch.ones(1, 3, dtype=torch.long))
    texts = write_text(model, state, Sampling(), None)
    next(texts)
    asked.is_over = True
    with pytest.raises(InterruptedError):
        next(texts)
