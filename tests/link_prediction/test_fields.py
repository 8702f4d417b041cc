"""The fast reader of tab-separated files against a plain one, and its errors for bad files."""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew import input_files as text_blocks
from clew.errors import DataError
from clew.link_prediction.tables import TRIPLE, Form, read_coded

SHARED_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=150,
)

field = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n\r\ufeff"),
    min_size=1,
    max_size=6,
)
rows = st.lists(
    st.tuples(field, st.sampled_from(["r", "Ω", "r s"]), field), min_size=1, max_size=30
)


GOOD_PIECES = [b"a\tr\tb", b"a\tr\tb\n", "é\tr\té\r\n".encode()]


def read_plainly(content: bytes, num_columns: int) -> list[list[str]]:
    """Return a file's rows of fields or an error, by a slow reference."""
    text = content.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    lines = text.removesuffix("\n").split("\n")
    found = [line.split("\t") for line in lines]
    if any(
        len(fields) != num_columns or "" in fields or "\r" in "".join(fields) for fields in found
    ):
        raise ValueError(text)
    return found


def decoded(path: Path, form: Form = TRIPLE, **options: int) -> list[list[str]]:
    (codes,), values = read_coded([path], form, **options)
    assert codes.dtype == np.int32
    names = values.to_pylist()
    assert len(set(names)) == len(names)
    return [[names[code] for code in row] for row in codes]


@SHARED_FOLDER
@given(
    rows=rows,
    line_end=st.sampled_from(["\n", "\r\n"]),
    final_end=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
    block_bytes=st.integers(64, 300),
)
def test_good_files_read_as_the_plain_reader_reads_them(
    tmp_path: Path, rows: list, line_end: str, final_end: bool, mark: str, block_bytes: int
) -> None:
    text = mark + line_end.join("\t".join(row) for row in rows) + line_end * final_end
    path = tmp_path / "train.txt"
    path.write_bytes(text.encode())
    assert decoded(path, block_bytes=block_bytes) == [list(row) for row in rows]
    assert read_plainly(text.encode(), 3) == [list(row) for row in rows]


@SHARED_FOLDER
@given(
    st.lists(
        st.sampled_from([*GOOD_PIECES, b"a", b"\t", b"\n", b"\r", b"\r\n", b"\xff"]), max_size=9
    )
)
def test_any_bytes_are_refused_or_accepted_as_by_the_plain_reader(
    tmp_path: Path, pieces: list[bytes]
) -> None:
    content = b"".join(pieces)
    path = tmp_path / "train.txt"
    path.write_bytes(content)
    try:
        expected = read_plainly(content, 3)
    except ValueError:
        with pytest.raises(DataError, match=r"train\.txt"):
            decoded(path)
    else:
        assert decoded(path) == expected


def test_files_share_one_set_of_codes(write) -> None:
    first, second = write("a.txt", "x\tr\ty\n"), write("b.txt", "y\tr\tz\nx\tr\tx\n")
    (one, two), values = read_coded([first, second], TRIPLE)
    names = values.to_pylist()
    assert [names[c] for c in one.ravel()] == ["x", "r", "y"]
    assert [names[c] for c in two.ravel()] == ["y", "r", "z", "x", "r", "x"]


def test_compressed_files_hold_the_same(write) -> None:
    content = "".join(f"e{i}\tr\te{i * 7 % 1000}\n" for i in range(3000)).encode()
    plain = decoded(write("t.txt", content))
    assert decoded(write("t.txt.gz", gzip.compress(content))) == plain
    assert decoded(write("t.txt.zst", zstandard.compress(content))) == plain
    members = gzip.compress(content[:6000]) + gzip.compress(content[6000:])
    assert decoded(write("members.txt.gz", members)) == plain
    bytewise = b"".join(gzip.compress(bytes([byte])) for byte in content[:300])
    assert decoded(write("bytewise.txt.gz", bytewise)) == decoded(write("u.txt", content[:300]))
    frames = zstandard.compress(content[:6000]) + zstandard.compress(content[6000:])
    assert decoded(write("frames.txt.zst", frames)) == plain


GOOD = "a\tr\tb\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (GOOD + "a\tb\n", 2),
        (GOOD + "a r b\n" + GOOD, 2),
        (GOOD * 3 + "a\tr\tb\tc", 4),
        (GOOD + "a\tb\na\tr\tb\tc\n", 2),  # together they have the right number of fields
        (GOOD + "\n" + GOOD, 2),
        (GOOD + "\r\n", 2),
        (GOOD + "a\t\tb\n", 2),
        (GOOD + "\tr\tb\n", 2),
        (GOOD + "a\tr\t\r\n", 2),
        (GOOD + "a\tr\tb\rc\n", 2),
        (b"a\tr\tb\n" * 2 + b"a\tr\t\xe9t\xe9\n", 3),
        ("", None),
        ("\ufeff", None),
    ],
)
def test_bad_lines_are_named(write, content: str | bytes, line: int | None) -> None:
    path = write("train.txt", content)
    with pytest.raises(DataError) as caught:
        read_coded([path], TRIPLE)
    assert str(caught.value).startswith(f"{path}, line {line}: " if line else f"{path}: ")
    assert "\n" not in str(caught.value)


def test_line_numbers_count_on_over_blocks(write) -> None:
    path = write("train.txt", GOOD * 5000 + "oops\n" + GOOD * 5000)
    with pytest.raises(DataError) as caught:
        read_coded([path], TRIPLE, block_bytes=1000)
    assert "line 5001: " in str(caught.value)


def test_offending_text_is_cut_to_a_readable_length(write) -> None:
    with pytest.raises(DataError) as caught:
        read_coded([write("train.txt", "x" * 10_000)], TRIPLE)
    assert len(str(caught.value)) < 400


def test_a_file_without_line_ends_is_no_text(write) -> None:
    with pytest.raises(DataError):
        read_coded([write("train.txt", GOOD * 2 + "x" * 400)], TRIPLE, block_bytes=100)


def test_missing_file_names_what_stands_beside_it(write, tmp_path: Path) -> None:
    write("train.txt.gz", b"")
    with pytest.raises(DataError, match=r"train\.txt"):
        read_coded([tmp_path / "train.txt"], TRIPLE)
    with pytest.raises(DataError):
        read_coded([tmp_path], TRIPLE)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compressed_files_are_refused(write, suffix: str) -> None:
    generator = np.random.default_rng(0)
    content = "".join(
        f"{i}\tr\t{j}\n" for i, j in generator.integers(0, 10**6, (20_000, 2))
    ).encode()
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    whole = compress(content)
    for name, damaged in {
        "cut": whole[: len(whole) // 2],
        "lacks_last_byte": whole[:-1],
        "plain": content,
        "with_rubbish": whole + b"rubbish",
    }.items():
        path = write(f"{name}.txt{suffix}", damaged)
        with pytest.raises(DataError) as caught:
            read_coded([path], TRIPLE)
        assert str(path) in str(caught.value)
    with pytest.raises(DataError):
        read_coded([write(f"nothing.txt{suffix}", compress(b""))], TRIPLE)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_terminals_only(write, monkeypatch, is_terminal: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(text_blocks, "PROGRESS_AFTER_SECONDS", 0.0)
    read_coded([write("train.txt", GOOD)], TRIPLE)
    assert ("train.txt" in stream.getvalue()) == is_terminal
