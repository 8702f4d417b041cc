"""Invalid input: good files with damage, and text that is meant to cause errors."""

import copy
import json
import re
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

NESTED = 2_000
HOSTILE_TEXTS = (
    "",
    " ",
    "\r",
    "\n",
    "\t",
    "\x00",
    "\x1b[2J",
    "\u2028",
    "\u202e",
    "\ufeff",
    "\ud800",
    "null",
    "-Infinity",
    "NaN",
    "../../x",
    "/dev/stdin",
    "%s%n{0}",
    "<script>",
    "' OR 1=1 --",
    "ä" * 300,
    "x" * 5_000,
    "9" * 5_000,
)
HOSTILE_NUMBERS = (
    0, -1, 1, 2, 0.5, -0.0, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**70, 10**400, 1e308,
)  # fmt: skip
DEEP = tuple(f"\0deep {depth}" for depth in (60, 250, 450, 900))
"""Texts that `as_json` replaces by nested lists of this depth."""
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
TOKENS = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n", b"\t", b"\t\t", b'"', b"'", b"{",
    b"[", b"}", b"]", b",", b":", b"-", b"&a ", b"*a", b"!!", b"<<: ", b"null", b"-Infinity",
    b"NaN", b"1e999", b"-1", b"4294967296", b"9223372036854775808", b"\\u0000", b"\\ud800",
    b"\xe2\x80\xa8", b"0x", b"PAR1", b"x" * 400, b"[" * NESTED, b'{"a":' * NESTED,
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(HOSTILE_TEXTS),
    st.text(max_size=20),
    st.text("abc\t\r\n,.\u2028\x85", max_size=8),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HOSTILE_NUMBERS + NOT_FINITE + DEEP),
    st.integers(-5, 200),
    st.floats(),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def damaged_bytes(draw: DrawFn, content: bytes, *, most: int = 4) -> bytes:
    """Return a file's content with up to `most` changes to bits, pieces or its end."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(0, most))):
        place = draw(st.integers(0, max(len(changed) - 1, 0)))
        match draw(st.integers(0, 6)):
            case 0 if changed:
                changed[place] ^= 1 << draw(st.integers(0, 7))
            case 1:
                changed[place:place] = draw(st.sampled_from(TOKENS))
            case 2:
                token = draw(st.sampled_from(TOKENS))
                changed[place : place + len(token)] = token
            case 3:
                del changed[place : place + draw(st.integers(1, 40))]
            case 4:
                del changed[place:]
            case 5:
                piece = changed[place : place + draw(st.integers(1, 200))]
                changed += piece
            case 6:
                changed[place:place] = draw(st.binary(max_size=12))
    return bytes(changed)


@st.composite
def damaged_value(draw: DrawFn, content: Any, *, most: int = 3) -> Any:
    """Return a JSON value with a few of its parts replaced, removed or added."""
    changed = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, most))):
        changed = _damage_one(draw, changed)
    return changed


def _damage_one(draw: DrawFn, content: Any) -> Any:
    """Walk down to a random part, and change it."""
    if isinstance(content, dict) and content and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(content)))
        match draw(st.integers(0, 9)):
            case 0:
                del content[key]
            case 1:
                content[draw(texts)] = draw(values)
            case _:
                content[key] = _damage_one(draw, content[key])
        return content
    if isinstance(content, list) and content and draw(st.integers(0, 4)):
        place = draw(st.integers(0, min(len(content) - 1, 50)))
        match draw(st.integers(0, 9)):
            case 0:
                del content[place]
            case 1:
                content.insert(place, draw(values))
            case _:
                content[place] = _damage_one(draw, content[place])
        return content
    return draw(values)


def as_json(content: Any) -> bytes:
    """Write JSON as careless programs do: with NaN, lone surrogates and deep nesting."""
    text = json.dumps(content)
    text = re.sub(r'"\\u0000deep (\d+)"', lambda m: "[" * int(m[1]) + "]" * int(m[1]), text)
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged_json(draw: DrawFn, content: Any) -> bytes:
    """Return a JSON file with unexpected values or damaged text."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged_bytes(as_json(content)))
    return as_json(draw(damaged_value(content)))
