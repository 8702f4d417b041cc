"""Reads tables of text: how a file separates its columns, and its values as codes of texts.

A value is never anything but its text: `NA`, `1e5` and `01` stay what they are. Blank lines and
lines of comments are left out, and every row keeps the number of its line; or nothing is left out,
and every line is a row of values (Clew's own format).
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from clew.errors import DataError, described, quoted
from clew.input_files import BLOCK_BYTES, BlockStream, line_blocks
from clew.link_prediction.column_names import is_fact

SAMPLE_LINES, SAMPLE_BYTES = 200, 2**18
MAX_COLUMNS = 1_000
GAF = ("subject_source", "subject_id", "subject_name", "predicate", "object_id", *[""] * 12)
"""Columns of GO's annotations, whose files do not name them."""
TEXT = pa.dictionary(pa.int32(), pa.string())
Texts: TypeAlias = pa.DictionaryArray
MERGED_BLOCKS = 16
"""Number of blocks that are compared with all known values at once, which is slow for many."""


class OneColumnError(DataError):
    """A text is no table."""


@dataclass(frozen=True)
class Form:
    """How a text is a table."""

    delimiter: str
    """A space stands for runs of spaces and tabs."""
    num_columns: int
    skip: int
    """Number of lines before the first row: comments, a count, the header."""
    header: tuple[str, ...]
    """Names of the columns; empty if the text has none."""
    count: int | None
    """What the first line says about the number of rows, as in OpenKE."""
    has_rows: bool
    has_comments: bool
    expected: str = ""
    """What to say of a row with other columns."""

    @property
    def is_quoted(self) -> bool:
        return self.delimiter in ",;"

    def __str__(self) -> str:
        names = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "space"}
        return f"{names[self.delimiter]}-separated"


