"""Reads parts of an influence report's JSON file without parsing all of it.

A report of 100 tests and 1,000 facts each has 60 MB, nearly all of it the facts, and parsing it
takes seconds. The file is cut at its structure instead: a key with its quotes, such as `"test"`
before a colon, cannot occur inside a JSON string, where quotes are escaped. Only the parts that
are wanted are then parsed and checked. A file that is laid out otherwise is parsed as a whole.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import DataError
from clew.runs.records import InfluenceReport, decode_influence

_TESTS = re.compile(r'"tests"\s*:\s*\[')
_TEST = re.compile(r'"test"\s*:')
_FACTS = re.compile(r',\s*"(?:proponents|opponents)"\s*:')
_NO_FACTS: dict[str, list[object]] = {"proponents": [], "opponents": []}


@dataclass(frozen=True)
class Cut:
    """A report's text in parts: the text around the tests, and the text of each test."""

    frame: str
    tests: tuple[str, ...]


def read_report_head(path: Path) -> InfluenceReport:
    """Return the report without its training facts.

    Raises:
        DataError: the file is no report, or of another schema version.
    """
    text = _read(path)
    cut = cut_report(text)
    if cut is not None:
        try:
            content = json.loads(cut.frame)
            content["tests"] = [_parse_head(test) for test in cut.tests]
            return decode_influence(content, source=str(path))
        except (ValueError, TypeError, RecursionError):  # cut wrongly, or no report: say which
            pass
    content = _parse(path, text)
    if isinstance(content, dict) and isinstance(content.get("tests"), list):
        content["tests"] = [_without_facts(test) for test in content["tests"]]
    return decode_influence(content, source=str(path))


def read_report_test(path: Path, index: int) -> InfluenceReport:
    """Return the report with one of its tests and that test's training facts.

    Raises:
        DataError: the file is no report, or has no such test.
    """
    text = _read(path)
    cut = cut_report(text)
    if cut is not None and 0 <= index < len(cut.tests):
        try:
            content = json.loads(cut.frame) | {"tests": [json.loads(cut.tests[index])]}
            return decode_influence(content, source=str(path))
        except (ValueError, TypeError, RecursionError):
            pass
    content = _parse(path, text)
    report = decode_influence(content, source=str(path))
    if not 0 <= index < len(report.tests):
        raise DataError(f"{path}: no test triple {index}; it has {len(report.tests)}")
    return decode_influence(content | {"tests": [content["tests"][index]]}, source=str(path))


def cut_report(text: str) -> Cut | None:
    """Cut a report at its tests; None if its `tests` are not the last of it."""
    opening = _TESTS.search(text)
    closing = text.rfind("]")
    if opening is None or closing < opening.end():
        return None
    starts = list(_test_starts(text, opening.end()))
    if not starts:
        return None
    ends = [*starts[1:], closing]
    tests = (text[a:b].rstrip().removesuffix(",") for a, b in zip(starts, ends, strict=True))
    return Cut(text[: opening.end()] + text[closing:], tuple(tests))


def _test_starts(text: str, position: int) -> Iterator[int]:
    """Yield where the objects begin whose first key is `test`."""
    for found in _TEST.finditer(text, position):
        brace = text.rfind("{", position, found.start())
        if brace >= 0 and not text[brace + 1 : found.start()].strip():
            yield brace


def _parse_head(test: str) -> Any:
    """Parse a test's text up to its facts."""
    facts = _FACTS.search(test)
    head = json.loads(test if facts is None else test[: facts.start()] + "}")
    return _without_facts(head)


def _without_facts(test: Any) -> Any:
    return {**test, **_NO_FACTS} if isinstance(test, dict) else test


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; expected an influence report") from None


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); expected an influence report") from None
