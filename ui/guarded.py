"""The dashboard behind a guard: no other site can connect to it or show it in a frame.

Streamlit accepts a websocket from any page of its own host and ignores the port. Any program that
serves pages on the machine could then control the dashboard. The guard compares the port too.

A header of each page also lists the parts of Streamlit's front end that the first page needs.
Otherwise the front end fetches a part only when it first draws it, and the table's megabyte last.
With the header, the browser fetches them while this process imports the modules of the page. It
names the largest parts only: nginx answers 502 if the headers of a page do not fit into 4 KiB.
"""

import re
from collections.abc import Iterator
from functools import cache
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
ROOT = Path(st.__file__).parent / "static"
SCRIPTS = "static/js"
MOST_BYTES = 2_500
"""Length of that header; all others together take some 400 bytes."""
PARTS = ("DataFrame", "Html", "Metric", "Selectbox", "TextInput")
"""The parts of the front end that the page Overview uses."""
IMPORTED = re.compile(r'(?:from|import)"\./([\w.\-]+\.js)"')


class Guard:
    """An ASGI application that wraps the dashboard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a websocket from another origin; add the headers to every other response."""
        if scope["type"] == "websocket" and not _is_own(Headers(scope=scope)):
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: a 403
            return

        async def tell(event: Message) -> None:
            if event["type"] == "http.response.start":
                raw = list(event.get("headers", ()))
                headers = Headers(raw=raw)
                is_html = headers.get("content-type", "").startswith("text/html")
                # A downloaded report is HTML too, but it has no scripts next to it.
                is_page = is_html and "content-disposition" not in headers
                early = [(b"link", link_header().encode())] if is_page else []
                event["headers"] = [*raw, *HEADERS, *early]
            await send(event)

        await self._app(scope, receive, tell)


def _is_own(headers: Headers) -> bool:
    """Whether the request comes from a page of this address or of `server.corsAllowedOrigins`.

    Browsers always send the header `Origin`; a request without it does not come from a page.
    """
    origin, host = headers.get("origin", "").lower(), headers.get("host", "").lower()
    allowed = {str(found).lower() for found in st.get_option("server.corsAllowedOrigins")}
    return not origin or urlsplit(origin).netloc == host or origin in allowed


@cache
def link_header() -> str:
    largest = sorted(scripts(), key=lambda name: -(ROOT / SCRIPTS / name).stat().st_size)
    links = [f"<./{SCRIPTS}/{name}>; rel=modulepreload; fetchpriority=low" for name in largest]
    while len(", ".join(links)) > MOST_BYTES:
        links.pop()
    return ", ".join(links)


def scripts() -> Iterator[str]:
    """Yield the files of `PARTS` and their imports, except those that every page loads anyway."""
    known = set(re.findall(rf"{SCRIPTS}/([\w.\-]+)", (ROOT / "index.html").read_text("utf-8")))
    folder = ROOT / SCRIPTS
    waiting = [path.name for part in PARTS for path in sorted(folder.glob(f"{part}.*.js"))]
    while waiting:
        name = waiting.pop(0)
        if name not in known:
            known.add(name)
            yield name
            waiting += IMPORTED.findall((folder / name).read_text("utf-8"))


app = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(Guard)])
