"""MkDocs hooks: they turn notebooks into pages and forbid resources from other machines.

`python -m experiments.notebooks` runs the notebooks, and keeps their outputs in .ipynb files.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
OUTSIDE = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?https?://[^"'>\s]+"""
                     r"""|<link[^>]+rel=["']?(?:stylesheet|preconnect|icon)[^>]+https?://[^"'>\s]+"""
                     r"""|@import\s+(?:url\()?["']?https?://[^"')\s]+""")  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        content = as_markdown(path)
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


def as_markdown(path: Path) -> str:
    """Return a notebook as Markdown with its outputs, and a link to the file below its title."""
    title, *cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    heading, _, text = "".join(title["source"]).partition("\n")
    link = f'<a href="{path.name}" download>Download the notebook</a>, to open it in Jupyter.'
    parts = [heading, link, text]
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [as_html(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def as_html(output: dict[str, Any]) -> str:
    """Return an output as the richest of what the notebook keeps of it."""
    data = output.get("data") or {"text/plain": output["text"]}
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            shown = re.sub(r"<style.*?</style>", "", "".join(data[kind]), flags=re.DOTALL)
            shown = shown.replace('<table border="1" class="dataframe">', "<table>")
            return f'<div class="output">{shown}</div>'
    return f'<div class="output"><pre>{html.escape("".join(data["text/plain"]))}</pre></div>'
