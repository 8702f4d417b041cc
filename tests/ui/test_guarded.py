"""Pages of other origins cannot control the dashboard or show it in a frame."""

import http.client
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.dashboard import serving, wait_for
from tests.ports import free_port

pytestmark = pytest.mark.slow
DOCS = Path(__file__).resolve().parents[2] / "docs"
AS_PRINTED = "127.0.0.1:8501"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
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
  {example}
}}
"""
CADDY = """
{{
  admin off
  auto_https disable_redirects
  storage file_system {folder}
}}
{example}
"""
SITE = "{$DOMAIN} {"
"""How the site of the dashboard begins in docs/deploy/Caddyfile."""


@dataclass(frozen=True)
class Proxy:
    """A proxy with TLS in front of a dashboard."""

    port: int
    base: str
    trusted: ssl.SSLContext

    def status(self, path: str, origin: str | None = None) -> int:
        """Return the status of a page; with an origin, of a websocket as a browser asks for it."""
        headers = HANDSHAKE | {"Origin": origin} if origin else {}
        where = ("127.0.0.1", self.port)
        connection = http.client.HTTPSConnection(*where, timeout=60, context=self.trusted)
        connection.request("GET", f"{self.base}{path}", headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status


def example_of(proxy: str, port: int, certificate: Path, key: Path) -> str:
    """Return what the documentation gives for a proxy, with a port and a certificate for it."""
    site = f"https://127.0.0.1:{port} {{\n  tls {certificate} {key}\n"
    if proxy == "nginx":
        text = (DOCS / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        for written, here in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/certs/clew.pem": str(certificate),
            "/etc/ssl/private/clew.key": str(key),
        }.items():
            assert written in text
            text = text.replace(written, here)
        return text
    if proxy == "caddy of compose":
        text = (DOCS / "deploy" / "Caddyfile").read_text(encoding="utf-8")
        first, _, rest = text.partition(SITE)
        text = f"{first}{site}{rest.partition(SITE.replace(' {', ':5443 {'))[0]}"
        return text.replace("dashboard:8501", AS_PRINTED)
    page = " ".join((DOCS / "expose.md").read_text(encoding="utf-8").split())
    (line,) = re.findall(r"in a Caddyfile `(reverse_proxy [^`]*)`", page)
    return f"{site}  {line}\n}}\n"


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate that signs itself, and its key."""
    openssl, folder = shutil.which("openssl"), tmp_path_factory.mktemp("certificate")
    if openssl is None:
        pytest.skip("openssl is not installed (apt-get install openssl)")
    found = folder / "certificate.pem", folder / "key.pem"
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(found[0])]
    command = [openssl, "req", *made, "-keyout", str(found[1])]
    subprocess.run(command, check=True, capture_output=True)
    return found


@pytest.fixture(params=["nginx", "caddy", "caddy of compose"])
def behind_proxy(
    request: pytest.FixtureRequest,
    store_template: Path,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxy]:
    """Serve the dashboard behind a proxy with its defaults, our example and TLS."""
    name = request.param.partition(" ")[0]
    program = shutil.which(name, path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip(f"{name} is not installed (apt-get install {name})")
    port, uri = free_port(), copy_of(store_template, tmp_path_factory)
    base = "" if request.param == "caddy of compose" else "/clew"
    options = ("--server.baseUrlPath", base.strip("/")) if base else ()
    with serving(uri, options=options, wait=False) as url:
        wait_for(f"{url}{base}")
        example = example_of(request.param, port, *certificate)
        assert AS_PRINTED in example
        example = example.replace(AS_PRINTED, urlsplit(url).netloc)
        file = tmp_path / "proxy.conf"
        file.write_text(
            (NGINX if name == "nginx" else CADDY).format(folder=tmp_path, example=example)
        )
        words = ["-c", str(file)]
        if name == "caddy":
            words = ["run", "--adapter", "caddyfile", "--config", str(file)]
        with (tmp_path / "proxy.log").open("w") as log:
            started = subprocess.Popen([program, *words], stdout=log, stderr=log)
        trusted = ssl.create_default_context(cafile=certificate[0])
        try:
            wait_for(f"https://127.0.0.1:{port}{base}", trusted=trusted)
            yield Proxy(port, base, trusted)
        finally:
            started.terminate()
            started.wait()


def status_of_websocket(address: tuple[str, int], origin: str | None) -> int:
    """Request a websocket as a browser does, and return the status of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    headers = HANDSHAKE | ({} if origin is None else {"Origin": origin})
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


def test_the_headers_of_a_page_fit_into_a_proxys_default_buffer(address: tuple[str, int]) -> None:
    for path in ("/", "/compare", "/influence"):
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", path)
        assert len(bytes(connection.getresponse().headers)) < 3_500, "nginx has 4 KiB"
        connection.close()


def test_pages_work_behind_a_proxy_with_tls(behind_proxy: Proxy) -> None:
    for page in ("/", "/compare", "/ask"):
        assert behind_proxy.status(page) == 200, page
    own = f"https://127.0.0.1:{behind_proxy.port}"
    assert behind_proxy.status("/_stcore/stream", own) == 101
    for other in ("https://evil.org", f"https://127.0.0.1:{behind_proxy.port + 1}"):
        assert behind_proxy.status("/_stcore/stream", other) == 403, other
