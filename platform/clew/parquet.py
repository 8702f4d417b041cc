"""Reads columns of Parquet files from any source, with the expected types or an error."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import DataError, described


def columns_of(path: Path, expected: str) -> list[str]:
    """Return the names of a file's columns.

    Args:
        path: The file.
        expected: What the file should be, for the message.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        names: list[str] = pq.read_schema(path).names
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: not {expected} ({described(error)})") from None
    return names


def check_unpacked(path: Path, expected: str, most_bytes: int) -> None:
    """Refuse a file whose footer names more uncompressed bytes than a reader can hold.

    Raises:
        DataError: If the file is too large, or cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(i).total_byte_size for i in groups)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: not {expected} ({described(error)})") from None
    if size > most_bytes:
        raise DataError(
            f"{path}: {size / 2**20:,.0f} MiB without compression; expected {expected} of at most "
            f"{most_bytes / 2**20:,.0f} MiB"
        )


def read_columns(
    path: Path,
    types: Mapping[str, pa.DataType],
    expected: str,
    *,
    where: tuple[str, int] | None = None,
) -> pa.Table:
    """Read some columns of a file and convert them to the given types, if no value changes.

    Args:
        path: The file.
        types: Column to type.
        expected: What the file should be, for the message.
        where: Column and number; only the rows with this number in the column are read.

    Raises:
        DataError: If the file cannot be read, a column is missing, or a value does not fit its
            type.
    """
    try:
        chosen = None if where is None else [(where[0], "=", where[1])]
        table = pq.read_table(path, columns=list(types), filters=chosen)
        schema = pa.schema(list(types.items()), metadata=table.schema.metadata)
        table = table.select(list(types)).cast(schema)
        table.validate(full=True)  # text is UTF-8
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{path}: not {expected} ({described(error)})") from None
    return table
