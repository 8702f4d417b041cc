"""A dashboard server and a browser page that shows it, for browser tests and benchmarks."""

import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
CHROMIUM = Path(os.environ.get("CLEW_CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTLED = '[data-testid="stApp"][data-test-script-state="notRunning"]'
NOTHING_MISSING = """() => ![...document.querySelectorAll(
    '[data-testid="stSkeleton"], [data-testid="stAppSkeleton"]'
)].some(found => found.offsetParent !== null)"""
HEADER_HEIGHT = 36
PATIENCE = 240_000
"""Milliseconds; the first job of a server imports torch and MLflow before a page can go on."""
# Streamlit's front end looks for the server's base path from the page's own, then above it; the
# first attempt is a 404 that the browser itself reports.
PROBES = ("/_stcore/health", "/_stcore/host-config")


@contextmanager
def serving(uri: str, *, options: Sequence[str] = (), wait: bool = True) -> Iterator[str]:
    """Serve the dashboard over a store, and yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "clew.ui.serve"]
    paths = [str(ROOT), str(ROOT / "platform"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": uri,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    process = subprocess.Popen(
        [*command, "--server.port", str(port), *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        if wait:
            wait_for(address)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE / 1000)


def wait_for(
    address: str, seconds: float = PATIENCE / 1000, trusted: ssl.SSLContext | None = None
) -> None:
    """Wait until the server answers."""
    end, health = time.monotonic() + seconds, f"{address}/_stcore/health"
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(health, timeout=2, context=trusted):
            return
        time.sleep(0.02)
    raise TimeoutError(address)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Dashboard:
    """A browser page that shows the dashboard, and the problems of this page."""

    page: Page
    address: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._on_console)
        self.page.on("request", lambda request: self._on_request(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(f"error {error}"))
        self.page.on("dialog", self._on_dialog)

    def _on_console(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        # Streamlit drops a picture in the run that replaces it; the browser may ask for it later.
        is_dropped = "/media/" in where and "404" in message.text
        if message.type == "error" and not where.endswith(PROBES) and not is_dropped:
            self.problems.append(f"console {message.text} ({where})")

    def _on_request(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:", self.address.replace("http", "ws"))):
            self.problems.append(f"request to {url}")

    def _on_dialog(self, dialog: object) -> None:
        self.problems.append("a dialog opened: a name was run as a script")
        dialog.dismiss()  # type: ignore[attr-defined]

    def open(self, path: str = "/") -> "Dashboard":
        """Open a page by its address and wait until it is drawn."""
        self.page.goto(self.address + path)
        self.page.locator("h1").first.wait_for(timeout=PATIENCE)
        return self.settle()

    def settle(self, milliseconds: int = 250) -> "Dashboard":
        """Wait until the page is drawn and stays unchanged for a moment."""
        for _ in range(2):
            self.page.wait_for_timeout(milliseconds)
            self.page.locator(SETTLED).wait_for(timeout=PATIENCE)
        # Parts of the front end are fetched when they are first drawn. Until then the page has a
        # placeholder instead of their texts and tables.
        self.page.wait_for_load_state("networkidle", timeout=PATIENCE)
        self.page.wait_for_function(NOTHING_MISSING, timeout=PATIENCE)
        return self

    def shows(self, *texts: str, seconds: float = PATIENCE / 1000) -> str:
        """Wait until one of the texts is in the page, and return the page's text.

        Raises:
            AssertionError: When none of the texts appears; the message has the page's text.
        """
        end = time.monotonic() + seconds
        while not any(text in (found := self.text()) for text in texts):
            if time.monotonic() > end:
                raise AssertionError(f"none of {texts} in the page: {found}")
            self.page.wait_for_timeout(100)
        return found

    def tick(self, table: int, row: int) -> "Dashboard":
        """Click the checkbox of a row in one of the visible tables."""
        frame = self.page.get_by_test_id("stDataFrame").filter(visible=True).nth(table)
        frame.scroll_into_view_if_needed()
        place = frame.bounding_box()
        assert place is not None
        self.page.mouse.click(place["x"] + 18, place["y"] + HEADER_HEIGHT * (row + 1.5))
        return self.settle()

    def text(self) -> str:
        """Return all text of the page."""
        return self.page.get_by_test_id("stMain").inner_text()

    def choose(self, label: str, option: str) -> "Dashboard":
        """Choose an option of a select box."""
        box = self.page.get_by_role("combobox", name=label)
        self.page.mouse.move(0, 0)  # a table under the pointer shows a tool bar that covers others
        box.click()
        box.fill(option)  # a long list draws only its visible options
        self.page.get_by_role("option", name=option, exact=True).first.click()
        return self.settle()

    def button(self, name: str) -> Locator:
        """Return a button, or an option of a segmented control."""
        plain = self.page.get_by_role("button", name=name, exact=True)
        return plain.or_(self.page.get_by_role("radio", name=name, exact=True))

    def press(self, name: str) -> "Dashboard":
        """Press a button."""
        self.button(name).first.click()
        return self.settle()

    def overflows(self) -> bool:
        """Return whether the page is wider than its window."""
        script = "document.documentElement.scrollWidth > window.innerWidth + 1"
        return bool(self.page.evaluate(script))

    def picture(self, path: Path) -> None:
        """Take a picture of the whole page."""
        block = '[data-testid="stMainBlockContainer"]'
        height = self.page.evaluate(f"document.querySelector('{block}').scrollHeight")
        size = self.page.viewport_size or {"width": 1400, "height": 900}
        self.page.set_viewport_size({"width": size["width"], "height": min(int(height) + 70, 5000)})
        self.settle(500)
        self.page.screenshot(path=path)
        self.page.set_viewport_size(size)
