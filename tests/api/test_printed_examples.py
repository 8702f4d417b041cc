"""The Python examples of the README and the documentation run as printed, with fewer epochs."""

import re
from pathlib import Path
from typing import Any

import pytest

import clew
from tests.api.conftest import run_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/start.md", "docs/explain.md", "docs/serve.md")
TRAINING = 'clew.train("umls", epochs=20)'


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_run(page: str, champion: str, why: clew.Attribution) -> None:
    names: dict[str, Any] = {"clew": clew, "model": clew.load(champion)}
    if page == "README.md":
        short = 'clew.train("umls", epochs=1)'
    else:
        short, names["trained"] = "trained", clew.Run(run_of(why), "fp32", {"test/mrr": 0.5})
    code = "\n".join(blocks(page))
    assert code
    exec(compile(code.replace(TRAINING, short), page, "exec"), names)
    if page == "README.md":
        assert TRAINING in code
        assert names["run"].metrics["test/mrr"] > 0
        assert names["model"].reference == "models:/clew-umls/1"
        assert len(names["why"].proponents) == 20


def test_every_page_with_python_is_run() -> None:
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    assert {page for page in pages if blocks(page)} == set(PAGES)
