"""Tables that people open in a spreadsheet: none of their cells runs as a formula.

A spreadsheet runs a cell that begins with one of `= + - @`, a tab or a line end. Where an
importer splits a cell at `;`, a tab or a line end, so can what follows. Such a place gets an
apostrophe, also if it has some already. So `restored` gives back every text exactly as it was.
Numbers are not changed, negative ones neither.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from clew import names

_WIDE = "\uff1d\uff0b\uff0d\uff20"  # the wide forms of = + - @, which Japanese spreadsheets run
_FORMULA = f"'*[=+\\-@\t\r\n{_WIDE}]"
_PLACE = "(?:^|(?<=[;\t\r\n]))"
_ARMED = re.compile(f"{_PLACE}(?={_FORMULA})")
_DISARMED = re.compile(f"{_PLACE}'(?={_FORMULA})")
_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MAY_CHANGE = f"(^|[;\t\r\n]){_FORMULA}"


def disarmed(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs as a formula."""
    return text if _NEGATIVE_NUMBER.fullmatch(text) else _ARMED.sub("'", text)


def restored(cell: str) -> str:
    return _DISARMED.sub("", cell)


def changed(texts: pa.StringArray, change: Callable[[str], str]) -> pa.StringArray:
    """Return texts after `disarmed` or `restored`; only those that can change are looked at."""
    found = pc.fill_null(pc.match_substring_regex(texts, _MAY_CHANGE), False)
    if not pc.any(found).as_py():
        return texts
    replaced = [change(text) for text in texts.filter(found).to_pylist()]
    return pc.replace_with_mask(texts, found, pa.array(replaced, texts.type))


def csv_text(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow([disarmed(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()


@dataclass(frozen=True)
class FactList:
    """A list of facts for `data.exclude`: a line `head<TAB>relation<TAB>tail` for each.

    The lines before them say which data the facts are from, and whether names are disarmed. A list
    that says nothing has every name as it is.
    """

    facts: list[str]
    """The facts' lines, with the names of the data set."""
    origin: dict[str, str] = field(default_factory=dict)
    """What the first lines say: the prefixes in `names.LIST_ORIGIN` to their values."""
    first_line: int = 1
    """Number of the first fact's line."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a list; its facts can be malformed."""
        # Names can contain characters that `splitlines` treats as line ends.
        lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n") if text]
        said: dict[str, str] = {}
        for line in lines:
            key = next((key for key in names.LIST_ORIGIN if line.startswith(key)), None)
            if key is None or "\t" in line:
                break
            said[key] = line.removeprefix(key).strip()
        facts = lines[len(said) :]
        if names.LIST_APOSTROPHES_PREFIX in said:
            facts = ["\t".join(map(restored, fact.split("\t"))) for fact in facts]
        return cls(facts, said, len(said) + 1)

    def text(self) -> str:
        facts = ["\t".join(map(disarmed, fact.split("\t"))) for fact in self.facts]
        said = {key: " ".join(value.split()) for key, value in self.origin.items() if value}
        if facts != self.facts:
            said[names.LIST_APOSTROPHES_PREFIX] = "one before = + - @ is not part of a name"
        else:
            said.pop(names.LIST_APOSTROPHES_PREFIX, None)
        lines = [*(f"{key}{value}" for key, value in said.items()), *facts]
        return "".join(f"{line}\n" for line in lines)
