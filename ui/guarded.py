"""The dashboard behind a guard: no other site may talk to it or show it in a frame.

What it answers says besides which parts of the front end to fetch early (`front_end`).

Streamlit takes a websocket from any page of its own host, whatever the port: every program that
serves pages on the machine could drive the dashboard. The guard compares the port too.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from starlette.middleware import Middleware

from clew.ui.front_end import link_header

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

HEADERS = (
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)


class Guard:
    """An ASGI application before the dashboard's.

    Args:
        app: The dashboard.
    """

    def __init__(self, app: Callable[[Event, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Refuse a websocket of another origin; add what browsers must know to every answer."""
        if scope["type"] == "websocket" and not _is_own(dict(scope["headers"])):
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
            return

        async def tell(event: Event) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *HEADERS, *_early(event)]
            await send(event)

        await self._app(scope, receive, tell)


def _early(event: Event) -> list[tuple[bytes, bytes]]:
    """Return what tells the browser to fetch parts of the front end, if the answer is a page.

    A downloaded report is HTML too, but no page: beside it are no scripts.
    """
    headers = dict(event.get("headers", ()))
    is_html = headers.get(b"content-type", b"").startswith(b"text/html")
    is_page = is_html and b"content-disposition" not in headers
    return [(b"link", link_header().encode())] if is_page else []


def _is_own(headers: dict[bytes, bytes]) -> bool:
    """Whether a page of this very address asks, or one of `server.corsAllowedOrigins`.

    Browsers always say which page asks; what says nothing is no page.
    """
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    host = headers.get(b"host", b"").decode("latin-1").lower()
    allowed = {str(found).lower() for found in st.get_option("server.corsAllowedOrigins")}
    return not origin or urlsplit(origin).netloc == host or origin in allowed


app = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(Guard)])
