"""Names from data are shown literally in HTML and Markdown, whatever their source."""

import re
from pathlib import Path

import pytest

from clew.runs.reading.comparison import Comparison, Group
from clew.ui.components import basics, comparison_table

ROOT = Path(__file__).parents[2]
HOSTILE = [
    "<script>alert(1)</script>",
    "[x](javascript:1)",
    "![x](http://example.org/x.png)",
    "**bold** _it_ `code` ~~no~~ $x^2$",
    ":red[text] :material/home: :smile:",
    "# heading",
    "a\n\n- list",
    "{head} {0} %s",
    "http://example.org",
    "&lt;b&gt;",
    "\\",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_html_is_escaped(name: str) -> None:
    html = basics.triple(name, "treats", name)
    assert "<script" not in html
    assert html.count("<b>") == 2
    assert basics.fill("<i>{x}</i>", x=name).startswith("<i>")


def test_values_cannot_fill_other_places() -> None:
    assert basics.fill("<i>{a}{b}</i>", a="{b}", b="<b>") == "<i>{b}&lt;b&gt;</i>"


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_is_escaped(name: str) -> None:
    text = basics.markdown(name)
    assert "\n" not in text
    assert re.search(r"(?<!\\)[<\[*_`$!#~|]", text.replace("\\\\", "")) is None
    assert ":smile:" not in text


def test_the_comparison_is_escaped() -> None:
    group = Group("<script>alert(1)</script>", ("a",))
    html = comparison_table.html(Comparison((group,), (), {}, group.label), "ratio", {})
    assert "<script" not in html


def test_html_comes_from_one_place() -> None:
    """Only `basics` creates HTML; all other code passes only `Markup` to `st.html`."""
    found = []
    for path in (ROOT / "ui").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "unsafe_allow_html" not in text, path
        if path.name != "basics.py":
            found += [(path.name, call) for call in re.findall(r"st\.html\((.*)", text)]
    known = ("title)", "basics.triple(", "html(found, change, picked)")
    assert all(call.startswith(known) for _, call in found), found


@pytest.mark.parametrize("name", ["overview", "influence", "compare"])
def test_no_page_interprets_names(name: str) -> None:
    source = (ROOT / "ui" / "views" / f"{name}.py").read_text(encoding="utf-8")
    assert "st.markdown(" not in source
