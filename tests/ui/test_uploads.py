"""Only people who may upload can fill the memory of the dashboard, and only up to a limit."""

import asyncio
import http.client
import importlib
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send
from streamlit import config
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from clew.ui import access
from tests.browser.dashboard import serving

SECRET = "a-secret-of-this-test-that-is-long-enough"
SETTINGS = access.Settings(people=["reader@x.org"], reviewers=["reviewer@x.org"])
MIB = 2**20
FORM = "multipart/form-data; boundary=X"
BODY = b'--X\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\na\r\n--X--\r\n'


@dataclass
class Server:
    """A guard before a server that stores what is put, as Streamlit does."""

    guarded: ModuleType
    files: MemoryUploadedFileManager
    sessions: dict[str, Any] = field(default_factory=dict)
    meanwhile: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What happens while the next uploads arrive."""

    def __post_init__(self) -> None:
        self.app = self.guarded.guard(self.store)

    def open(self, session_id: str, email: str = "") -> None:
        claims = {"is_logged_in": True, "email": email, "email_verified": True} if email else {}
        self.sessions[session_id] = SimpleNamespace(_user_info=claims)

    async def store(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        if self.meanwhile:
            await self.meanwhile.pop()()
        *_, session_id, file_id = scope["path"].split("/")
        self.files.add_file(session_id, UploadedFileRec(file_id, "a", "b", body))
        await send({"type": "http.response.start", "status": 204, "headers": []})

    def put(self, *upload: Any) -> int:
        return asyncio.run(self.upload(*upload))

    async def upload(
        self, session_id: str, num_bytes: int, headers: Mapping[str, str] | None = None
    ) -> int:
        """Upload a file, and return the status; fail if a refused one is read."""
        answers, was_read = list[Message](), False

        async def receive() -> Message:
            nonlocal was_read
            was_read = True
            return {"type": "http.request", "body": bytes(num_bytes), "more_body": False}

        async def send(event: Message) -> None:
            answers.append(event)

        said = {"content-length": str(num_bytes)} if headers is None else headers
        path = f"/clew/_stcore/upload_file/{session_id}/{len(self.files.file_storage[session_id])}"
        scope = {"type": "http", "method": "PUT", "path": path}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in said.items()]
        await self.app(scope, receive, send)
        status = int(answers[0]["status"])
        assert was_read is (status == 204)
        return status


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(config, "_main_script_path", config._main_script_path)
    found = Server(importlib.import_module("clew.ui.guarded"), MemoryUploadedFileManager(""))
    runtime = SimpleNamespace(uploaded_file_mgr=found.files, get_app_session=found.sessions.get)
    monkeypatch.setattr(found.guarded.runtime, "get_instance", lambda: runtime)
    monkeypatch.setattr(access, "settings", lambda: SETTINGS)
    return found


@pytest.mark.parametrize("email", ["", "eve@x.org", "reader@x.org"])
def test_who_may_not_upload_is_refused_unread(email: str, server: Server) -> None:
    server.open("a", email)
    server.open("b", "reviewer@x.org")
    assert server.put("a", 10) == server.put("of nobody", 10) == 403
    assert server.put("b", 10) == 204


def test_where_nobody_signs_in_everybody_uploads(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "settings", lambda: None)
    server.open("a")
    assert server.put("a", 10) == 204


def test_a_session_and_all_sessions_have_a_limit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.guarded, "SESSION_MIB", 2)
    monkeypatch.setattr(server.guarded, "SERVER_MIB", 3)
    for name in "abc":
        server.open(name, "reviewer@x.org")
    assert server.put("a", 3 * MIB) == 413
    assert server.put("a", MIB) == 204
    assert server.put("a", MIB) == 413, "the record of a file counts, too"
    assert server.put("b", MIB) == 204
    assert server.put("c", MIB) == 413
    server.files.remove_session_files("a")
    assert server.put("c", MIB) == 204


def test_what_still_arrives_counts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.guarded, "SESSION_MIB", 3)
    server.open("a", "reviewer@x.org")
    statuses: list[int] = []

    async def second() -> None:
        statuses.append(await server.upload("a", 2 * MIB + 1))

    server.meanwhile.append(second)
    assert server.put("a", MIB) == 204
    assert statuses == [413]
    server.files.remove_session_files("a")
    assert server.put("a", 2 * MIB + 1) == 204


@pytest.mark.parametrize("headers", [{}, {"content-length": "1", "transfer-encoding": "chunked"}])
def test_an_upload_that_hides_its_size_counts_as_the_largest(
    headers: Mapping[str, str], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.open("a", "reviewer@x.org")
    assert server.put("a", MIB, headers) == 204
    monkeypatch.setattr(server.guarded, "SESSION_MIB", 200)
    assert server.put("a", MIB, headers) == 413


@pytest.mark.slow
def test_a_server_knows_who_uploads(store_template: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(store_template.read_bytes())
    secrets = tmp_path / "secrets.toml"
    secrets.write_text(
        f"[auth]\ncookie_secret = '{SECRET}'\n[clew]\n"
        + "".join(f"{key} = {json.dumps(each)}\n" for key, each in SETTINGS.model_dump().items())
    )
    options = ("--secrets.files", str(secrets))
    with serving(f"sqlite:///{tmp_path / 'mlflow.db'}", options=options) as url:
        assert status_of_upload(url, "") == 403
        assert status_of_upload(url, "reader@x.org") == 403
        assert status_of_upload(url, "reviewer@x.org") == 204


def status_of_upload(url: str, email: str) -> int:
    """Open a session as its person, and upload a file."""
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request("GET", "/_stcore/health")
        answer = connection.getresponse()
        answer.read()
        token = str(answer.headers["set-cookie"]).partition("=")[2].partition(";")[0]
        claims = {"origin": url, "is_logged_in": True, "email": email, "email_verified": True}
        signed = create_signed_value(SECRET, "_streamlit_user", json.dumps(claims)).decode()
        cookies = f"_streamlit_xsrf={token}" + (f"; _streamlit_user={signed}" if email else "")
        with connect(
            f"{url.replace('http', 'ws', 1)}/_stcore/stream",
            origin=Origin(url),
            subprotocols=[Subprotocol("streamlit"), Subprotocol(token)],
            additional_headers={"Cookie": cookies},
            max_size=None,
        ) as socket:
            wanted, told = BackMsg(), ForwardMsg()
            wanted.rerun_script.query_string = ""
            socket.send(wanted.SerializeToString())
            while told.WhichOneof("type") != "new_session":
                told.ParseFromString(socket.recv(60, decode=False))
            place = f"/_stcore/upload_file/{told.new_session.initialize.session_id}/1"
            headers = {"Cookie": cookies, "X-Xsrftoken": token, "Content-Type": FORM}
            connection.request("PUT", place, BODY, headers)
            return connection.getresponse().status