def sniff(
    path: Path, names_columns: Callable[[Sequence[str]], object], *, header: bool = False
) -> Form:
    """Return how a text is a table, from its first lines."""
    block = next(line_blocks(path))[:SAMPLE_BYTES]
    if b"\0" in block[:1000] or block[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: not UTF-8 text; save it as UTF-8, or as Parquet")
    text = block.decode("utf-8", "replace")
    if re.match(r'\s*(<\?xml|<!DOCTYPE|<rdf:RDF|\{\s*"|\[\s*[{\[])', text):
        raise DataError(
            f"{path}: JSON or XML; expected a table, JSON Lines (.jsonl), KGX's JSON (.json), or "
            "RDF as N-Triples (.nt)"
        )
    if "\r" in text and text.count("\n") == 1:
        raise DataError(f"{path}: lines end with carriage returns; save it with line feeds")
    if re.match(r"(?i)@?(prefix|base)\s.*<|<[^<>\n]+:[^<>\n]+>\s+<[^<>\n]+>\s.*[ \t]\.\s*\n", text):
        raise DataError(f"{path}: RDF; call it .ttl (Turtle) or .nt (N-Triples)")
    lines = text.split("\n")[:-1][:SAMPLE_LINES] or [text]
    comments = next((i for i, s in enumerate(lines) if s.strip() and s[0] not in "#%!"), len(lines))
    rest = [line for line in lines[comments:] if line.strip()]
    has_count = len(rest) > 1 and re.fullmatch(r"[0-9]{1,10}", rest[0].strip()) is not None
    skip = comments + has_count
    if not rest:
        raise DataError(f"{path}: only comments; expected rows of a table")
    count = int(rest.pop(0).strip()) if has_count else None  # int() keeps control characters
    plain = [line for line in rest if not line.startswith(("#", "%", "!"))]
    delimiter, rows = _delimiter(path, plain or rest)
    divided = '(?:^|[D])"[^"D]*[D][^"]*"(?:[D]|$)'.replace("D", delimiter)
    if delimiter in "| " and any(re.search(divided, line) for line in plain):
        raise DataError(
            f"{path}: values in quotes hold spaces or bars, as between columns; save it with tabs"
        )
    first_rows = lines[comments:comments] if has_count else lines[:comments]
    names, num_left = _leading(first_rows, delimiter, len(rows[0]), names_columns, header=header)
    is_named = bool(names)
    is_header = header or (names_columns(rows[0]) and not is_fact(rows[0], rows[1:]))
    if len(rows) > 1 and all(
        (row[0], len(row)) == (str(i), len(rows[0]) + 1) for i, row in enumerate(rows) if i
    ):
        rows[0].insert(0, "")  # R numbers its rows, and does not name that column
        is_header = True
    if not is_named and not has_count and is_header:
        names, rows, skip = rows[0], rows[1:], skip + 1
    elif not has_count:
        skip = comments = num_left
    if text.startswith("!gaf-version: 2.2\n"):
        names = GAF
    if len(names or rows[0]) > MAX_COLUMNS:
        raise DataError(f"{path}: more than {MAX_COLUMNS:,} columns; expected a table of facts")
    return Form(
        delimiter, len(names or rows[0]), skip, tuple(names),
        count, bool(rows),
        comments > bool(is_named),
    )  # fmt: skip


def _leading(
    lines: Sequence[str],
    delimiter: str,
    width: int,
    names_columns: Callable[[Sequence[str]], object],
    *,
    header: bool,
) -> tuple[Sequence[str], int]:
    """Return names of columns in lines that begin with #, and how many are no rows.

    A line with as many columns as a row is a row, whose first name begins with #; or the names of
    the columns, if it says known ones, or follows `# ` in a table of more than three columns (CTD).
    """
    said = [_fields(line.lstrip("#%! "), delimiter) for line in lines]
    fitting = [i for i, fields in enumerate(said) if len(fields) == width]
    titles = [i for i in fitting if header or (width > 3 and lines[i][1:2] == " " != delimiter)]
    named = [i for i in fitting if names_columns(said[i])] or titles
    rows = [i for i in fitting if delimiter == "\t" or lines[i][1:2].strip()]
    start = named[-1] + 1 if named else 0
    return said[start - 1] if named else (), next((i for i in rows if i >= start), len(lines))


def _fields(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return [part.strip('"') for part in line.split()]
    if delimiter in "\t|":
        return [part.strip('"') for part in line.split(delimiter)]
    return next(csv.reader([line], delimiter=delimiter), [])


def _delimiter(path: Path, lines: list[str]) -> tuple[str, list[list[str]]]:
    """Return the separator that gives most lines the same number of columns, and the rows."""
    best: tuple[float, str, list[list[str]]] = (0.0, "", [])
    for delimiter in "\t,;| ":
        try:
            rows = [_fields(line, delimiter) for line in lines]
            if delimiter in ",;":
                rows = list(csv.reader([f"{line}\n" for line in lines], delimiter=delimiter))
        except csv.Error:
            continue
        (width, number), *_ = Counter(map(len, rows)).most_common(1)
        share = number / len(rows) - 0.05 * (delimiter == " ")
        if width > 1 and share > best[0]:
            best = share, delimiter, rows
    if not best[1]:
        raise OneColumnError(
            f"{path}: {quoted(lines[0])} is one column; expected columns between tabs, commas, "
            "semicolons, bars or spaces, or JSON Lines (.jsonl), Parquet (.parquet), RDF (.nt, "
            ".ttl), or OGB's arrays (.pt, .npz)"
        )
    return best[1], best[2]


def read_table(path: Path, form: Form) -> tuple[list[Texts], np.ndarray, bool]:
    """Return the columns of a table, the number of each row's line, and if lines are left out."""
    skipped: list[int] = []
    batches = list(_batches(path, form, skipped))
    columns = [
        single(pa.chunked_array([batch[i] for batch in batches], TEXT))
        for i in range(form.num_columns)
    ]
    first = form.skip + 1
    lines = np.arange(first, first + len(columns[0]) + len(skipped), dtype=np.int32)
    lines = np.delete(lines, np.array(skipped, int) - first)
    if pc.index(columns[0].dictionary, "").as_py() >= 0:
        is_filled = np.logical_or.reduce([filled(column) for column in columns])
        columns = [column.filter(pa.array(is_filled)) for column in columns]
        lines = lines[is_filled]
    has_others = len(lines) > 0 and int(lines[-1]) - form.skip > len(lines)
    for column in columns if form.is_quoted else ():  # a value can have several lines
        breaks = by_row(column, pc.count_substring(column.dictionary, "\n"))
        lines += np.cumsum(breaks, dtype=np.int32) - breaks
    return columns, lines, has_others


def filled(column: Texts) -> np.ndarray:
    """Return which values are no empty text, bool `(row,)`."""
    return by_row(column, pc.not_equal(column.dictionary, ""))


def by_row(column: Texts, by_text: np.ndarray | pa.Array) -> np.ndarray:
    """Return for each row what is known of its text, `(text,)`."""
    found: np.ndarray = np.asarray(by_text)[column.indices.to_numpy()]
    return found


def _batches(
    path: Path, form: Form, skipped: list[int] | None, block_bytes: int = BLOCK_BYTES
) -> Iterator[list[Texts]]:
    """Yield the columns of some rows at a time.

    Lines that begin with # and have other columns are comments: their numbers are added to
    `skipped`. If this is None, they are refused, as are carriage returns.
    """
    faults: list[pa_csv.InvalidRow] = []
    num_rows, ends = form.skip, [0]

    def other(row: pa_csv.InvalidRow) -> str:
        if skipped is not None and row.text.startswith(("#", "%", "!")):
            skipped.append(row.number)
            return "skip"
        faults.append(row)
        return "error"

    names = [str(number) for number in range(form.num_columns)]
    blocks = _checked(path, form, block_bytes, ends, may_have_returns=skipped is not None)
    if form.delimiter == " ":
        blocks = (
            re.sub(rb"[ \t]+", b"\t", re.sub(rb"(?m)^[ \t]+|[ \t]+$", b"", b)) for b in blocks
        )
    try:
        for batch in pa_csv.open_csv(
            pa.PythonFile(BlockStream(blocks), "r"),
            pa_csv.ReadOptions(
                column_names=names,
                skip_rows=form.skip,
                block_size=2 * block_bytes,
                use_threads=False,  # else rows have no numbers
            ),
            pa_csv.ParseOptions(
                delimiter="\t" if form.delimiter == " " else form.delimiter,
                quote_char='"' if form.is_quoted else False,
                newlines_in_values=form.is_quoted,
                ignore_empty_lines=False,
                invalid_row_handler=other,
            ),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, TEXT), null_values=[], strings_can_be_null=False
            ),
        ):
            num_rows += batch.num_rows
            yield batch.columns
        if form.is_quoted and num_rows + len(skipped or ()) < ends[0]:
            _check_quotes(path, form)
    except pa.ArrowException as error:
        if form.is_quoted:
            _check_quotes(path, form)
        if faults:
            row = faults[0]
            raise DataError(
                f"{path}, line {row.number}: {row.actual_columns} columns in {quoted(row.text)}; "
                f"expected {form.num_columns}, as in {form.expected or 'its first row'}"
            ) from None
        if "Empty CSV" not in str(error):
            raise DataError(f"{path}: not a table in UTF-8 ({described(error)})") from None


