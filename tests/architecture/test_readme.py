"""Everything that the documentation tells users to type exists: targets, verbs, options, files."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from clew.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "experiments/README.md",
    *sorted({f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}),
]
MOST_WORDS = 500
PROGRAMS = ("make", "clew", "mlflow", "python", "python3")


def code_lines(text: str) -> Iterator[str]:
    """Yield the lines of fenced and indented code blocks; continued lines are joined."""
    fenced = False
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip().removeprefix("$ ")


def program_and_words(line: str) -> tuple[str, list[str]]:
    """Split a command line into words, without its variables and its comment."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return "", []
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return (words[0].removeprefix(".venv/bin/"), words[1:]) if words else ("", [])


def commands() -> list[tuple[str, str]]:
    """Return (document, command line) for every command of Clew in a code block."""
    return [
        (document, line)
        for document in DOCUMENTS
        for line in code_lines((ROOT / document).read_text(encoding="utf-8"))
        if program_and_words(line)[0] in PROGRAMS
    ]


def test_start_takes_two_commands_that_set_up_what_they_need() -> None:
    begin = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert re.findall(r"^    (\S.*)$", begin, re.M) == ["make demo", "make ui"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"^(demo|ui): \$\(INSTALLED\)$", makefile, re.M) == ["demo", "ui"]


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS


@pytest.mark.parametrize(("document", "line"), commands())
def test_command_exists(document: str, line: str) -> None:
    program, words = program_and_words(line)
    match program:
        case "make":
            check_make(words)
        case "clew":
            check_clew(words)
        case "mlflow":
            check_mlflow(words)
        case _:
            check_python(words)


def check_make(words: list[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in words if "=" not in word):
        assert re.search(rf"^{re.escape(target)}:", text, re.M), f"no target {target}"


def check_clew(words: list[str]) -> None:
    assert words[0] in cli.commands, f"clew has no verb {words[0]}"
    known = {option for p in cli.commands[words[0]].params for option in options_of(p)}
    given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
    assert given <= known | {"--help"}
    check_files(words[1:])


def options_of(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def check_mlflow(words: list[str]) -> None:
    if words[0] != "run":
        assert words[0] in {"server", "ui", "artifacts", "runs", "experiments", "models"}
        return
    project: dict[str, Any] = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
    entry_point = words[words.index("-e") + 1] if "-e" in words else "main"
    parameters = project["entry_points"][entry_point].get("parameters", {})
    for word in (after for before, after in pairwise(words) if before == "-P"):
        assert word.partition("=")[0] in parameters


def check_python(words: list[str]) -> None:
    if words[0] == "-m" and words[1].startswith("experiments."):
        module = ROOT / words[1].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
    check_files(words)


def check_files(words: list[str]) -> None:
    for word in words:
        path = word.rpartition("=")[2]
        if path.startswith(("experiments/", "platform/", "tests/")):
            assert (ROOT / path).exists(), f"{path} does not exist"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    folder = (ROOT / document).parent
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [
        target
        for target in targets
        # The pictures of the site are in the dashboard's folder.
        if not (folder / target).exists() and not (ROOT / "ui" / target).exists()
    ]
    named = re.findall(r"`((?:platform|ui|experiments|tests|docs)/[\w./-]+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("source", sorted((ROOT / "docs" / "notebooks").glob("*.py")))
def test_the_kept_notebook_is_its_source_with_outputs(source: Path) -> None:
    """The slow way to the same cells: the percent format, read line by line."""
    cells: list[tuple[str, list[str]]] = []
    for line in source.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            cells.append(("markdown" if line.endswith("[markdown]") else "code", []))
        else:
            kind, lines = cells[-1]
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)
    kept = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    wanted = [(kind, "\n".join(lines).strip()) for kind, lines in cells]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in kept] == wanted
    assert "image/svg+xml" in kept[-1]["outputs"][0]["data"]
