"""MkDocs hooks: they turn notebooks into pages and forbid resources from other machines.

A notebook is a Python file in percent format: `# %%` starts a code cell, and `# %% [markdown]` a
text cell. So it can be linted, executed in the tests and read in a diff like any other code.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
CELL = re.compile(r"^# %%(?: \[(markdown)\])?\n", re.MULTILINE)
OUTSIDE = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?https?://[^"'>\s]+"""
                     r"""|<link[^>]+rel=["']?(?:stylesheet|preconnect|icon)[^>]+https?://[^"'>\s]+"""
                     r"""|@import\s+(?:url\()?["']?https?://[^"')\s]+""")  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.py")):
        content = as_markdown(path.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the Markdown with links to a notebook's file replaced by links to its page."""
    return re.sub(r"(\]\(notebooks/\w+)\.py\)", r"\1.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise PluginError if a page would load a script, a style or a picture from elsewhere."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} loads a resource from another machine: {found[0]}")


def as_markdown(notebook: str) -> str:
    """Return a notebook in percent format as Markdown, with the code cells in fences."""
    _, *pieces = CELL.split(notebook)
    parts = []
    for kind, body in zip(pieces[::2], pieces[1::2], strict=True):
        if kind == "markdown":
            parts.append(re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip())
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"