def _check_quotes(path: Path, form: Form) -> None:
    """Refuse a quote that stays open at the end of its line and takes in the rows below.

    A value may have several lines if the closing quote ends it, and no more than half of the lines
    after its first have as many columns as a row.
    """
    mark = form.delimiter.encode()
    quoted_value, rest_of_value = rb'"(?:[^"]|"")*+"', rb"[^%s]*+" % mark
    value = rb'(?:%s%s|(?:[^"%s]%s)?+)' % (quoted_value, rest_of_value, mark, rest_of_value)
    opens = re.compile(rb'(?:%s%s)*+"(?:[^"]|"")*+' % (value, mark))
    closes = re.compile(rb'(?:[^"]|"")*+"')
    first = num_lines = num_rows = 0
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    for number, line in enumerate(lines, 1):
        if first:
            closed = closes.match(line)
            after = line[closed.end() :] if closed else b""
            num_lines += 1
            num_rows += line[: closed.end() if closed else None].count(mark) == form.num_columns - 1
            if after[:1] not in (b"", mark) or (closed and 2 * num_rows > num_lines):
                break
            if closed:
                first = number if opens.fullmatch(b"-" + after) else 0
                num_lines = num_rows = 0
        elif b'"' in line and number > form.skip and opens.fullmatch(line):
            first = number
    if first:
        raise DataError(
            f"{path}, line {first}: a quote that begins a value does not end on this line, and "
            "rows follow; expected a second quote, or no quotes"
        )


