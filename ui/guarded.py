"""The dashboard behind a guard: no other site can connect to it or show it in a frame.

Streamlit accepts a websocket from any page of its own host and ignores the port. Any program that
serves pages on the machine could then control the dashboard. The guard compares the port too.
"""

from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)


def guard(dashboard: ASGIApp) -> ASGIApp:
    """Refuse a websocket from another origin; add the headers to every other response."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not _is_own(Headers(scope=scope)):
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
            return

        async def tell(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *HEADERS]
            await send(event)

        await dashboard(scope, receive, tell)

    return guarded


def _is_own(headers: Headers) -> bool:
    """Whether the request comes from a page of this address or of `server.corsAllowedOrigins`.

    Browsers always send the header `Origin`; a request without it does not come from a page.
    """
    origin, host = headers.get("origin", "").lower(), headers.get("host", "").lower()
    allowed = {str(found).lower() for found in st.get_option("server.corsAllowedOrigins")}
    return not origin or urlsplit(origin).netloc == host or origin in allowed


app = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(guard)])
