"""Extracts the guides' commands from their text."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "guides"
GUIDES = tuple(path.stem for path in sorted(FOLDER.glob("*.md")))
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
CONTINUED = re.compile(r"\\[ \t]*(?:#[^\n]*)?\n")
"""A backslash at the end of a line; in the guides, comments can follow it."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a guide."""

    guide: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.guide}, block {self.number}"


@dataclass(frozen=True)
class Command:
    """A command line of a guide."""

    guide: str
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)

    def __str__(self) -> str:
        return f"{self.guide}: {self.line}"


def blocks() -> list[Block]:
    """Return every fenced block of the five guides."""
    return [
        Block(guide, number, language, text)
        for guide in GUIDES
        for number, (language, text) in enumerate(FENCE.findall(_text(guide)), start=1)
    ]


def _text(guide: str) -> str:
    return (FOLDER / f"{guide}.md").read_text(encoding="utf-8")


def commands() -> list[Command]:
    """Return the command lines of all blocks, without duplicates in a guide."""
    found = [Command(block.guide, line) for block in blocks() for line in lines_of(block)]
    return list(dict.fromkeys(found))


def lines_of(block: Block) -> Iterator[str]:
    """Yield a block's command lines without comments; continued lines are joined."""
    if block.language == "bash":
        for line in CONTINUED.sub(" ", block.text).splitlines():
            if words := shlex.split(line, comments=True):
                yield shlex.join(words)
    # The command that starts several processes is in a comment between lines of Python.
    yield from re.findall(r"^# (torchrun .*)$", block.text, re.M)
