"""The dashboard behind a guard: no other site can connect to it or show it in a frame.

Streamlit accepts a websocket from any page of its own host and ignores the port. Any program that
serves pages on the machine could then control the dashboard. The guard compares the port too.
Streamlit also keeps what anybody uploads, signed in or not, in memory; the guard refuses that.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager

from clew.errors import ClewError
from clew.ui import access

SESSION_MIB, SERVER_MIB = 512, 1024
"""Most memory for uploaded files: those of one session, and those of all."""
RECORD_BYTES = 2**14
"""More than the name, the type and the record of an uploaded file take."""
Upload = tuple[str, int]
"""The session of an uploaded file, and its size in bytes."""
HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)


def guard(dashboard: ASGIApp) -> ASGIApp:
    """Refuse a websocket from another origin, and some uploads; add the headers to responses."""
    arriving: list[Upload] = []

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not _is_own(Headers(scope=scope)):
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
            return

        async def tell(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *HEADERS]
            await send(event)

        if scope["type"] != "http" or scope["method"] != "PUT":  # only uploads are put
            await dashboard(scope, receive, tell)
            return
        session_id = scope["path"].rpartition("/")[0].rpartition("/")[2]
        upload = session_id, _size(Headers(scope=scope))
        if refusal := _refusal(upload, arriving):
            await refusal(scope, receive, tell)
            return
        arriving.append(upload)
        try:
            await dashboard(scope, receive, tell)
        finally:
            arriving.remove(upload)

    return guarded


def _size(headers: Headers) -> int:
    """Return the size of a request; one that does not say it may become as large as any."""
    said = headers.get("content-length", "")
    if said.isdecimal() and "transfer-encoding" not in headers:
        return int(said)
    return (int(st.get_option("server.maxUploadSize")) + 1) * 2**20


def _refusal(upload: Upload, arriving: Iterable[Upload]) -> PlainTextResponse | None:
    """Return the answer to an upload whose sender may not upload, or for which there is no room.

    Only its own client knows the id of a session, so the upload comes from the session's person.
    """
    server, session_id = runtime.get_instance(), upload[0]
    session, files = server.get_app_session(session_id), server.uploaded_file_mgr
    try:
        access.authorize("upload", session._user_info if session else {})
    except ClewError as error:
        return PlainTextResponse(str(error), 403)
    assert isinstance(files, MemoryUploadedFileManager)
    held = [*arriving, upload]
    for owner, own in list(files.file_storage.items()):
        held += [(owner, len(file.data) + RECORD_BYTES) for file in list(own.values())]
    for whose, taken, most in (
        ("this page", sum(each for owner, each in held if owner == session_id), SESSION_MIB),
        ("all people", sum(each for _, each in held), SERVER_MIB),
    ):
        if taken > most * 2**20:
            line = f"the uploaded files of {whose} would take more than {most} MiB; remove some"
            return PlainTextResponse(line, 413)
    return None


def _is_own(headers: Headers) -> bool:
    """Whether the request comes from a page of this address or of `server.corsAllowedOrigins`.

    Browsers always send the header `Origin`; a request without it does not come from a page.
    """
    origin, host = headers.get("origin", "").lower(), headers.get("host", "").lower()
    allowed = {str(found).lower() for found in st.get_option("server.corsAllowedOrigins")}
    return not origin or urlsplit(origin).netloc == host or origin in allowed


app = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(guard)])
