"""Rules that a reader may rely on everywhere: who prints, no pickle, no path of one machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

MAY_PRINT = {
    f"platform/clew/cli/{name}.py"
    for name in [
        "__init__",
        "explanations",
        "models",
        "options",
        "project",
        "reference",
        "training",
    ]
}
# Errors go to standard error in one line, from the entry point of the command line.
MAY_WRITE_STREAMS = MAY_PRINT | {"platform/clew/__main__.py", "platform/clew/warm.py"}
PICKLE_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
PICKLE_CALLS = {"torch.load", "torch.save", "read_pickle", "to_pickle"}


def _name_of(node: ast.expr) -> str:
    """Return a dotted name such as `torch.load`, as far as it is one."""
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def printing(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) in {"print", "click.echo"}:
            yield f"line {node.lineno}: {_name_of(node.func)}"
        if isinstance(node, ast.Attribute) and _name_of(node) in {"sys.stdout", "sys.stderr"}:
            yield f"line {node.lineno}: {_name_of(node)}"


def pickling(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]}
        else:
            names = set()
        for name in names & PICKLE_MODULES:
            yield f"line {node.lineno}: imports {name}"
        if isinstance(node, ast.Call):
            called = _name_of(node.func)
            if any(called == name or called.endswith(f".{name}") for name in PICKLE_CALLS):
                yield f"line {node.lineno}: {called}"
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if (keyword.arg, value) in {("allow_pickle", True), ("weights_only", False)}:
                    yield f"line {node.lineno}: {keyword.arg}={value}"


def test_only_the_command_line_prints(root: Path, source_files: list[Path]) -> None:
    found = {}
    for path in source_files:
        name = str(path.relative_to(root))
        uses = list(printing(ast.parse(path.read_text(encoding="utf-8"))))
        if name in MAY_WRITE_STREAMS:
            uses = [use for use in uses if not use.endswith(("sys.stdout", "sys.stderr"))]
        if uses and name not in MAY_PRINT:
            found[name] = uses
    assert found == {}


def test_nothing_is_pickled(root: Path, source_files: list[Path]) -> None:
    scripts = [*(root / "experiments").rglob("*.py"), *(root / ".ci").rglob("*.py")]
    found = {}
    for path in [*source_files, *scripts]:
        if uses := list(pickling(ast.parse(path.read_text(encoding="utf-8")))):
            found[str(path.relative_to(root))] = uses
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "frame.to_pickle(path)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_scan_sees_pickle(code: str) -> None:
    assert list(pickling(ast.parse(code)))


@pytest.mark.parametrize("code", ["print(1)", "click.echo(1)", "sys.stdout.write('x')"])
def test_the_scan_sees_printing(code: str) -> None:
    assert list(printing(ast.parse(code)))


# What means something on one machine or to one writer only.
FOREIGN = {
    "a folder beside the project": re.compile(r"\.\./shared"),
    "an absolute path of one machine": re.compile(r"(?<![\w.)])/(work|root|home|opt)/\w"),
    "an issue number without its repository": re.compile(r"\bissues? (#\s?)?\d", re.IGNORECASE),
    "talk of how the text came about": re.compile(
        r"\b(this|previous|next|earlier|another) session\b", re.IGNORECASE
    ),
}
MAY_NAME = {"a folder beside the project": {".ci/run"}}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(root: Path, project_files: list[Path], what: str) -> None:
    found = []
    for path in project_files:
        name = str(path.relative_to(root))
        if path.suffix in {".parquet", ".gz", ".zst", ".png", ".svg"} or path == Path(__file__):
            continue
        if name in MAY_NAME.get(what, set()) or "bundled" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if FOREIGN[what].search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_text_scan_sees_what_it_looks_for() -> None:
    samples = ["a ../shared/data", "run /work/main", "see issue 12", "the next session will"]
    for pattern, sample in zip(FOREIGN.values(), samples, strict=True):
        assert pattern.search(sample)