def _checked(
    path: Path, form: Form, block_bytes: int, ends: list[int], *, may_have_returns: bool
) -> Iterator[bytes]:
    """Yield a file's blocks, which are UTF-8: Arrow cannot show a row that is not.

    Quotes inside of values are doubled: after a backslash (Spark, MySQL) they would end a value.
    The number of lines is added to `ends`.
    """
    num_lines, escaped = 0, re.compile(rb'\\"[^"\r\n%s]' % form.delimiter.encode())
    for block in line_blocks(path, block_bytes):
        place, wrong = block.find(b"\r"), "a carriage return ends no line; save it with line feeds"
        try:
            block.decode()
        except UnicodeDecodeError as error:
            place, wrong = error.start, f"byte 0x{block[error.start]:02x} is not UTF-8; save it so"
        if form.is_quoted and (found := escaped.search(block)):
            place, wrong = found.start(), "a backslash before a quote; write two quotes"
        if place >= 0 and not (may_have_returns and block[place] == ord("\r")):
            line = num_lines + block.count(b"\n", 0, place) + 1
            raise DataError(f"{path}, line {line}: {wrong}")
        num_lines += block.count(b"\n")
        ends[0] = num_lines
        yield block


def as_texts(values: Sequence[str]) -> Texts:
    return pa.array(values, pa.string()).dictionary_encode()


def single(column: pa.ChunkedArray) -> Texts:
    """Return a column of dictionaries as one array with one dictionary."""
    return column.unify_dictionaries().combine_chunks()


def own_form(*columns: str) -> Form:
    """Return the form of Clew's own files: columns between tabs, nothing else."""
    return Form("\t", len(columns), 0, (), None, True, False, expected="<TAB>".join(columns))


TRIPLE = own_form("head", "relation", "tail")


def read_coded(
    paths: Sequence[Path],
    form: Form,
    *,
    on_disk: Path | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[list[np.ndarray], pa.StringArray]:
    """Read files of one form; return their fields as codes of one shared list of values.

    Args:
        paths: The files.
        form: How they are tables; nothing in them is left out.
        on_disk: A new folder for files of the codes, which are then mapped into memory. If None,
            the codes are in memory.
        block_bytes: Size of a block of lines; only some are in memory at a time.

    Returns:
        The codes of each file, int32 `(line, column)`, and the distinct values `(code,)`.
    """
    parts: list[list[np.ndarray]] = [[] for _ in paths]
    values = pa.array([], pa.string())
    for number, codes, values in _coded_blocks(paths, form, block_bytes):  # noqa: B007
        if on_disk is None:
            parts[number].append(codes)
        else:
            with (on_disk / f"{number}.codes").open("ab") as file:
                file.write(codes.data)
    if on_disk is None:
        return [np.concatenate(codes) for codes in parts], values
    stored = (on_disk / f"{number}.codes" for number in range(len(paths)))
    return [np.memmap(p, np.int32, "r+").reshape(-1, form.num_columns) for p in stored], values


def _coded_blocks(
    paths: Sequence[Path], form: Form, block_bytes: int
) -> Iterator[tuple[int, np.ndarray, pa.StringArray]]:
    """Yield a file's number, the codes of some of its lines, and the values that are known by then.

    Values keep their codes.
    """
    known = pa.array([], pa.string())
    for number, path in enumerate(paths):
        batches, num_lines = _batches(path, form, None, block_bytes), 0
        while some := list(islice(batches, MERGED_BLOCKS)):
            # Known values come first, so that they keep their codes.
            chunks = [Texts.from_arrays(pa.array([], pa.int32()), known)]
            chunks += [column for batch in some for column in batch]
            merged = pa.chunked_array(chunks).unify_dictionaries()
            known = merged.chunk(0).dictionary
            empty = pc.index(known, "").as_py()
            for start in range(1, len(chunks), form.num_columns):
                columns = merged.chunks[start : start + form.num_columns]
                codes = np.stack([column.indices.to_numpy() for column in columns], axis=1)
                if empty >= 0 and len(rows := np.argwhere(codes == empty)):
                    row, column = map(int, rows[0])
                    shown = quoted([known[int(code)].as_py() for code in codes[row]])
                    raise DataError(
                        f"{path}, line {num_lines + row + 1}: no value in column {column + 1} of "
                        f"{shown}; expected {form.expected}"
                    )
                num_lines += len(codes)
                yield number, codes, known
