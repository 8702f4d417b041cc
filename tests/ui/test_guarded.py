"""Pages of other origins cannot control the dashboard or show it in a frame."""

import http.client
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clew.ui import guarded
from tests.browser.dashboard import serving, wait_for
from tests.ports import free_port

pytestmark = pytest.mark.slow
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
PROXY = """
pid {folder}/pid;
error_log {folder}/error.log;
daemon off;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /clew/ {{
      proxy_pass http://{upstream};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection "upgrade";
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def address(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    with serving(copy_of(store_template, tmp_path_factory)) as url:
        parts = urlsplit(url)
        yield str(parts.hostname), int(parts.port or 0)


def copy_of(template: Path, folders: pytest.TempPathFactory) -> str:
    copy = folders.mktemp("guarded") / "mlflow.db"
    copy.write_bytes(template.read_bytes())
    return f"sqlite:///{copy}"


@pytest.fixture
def behind_nginx(
    store_template: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """Serve the dashboard under a path, behind a proxy with its default buffers."""
    if NGINX is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")
    port, uri = free_port(), copy_of(store_template, tmp_path_factory)
    with serving(uri, options=("--server.baseUrlPath", "clew"), wait=False) as url:
        wait_for(f"{url}/clew")
        content = PROXY.format(folder=tmp_path, port=port, upstream=urlsplit(url).netloc)
        (tmp_path / "nginx.conf").write_text(content)
        nginx = subprocess.Popen([NGINX, "-c", tmp_path / "nginx.conf"])
        try:
            wait_for(f"http://127.0.0.1:{port}/clew")
            yield "127.0.0.1", port
        finally:
            nginx.terminate()
            nginx.wait(20)


def status_of_websocket(address: tuple[str, int], origin: str | None, base: str = "") -> int:
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
    connection.request("GET", f"{base}/_stcore/stream", headers=headers)
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


def status_of(address: tuple[str, int], path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_headers_of_a_page_fit_into_a_proxys_default_buffer(address: tuple[str, int]) -> None:
    for path in ("/", "/compare", "/influence"):
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", path)
        assert len(bytes(connection.getresponse().headers)) < 3_500, "nginx has 4 KiB"
        connection.close()


def test_pages_work_behind_nginx_under_a_path_of_their_own(behind_nginx: tuple[str, int]) -> None:
    host, port = behind_nginx
    for page in ("/clew/", "/clew/compare", "/clew/ask"):
        assert status_of(behind_nginx, page) == 200, page
    assert status_of_websocket(behind_nginx, f"http://{host}:{port}", "/clew") == 101
    assert status_of_websocket(behind_nginx, "http://evil.org", "/clew") == 403
