"""Arbitrary bytes sent to a scoring server: which requests pass, and what the model answers."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.runs.request_door import Application, Budget, Door, Event
from tests.attack.cases import fuzz, limits, require_one_line
from tests.attack.damage import as_json, damaged_bytes, damaged_json, texts, values
from tests.attack.material import Material
from tests.workflows.trained import use_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType"),
]

KINDS = ("application/json",) * 6 + (
    "application/json; format=x", "text/csv", "application/vnd.apache.parquet", "text/html", "",
)  # fmt: skip
WINDOW = {"images": [[[[280.0] * 13] * 9]] * 3, "scalars": [[45.0, 180.0, 10.0]] * 3}
REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "graph": (
        {"head": "acquired_abnormality", "relation": "location_of"},
        {"top_k": 3, "filter_known": True},
    ),
    "text": ({"prompt": "3 green"}, {"max_tokens": 2, "temperature": 0.5, "top_p": 1.0, "seed": 1}),
    "frames": (WINDOW, {"confidence": 0.9}),
}
"""A valid row and valid parameters for each model."""
BUDGET = Budget(1000, "rows", lambda num_rows, num_bytes, params: num_rows)
Ask = Callable[[bytes, str], tuple[int, bytes]]


@pytest.fixture(params=list(REQUESTS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ask(kind: str, material: Material) -> Iterator[Ask]:
    """Send bytes of a content type to a server's application without a network."""
    from mlflow.pyfunc import load_model, scoring_server

    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        model = load_model(f"models:/{kind}@champion")
        columns = model.metadata.get_input_schema().input_names()
        door = partial(
            Door("rows", set(columns), REQUESTS[kind][1].keys(), BUDGET), scoring_server.init(model)
        )
        runner = asyncio.Runner()
        # Not in this thread: after a browser test, Playwright runs an event loop in it.
        with ThreadPoolExecutor(1) as thread:

            def asked(body: bytes, content_type: str) -> tuple[int, bytes]:
                return thread.submit(runner.run, _answer(door, body, content_type)).result()

            yield asked
            thread.submit(runner.close).result()


async def _answer(door: Application, body: bytes, content_type: str) -> tuple[int, bytes]:
    events: list[Event] = []

    sent: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Event:
        if not sent:
            await asyncio.Event().wait()  # the client stays
        return sent.pop()

    async def send(event: Event) -> None:
        events.append(event)

    headers = [(b"content-type", content_type.encode())] if content_type else []
    scope = {
        "type": "http", "method": "POST", "path": "/invocations", "raw_path": b"/invocations",
        "query_string": b"", "headers": headers, "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    await door(scope, receive, send)
    content = b"".join(event.get("body", b"") for event in events[1:])
    return int(events[0]["status"]), content


def drawn_body(draw: DrawFn, row: dict[str, Any], params: dict[str, Any]) -> bytes:
    """Return a request with damage to its bytes, its values, a row or the parameters."""
    columns = list(row)
    forms: list[dict[str, Any]] = [
        {"dataframe_records": [row] * draw(st.integers(0, 2))},
        {"dataframe_split": {"columns": columns, "data": [list(row.values())]}},
        {"inputs": {name: [value] for name, value in row.items()}},
        {"instances": [row]},
    ]
    request = draw(st.sampled_from(forms)) | ({"params": params} if draw(st.booleans()) else {})
    match draw(st.integers(0, 3)):
        case 0:
            return draw(damaged_bytes(as_json(request)))
        case 1:
            return draw(damaged_json(request))
        case 2:
            changed = row | {draw(st.one_of(st.sampled_from(columns), texts)): draw(values)}
            return as_json(request | {"dataframe_records": [row, changed]})
        case _:
            key = draw(st.one_of(st.sampled_from(sorted(params)), texts))
            return as_json(request | {"params": params | {key: draw(values)}})


def test_requests_of_a_server(kind: str, ask: Ask) -> None:
    row, params = REQUESTS[kind]
    status, content = ask(as_json({"dataframe_records": [row], "params": params}), KINDS[0])
    assert status == 200, content

    def case(draw: DrawFn) -> None:
        body = drawn_body(draw, row, params)
        with limits():
            status, content = ask(body, draw(st.sampled_from(KINDS)))
        assert status in {200, 400, 413, 415}, (status, content)
        if status == 200:
            assert "predictions" in json.loads(content)
            return
        answer = json.loads(content)
        assert answer.keys() == {"error_code", "message"}
        require_one_line(answer["message"])
        assert "Traceback" not in answer["message"]

    fuzz(0.003, case)
