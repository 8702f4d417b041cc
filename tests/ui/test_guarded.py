"""Pages of other origins cannot control the dashboard or show it in a frame."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clew.ui import guarded
from tests.browser.dashboard import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    copy = tmp_path_factory.mktemp("guarded") / "mlflow.db"
    copy.write_bytes(store_template.read_bytes())
    with serving(f"sqlite:///{copy}") as url:
        parts = urlsplit(url)
        yield str(parts.hostname), int(parts.port or 0)


def status_of_websocket(address: tuple[str, int], origin: str | None) -> int:
    """Request a websocket as a browser does, and return the status of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    if origin is not None:
        headers["Origin"] = origin
    connection.request("GET", "/_stcore/stream", headers=headers)
    response = connection.getresponse()
    connection.close()
    return response.status


def test_a_websocket_is_for_pages_of_the_dashboard_itself(address: tuple[str, int]) -> None:
    host, port = address
    assert status_of_websocket(address, f"http://{host}:{port}") == 101
    for origin in (f"http://{host}:{port + 1}", f"http://{host}", "https://evil.org", "null"):
        assert status_of_websocket(address, origin) == 403, origin


def test_no_other_site_may_show_it_in_a_frame(address: tuple[str, int]) -> None:
    for path in ("/", "/_stcore/health", "/none"):
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", path)
        headers = connection.getresponse().headers
        connection.close()
        assert headers["X-Frame-Options"] == "SAMEORIGIN"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_pages_name_the_parts_of_the_front_end_and_other_answers_do_not(
    address: tuple[str, int],
) -> None:
    found = {}
    for path in ("/", "/compare", "/_stcore/health"):
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", path)
        found[path] = connection.getresponse().headers["Link"]
        connection.close()
    assert "DataFrame" in guarded.link_header()
    assert found == {"/": guarded.link_header(), "/compare": guarded.link_header()} | {
        "/_stcore/health": None
    }
