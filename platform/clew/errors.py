"""Every error that Clew raises on purpose, and the exit code that a command ends with.

    ClewError                     1
    ├── UsageError                2   wrong use, configuration or data
    │   ├── ConfigError               a key, a value, or values that do not fit together
    │   ├── DataError                 a data file: names file, line and the offending text
    │   ├── CheckpointError           a checkpoint that is missing, incomplete or of another model
    │   ├── TrackingError             the tracking store: unreachable, or an entry is missing
    │   ├── ClusterError              a cluster: unreachable, full, or with other code on a node
    │   └── PlaceError                a file or folder that the system does not let us use
    ├── ProtectedStop             3   stopped to protect the result
    │   ├── DiskError                 the disk is full or broken, a file too large
    │   ├── NonFiniteLossError        the loss, a gradient or a score is NaN or infinite
    │   ├── PeerError                 another process of the run died or hangs
    │   ├── OutOfMemoryError          the device has too little memory
    │   └── PromotionRefused          a check of the promotion gate failed
    └── Interrupted             130   stopped by the user; the last checkpoint is kept

A message is one line: what was given, what was expected, what to do.
"""

import difflib
import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import ValidationError


class ClewError(Exception):
    """Root of every deliberate error."""

    exit_code: ClassVar[int] = 1


class UsageError(ClewError, ValueError):
    """Wrong use, configuration or data."""

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A configuration key or value, or values that do not fit together."""


class DataError(UsageError):
    """A data file that cannot be used; the message names file, line and offending text."""


class CheckpointError(UsageError):
    """A checkpoint that is missing, incomplete or belongs to another model."""


class TrackingError(UsageError):
    """The tracking store is unreachable, or an entry is missing from it."""


class ClusterError(UsageError):
    """A cluster that cannot be used: unreachable, full, or with other code or data on a node."""


class PlaceError(UsageError):
    """A file or folder that cannot be used: protected, or its path is wrong or too long."""


class ProtectedStop(ClewError):
    """Stopped to protect the result."""

    exit_code: ClassVar[int] = 3


class DiskError(ProtectedStop):
    """The disk is full or broken, or a file would be larger than is allowed."""


class NonFiniteLossError(ProtectedStop):
    """The loss or a gradient became NaN or infinite; the last good checkpoint is kept."""


class PeerError(ProtectedStop):
    """Another process of the run died or hangs."""


class OutOfMemoryError(ProtectedStop):
    """The device has less memory than the configuration needs."""


class PromotionRefused(ProtectedStop):
    """A check of the promotion gate failed."""


class Interrupted(ClewError):
    """Stopped by the user; the last checkpoint is kept."""

    exit_code: ClassVar[int] = 130


def described(error: BaseException) -> str:
    """Say in one line, of at most 300 characters, what a library's error says.

    Of a pydantic error it is the first problem: the key and what is wrong with it, without the
    value, which may be long or secret. A first line that ends in a colon only announces the lines
    below it, and those are taken.
    """
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        return printable(f"{key}: {reason_of(problem)}".removeprefix(": ")[:300])
    first, *below = (str(error).strip() or type(error).__name__).splitlines()
    said = " ".join(" ".join(below).split()) if below and first.endswith(":") else first
    return printable(said[:300])


_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "keys with values"),
    "string_type": "text",
    "string_unicode": "valid Unicode text",
    "string_too_short": "text, which must not be empty",
    "too_short": "at least {min_length} of them",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
"""Maps pydantic's types of problems to what it expected."""


def reason_of(problem: Mapping[str, Any]) -> str:
    """Say in plain words what is wrong with a value, given a problem that pydantic found."""
    kind = problem["type"]
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**problem.get('ctx', {}))}"
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return "unknown key"
    message = str(problem["msg"]).removeprefix("Value error, ")
    expected = message.removeprefix("Input should be ")
    return message if expected == message else f"expected {expected}"


def printable(text: str) -> str:
    """Return a text as any terminal shows it: what does not print is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


SHOWN_CHARACTERS = 120
LONGEST_NAME = 200
"""Characters of a name that are compared with the valid ones."""


def quoted(value: object) -> str:
    """Return what was given, quoted and short enough for a one-line message."""
    shown = value if isinstance(value, str) else repr(value)
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[:SHOWN_CHARACTERS] + "…"
    return repr(shown) if isinstance(value, str) else shown


def valid_names(given: str, names: Sequence[str]) -> str:
    """Return the end of an error message: a similar name, if any, and all valid names."""
    return f"{similar_name(given, names)} valid: {', '.join(names)}".lstrip()


def similar_name(given: str, names: Sequence[str]) -> str:
    """Return a question whether a similar name was meant; empty: there is none."""
    near = difflib.get_close_matches(given[:LONGEST_NAME], names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


_DISK = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or ask for a larger quota",
    errno.EFBIG: "raise the limit of `ulimit -f`, or use a file system for larger files",
    errno.EIO: "check the disk",
}
_PLACE = {
    errno.EROFS: "name a place that can be written",
    errno.EACCES: "name a place that you may use, or change its permissions",
    errno.EPERM: "name a place that you may use, or change its permissions",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOTDIR: "name another folder",
    errno.EISDIR: "name a file",
    errno.ELOOP: "remove the link that leads to itself",
}
_MOVED_BY = (
    "Files go where --checkpoint-dir, --output-dir, MLFLOW_TRACKING_URI, CLEW_SPOOL, "
    "XDG_CACHE_HOME and TMPDIR say; a training that had begun goes on with clew train --resume"
)


def of_the_system(error: OSError) -> ClewError | None:
    """Return what a failed file operation means for a person; None if it is something else."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, path, reason = error.args[0][0]  # the first of all files that could not be copied
        number = next((n for n in (*_DISK, *_PLACE) if f"[Errno {n}]" in str(reason)), None)
    else:
        path, number = error.filename, error.errno
    if number not in _DISK and number not in _PLACE:
        return None
    assert number is not None
    kind, advice = (DiskError, _DISK) if number in _DISK else (PlaceError, _PLACE)
    where = ""
    if path:
        name = os.fsdecode(path)
        while kind is DiskError and name and not os.path.lexists(name):
            name = os.path.dirname(name)  # a temporary folder is gone when this is read
        where = f"{name[-200:] or '.'}: "
    return kind(f"{where}{os.strerror(number)}; {advice[number]}. {_MOVED_BY}")
