"""The page of MLflow keys, `docs/reference/mlflow_keys.md`, from the constants of `clew.names`."""

import ast
import inspect
import re
from collections.abc import Iterator

from clew import names

KEYS_PAGE = "docs/reference/mlflow_keys.md"
LEFT_OUT = ("EXPERIMENT", "DATA_VARIABLE", "NOT_OF_THE_AVERAGE", "_PREFIX")
"""Constants that are no key, by the end of their name."""


def keys_page(program: str) -> str:
    """Return the content of the page; `program` is what writes it."""
    lines = [
        "# MLflow keys",
        "",
        f"Written by `{program}` from `platform/clew/names.py`. Every key",
    ]
    lines += ["under which Clew writes to a tracking store; `{k}` stands for a number. Metrics of"]
    lines += ["quality have the split before them, such as `test/mrr`.", ""]
    for title, rows in _groups():
        if rows:
            entries = (f"- `{key}`" + (f": {meaning}" if meaning else "") for key, meaning in rows)
            lines += [f"## {title}", "", *entries, ""]
    return "\n".join(lines)


def _groups() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each heading of the module with its keys and what their docstrings say."""
    source = inspect.getsource(names)
    headings = [
        (number, text.removeprefix("# ").rstrip(":"))
        for number, text in enumerate(source.splitlines(), start=1)
        if re.match(r"# [A-Z]", text)
    ]
    keys = list(_keys(ast.parse(source)))
    for (start, title), (end, _) in zip(headings, [*headings[1:], (10**9, "")], strict=True):
        yield title, [(key, meaning) for line, key, meaning in keys if start < line < end]


def _keys(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and docstring of every constant that is a key."""
    for node, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(key))):
                if not name.endswith(LEFT_OUT):
                    yield node.lineno, key, _docstring(after)


def _docstring(node: ast.stmt) -> str:
    """Return the text under a constant on one line; empty if there is none."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""
