"""Pages of other origins cannot control the dashboard or show it in a frame."""

import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.dashboard import serving, wait_for
from tests.ports import free_port

pytestmark = pytest.mark.slow
DOCS = Path(__file__).resolve().parents[2] / "docs"
AS_PRINTED = "127.0.0.1:8501"
NGINX = """
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
    {example}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
  storage file_system {folder}
}}
http://127.0.0.1:{port} {{
  {example}
}}
"""


def example_of(proxy: str) -> str:
    """Return the lines that the documentation gives for a proxy."""
    if proxy == "nginx":
        return (DOCS / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    page = " ".join((DOCS / "expose.md").read_text(encoding="utf-8").split())
    (line,) = re.findall(r"in a Caddyfile `(reverse_proxy [^`]*)`", page)
    return str(line)


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


@pytest.fixture(params=["nginx", "caddy"])
def behind_proxy(
    request: pytest.FixtureRequest,
    store_template: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, int]]:
    """Serve the dashboard under a path, behind a proxy with its defaults and our example."""
    program = shutil.which(request.param, path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip(f"{request.param} is not installed (apt-get install {request.param})")
    port, uri = free_port(), copy_of(store_template, tmp_path_factory)
    with serving(uri, options=("--server.baseUrlPath", "clew"), wait=False) as url:
        wait_for(f"{url}/clew")
        example = example_of(request.param)
        assert AS_PRINTED in example
        example = example.replace(AS_PRINTED, urlsplit(url).netloc)
        template, file = (NGINX if request.param == "nginx" else CADDY), tmp_path / "proxy.conf"
        file.write_text(template.format(folder=tmp_path, port=port, example=example))
        words = ["-c", str(file)]
        if request.param == "caddy":
            words = ["run", "--adapter", "caddyfile", "--config", str(file)]
        with (tmp_path / "proxy.log").open("w") as log:
            proxy = subprocess.Popen([program, *words], stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}/clew")
            yield "127.0.0.1", port
        finally:
            proxy.terminate()
            proxy.wait(20)


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


def status_of(address: tuple[str, int], path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_pages_work_behind_proxy_under_a_path_of_their_own(behind_proxy: tuple[str, int]) -> None:
    host, port = behind_proxy
    for page in ("/clew/", "/clew/compare", "/clew/ask"):
        assert status_of(behind_proxy, page) == 200, page
    assert status_of_websocket(behind_proxy, f"http://{host}:{port}", "/clew") == 101
    assert status_of_websocket(behind_proxy, "http://evil.org", "/clew") == 403
