"""Finds barriers of a page for people with low vision or without a mouse, one line per finding.

axe-core checks the current page by all of its rules except the experimental ones. It cannot check
the contrast of text in charts, which are SVG, and does not press Tab: this module checks both.
"""

from io import BytesIO

import numpy as np
from axe_playwright_python.base import AXE_SCRIPT
from PIL import Image
from playwright.sync_api import FloatRect, Page

from tests.browser.dashboard import PATIENCE

NUM_CHARACTERS = 120
# Streamlit fades what a running script has not drawn again. axe-core starts in the same task that
# finds nothing faded. It finds nothing inside a chart and needs a long time for it.
RUN = """() => document.querySelector('[data-test-script-state="notRunning"]')
    && !document.querySelector('[data-stale="true"]')
    && document.getAnimations().every(
        found => !(found instanceof CSSTransition) || found.playState !== 'running'
    )
    && axe.run({exclude: [['svg.marks > *']]}, {reporter: 'no-passes', preload: false})"""
LEAST_CONTRAST = 4.5
PALE_TEXT = """least => {
    const numbers = colour => (colour.match(/[0-9.]+/g) || []).map(Number);
    const light = rgb => rgb
        .map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = numbers(getComputedStyle(document.querySelector('.stApp')).backgroundColor);
    const contrast = style => {
        const [r, g, b, a = 1] = numbers(style.fill);
        const seen = a * style.opacity * style.fillOpacity;
        const mixed = [r, g, b].map((v, place) => v * seen + behind[place] * (1 - seen));
        const [low, high] = [light(mixed), light(behind)].sort((one, other) => one - other);
        return (high + 0.05) / (low + 0.05);
    };
    return [...document.querySelectorAll('svg.marks text')]
        .map(text => [text.textContent, getComputedStyle(text)])
        .filter(([text, style]) => text.trim() && style.opacity > 0 && contrast(style) < least)
        .map(([text, style]) => `${text}: ${contrast(style).toFixed(2)} : 1`);
}"""


def findings(page: Page) -> list[str]:
    """Return the findings of a page: rule, place, element and axe-core's message."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    checked = page.wait_for_function(RUN, timeout=PATIENCE).json_value()
    found = [
        f"{violation['id']} | {_where(node['target'])} | {_short(node['html'])} | {_said(node)}"
        for violation in checked["violations"]
        for node in violation["nodes"]
    ]
    pale = page.evaluate(PALE_TEXT, LEAST_CONTRAST)
    return [*found, *(f"chart-contrast | svg.marks text | {text}" for text in pale)]


def _where(target: list[object]) -> str:
    return " ".join(map(str, target))


def _short(text: str) -> str:
    return " ".join(text.split())[:NUM_CHARACTERS]


def _said(node: dict[str, list[dict[str, str]]]) -> str:
    checks = [*node["any"], *node["all"], *node["none"]]
    return _short("; ".join(check["message"] for check in checks))


FOCUSED = """() => {
    const found = document.activeElement;
    return found === document.body ? null : found;
}"""
PLACE = """(found, margin) => {
    const place = found.getBoundingClientRect();
    const x = Math.max(0, place.x - margin), y = Math.max(0, place.y - margin);
    return {x, y, width: place.right + margin - x, height: place.bottom + margin - y};
}"""
NAME = "found => found.ariaLabel || found.innerText.slice(0, 40) || found.tagName"
STILL = "() => document.getAnimations().every(found => found.playState !== 'running')"
MARGIN = 5
LEAST_RING = 3.0
LEAST_PIXELS = 40
MAX_STOPS = 80


def focus_stops(page: Page) -> dict[str, bool]:
    """Press Tab through a page; return for each control, by name, whether its focus is visible.

    The focus is visible if enough pixels have at least three times, or at most a third of, the
    luminance that they have without the focus.
    """
    stops: dict[str, bool] = {}
    for _ in range(MAX_STOPS):
        page.keyboard.press("Tab")
        control = page.evaluate_handle(FOCUSED).as_element()
        if control is None:
            return stops
        if control.evaluate("found => found.closest('canvas') !== null"):
            continue
        place = control.evaluate(PLACE, MARGIN)
        focused = _light(page, place)
        control.evaluate("found => found.blur()")
        without = _light(page, place)
        control.focus()
        stops[control.evaluate(NAME)] = _differs(focused, without)
    raise AssertionError(f"after {MAX_STOPS} times Tab the end of the page is not reached: {stops}")


def _differs(one: np.ndarray, other: np.ndarray) -> bool:
    ratio = (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)
    return int((ratio >= LEAST_RING).sum()) >= LEAST_PIXELS


def _light(page: Page, place: FloatRect) -> np.ndarray:
    """Return the relative luminance of the pixels of a place."""
    page.wait_for_function(STILL)
    taken = page.screenshot(clip=place)
    shares = np.asarray(Image.open(BytesIO(taken)).convert("RGB")) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    light: np.ndarray = linear @ np.array([0.2126, 0.7152, 0.0722])
    return light
