"""Checks output paths before anything is computed, and writes tables in the format of a path."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from clew.errors import ConfigError
from clew.files import replacing
from clew.spreadsheets import changed, disarmed

FORMATS = (".parquet", ".tsv", ".csv", ".json")

RESERVE = 24
"""Extra bytes of a temporary name. Paths inside an output folder can be 8 times this longer."""

LOCK_SUFFIX = ".clew-lock"
"""End of the hidden file that locks the folder beside it; a killed training leaves it behind."""


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a folder that is a file, or that cannot be created or written."""
    if path is not None:
        _check_can_hold(path, f"{option} {path}")


def check_new_folder(option: str, path: Path | None) -> None:
    """Refuse what `check_folder` refuses, and a folder that contains more than locks."""
    check_folder(option, path)
    inside = path.iterdir() if path is not None and path.exists() else ()
    if any(not found.name.endswith(LOCK_SUFFIX) for found in inside):
        raise ConfigError(
            f"{option} {path}: exists and is not empty; name a new folder, nothing is overwritten"
        )


def check_file(option: str, path: Path | None) -> None:
    """Refuse a file path that is a folder, or whose folder cannot be created or written."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; name a file")
    _check_can_hold(path.parent, f"{option} {path}")


def check_table(option: str, path: Path | None, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a file whose format is unknown, or that cannot be written."""
    if path is not None and path.suffix not in formats:
        raise ConfigError(f"{option} {path}: expected a name that ends with {', '.join(formats)}")
    check_file(option, path)


def write_table(path: Path, rows: pa.Table) -> None:
    """Write a table in the format that its name ends with."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(rows, temporary, compression="zstd")
        elif path.suffix == ".json":
            rows.to_pandas().to_json(temporary, orient="records", indent=1, double_precision=15)
        else:
            for number, column in enumerate(rows.columns):
                if pa.types.is_string(column.type):
                    safe = changed(column.combine_chunks(), disarmed)
                    rows = rows.set_column(number, rows.column_names[number], safe)
            options = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            pa.csv.write_csv(rows, temporary, options)


def _check_can_hold(folder: Path, given: str) -> None:
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if nearest.is_symlink() and not nearest.exists():
        raise ConfigError(
            f"{given}: {nearest} is a link to {os.readlink(nearest)}, which does not exist; name "
            "another place"
        )
    name, whole = os.pathconf(nearest, "PC_NAME_MAX"), os.pathconf(nearest, "PC_PATH_MAX")
    longest = max(len(os.fsencode(part)) for part in folder.parts) if folder.parts else 0
    if longest + RESERVE > name or len(os.fsencode(folder.absolute())) + 8 * RESERVE > whole:
        raise ConfigError(
            f"{given[:100]}…: the path is too long for this file system; name another place"
        )
    if not nearest.is_dir():
        raise ConfigError(f"{given}: {nearest} is not a folder; name another place")
    try:
        tempfile.TemporaryFile(dir=nearest).close()  # permissions are not enough, e.g. in /proc
    except OSError:
        raise ConfigError(f"{given}: {nearest} cannot be written; name another place") from None
