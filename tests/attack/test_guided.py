"""The guided attack finds what random bytes do not."""

import pytest

from tests.attack.guided import fuzz_guided

pytestmark = pytest.mark.slow


def passes(content: bytes) -> bytes:
    return content


def fails_behind_three_bytes(content: bytes) -> bytes:
    if content[:1] == b"c" and content[1:2] == b"l" and content[2:3] == b"e":
        raise ValueError
    return content


def test_cases_that_pass() -> None:
    fuzz_guided(passes, 200, 64)


def test_a_case_that_fails_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.attack.guided._functions", lambda: [fails_behind_three_bytes])
    with pytest.raises(AssertionError, match="see what was printed"):
        fuzz_guided(fails_behind_three_bytes, 100_000, 64)
