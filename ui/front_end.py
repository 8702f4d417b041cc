"""Tells the browser early which parts of Streamlit's front end the first page needs.

The front end fetches a part of itself when it is first drawn, the table's megabyte last of all.
The browser can have them before: while it waits for the page, this process imports what that needs.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import streamlit

ROOT = Path(streamlit.__file__).parent / "static"
SCRIPTS = "static/js"
PARTS = ("DataFrame", "Html", "Metric", "Selectbox", "TextInput")
"""What the page Overview consists of."""
IMPORTED = re.compile(r'(?:from|import)"\./([\w.\-]+\.js)"')


@cache
def link_header() -> str:
    """Return the value of a header `Link` that names the scripts of `PARTS`."""
    how = "rel=modulepreload; fetchpriority=low"
    return ", ".join(f"<./{SCRIPTS}/{name}>; {how}" for name in scripts())


def scripts() -> Iterator[str]:
    """Yield the files of `PARTS` and all that they import, less what every page has anyway."""
    known = set(re.findall(rf"{SCRIPTS}/([\w.\-]+)", (ROOT / "index.html").read_text("utf-8")))
    folder = ROOT / SCRIPTS
    waiting = [path.name for part in PARTS for path in sorted(folder.glob(f"{part}.*.js"))]
    while waiting:
        name = waiting.pop(0)
        if name not in known:
            known.add(name)
            yield name
            waiting += IMPORTED.findall((folder / name).read_text("utf-8"))
