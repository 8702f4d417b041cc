"""Every error that Clew raises on purpose, and the exit code that a command ends with.

    ClewError                     1
    ├── UsageError                2   wrong use, configuration or data
    │   ├── ConfigError               a key or value is invalid, or values do not fit together
    │   ├── DataError                 a data file is invalid; names file, line and offending text
    │   ├── CheckpointError           a checkpoint is missing, incomplete or of another model
    │   ├── TrackingError             the tracking store is unreachable, or an entry is missing
    │   ├── ClusterError              a cluster is unreachable, full, or has other code on a node
    │   ├── PlaceError                the system does not allow the use of a file or folder
    │   └── AccessError               the signed-in person may not do this in the dashboard
    ├── ProtectedStop             3   stopped to protect the result
    │   ├── DiskError                 the disk is full or broken, or a file is too large
    │   ├── NonFiniteLossError        the loss, a gradient or a score is NaN or infinite
    │   ├── PeerError                 another process of the run died or hangs
    │   ├── OutOfMemoryError          the device has too little memory
    │   └── PromotionRefused          a check of the promotion gate failed
    └── Interrupted             130   stopped by the user; the last checkpoint is kept

A message is one line. It says what was given, what was expected and what to do, and holds no
secret (see `masked`).
"""

import difflib
import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from pydantic import ValidationError


class ClewError(Exception):
    """Base class of every error that Clew raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(ClewError, ValueError):
    """Wrong use, configuration or data."""

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A configuration key or value is invalid, or values do not fit together."""


class DataError(UsageError):
    """A data file cannot be used; the message names the file, the line and the offending text."""


class CheckpointError(UsageError):
    """A checkpoint is missing, is incomplete or belongs to another model."""


class TrackingError(UsageError):
    """The tracking store is unreachable, or an entry is missing from it."""


class ClusterError(UsageError):
    """A cluster is unreachable, is full, or has other code or data on a node."""


class PlaceError(UsageError):
    """A file or folder is protected, or its path is wrong or too long."""


class AccessError(UsageError):
    """The signed-in person may not do this in the dashboard."""


class ProtectedStop(ClewError):
    """The command stopped to protect the result."""

    exit_code: ClassVar[int] = 3


class DiskError(ProtectedStop):
    """The disk is full or broken, or a file would be larger than allowed."""


class NonFiniteLossError(ProtectedStop):
    """The loss, a gradient or a score is NaN or infinite; the last good checkpoint is kept."""


class PeerError(ProtectedStop):
    """Another process of the run died or hangs."""


class OutOfMemoryError(ProtectedStop):
    """The device has less memory than the configuration needs."""


class PromotionRefused(ProtectedStop):
    """A check of the promotion gate failed."""


class Interrupted(ClewError):
    """The user stopped the command; the last checkpoint is kept."""

    exit_code: ClassVar[int] = 130


# What counts as a secret in a text: no run, log or message of Clew holds it.
_SECRET = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|account|private|shared[-_]?access|"
    r"secret|encryption)[-_]?key(?:[-_]?id)?|client[-_]?secret|connection[-_]?string|session[-_]?id"
)
_QUOTES = r"[\\'\"]"  # also escaped ones, of JSON and of a shell
_VALUE = rf"(?:{_QUOTES}+[^\\'\"\n]+|[^\\'\"\s,;&)\]}}]+)"
_KNOWN = (
    r"gh[opsur]_|github_pat_|glpat-|hf_|sk-|[rs]k_live_|xox[abeoprs]-|npm_|pypi-|dapi|ya29\.|SG\.|"
    r"AIza|AKIA|ASIA|eyJ[\w-]+\.eyJ"
)
SECRETS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[A-Z ]*-----|\Z)", "***"),
        # The user part of an address; a password can contain `/` and `@`.
        (r"\b((?!models:)[a-z][\w+.-]*:/{1,2})[^/\s'\"][^\s'\"]*@", r"\1***@"),
        (r"(?<![\w/.-])[\w.+-]+:[^\s:@/'\"]+@(?=[\w-])", "***@"),
        # Values of queries and fragments, such as those of signed addresses.
        (r"([?&#][^=&#\s'\"]+)=[^&#\s'\"]+", r"\1=***"),
        (
            rf"\b((?:proxy-)?authorization|(?:set-)?cookie)({_QUOTES}*\s*[:=]\s*){_QUOTES}*[^\\\n'\"]+",
            r"\1\2***",
        ),
        (r"\b(bearer) [\w.~+/=-]{8,}", r"\1 ***"),
        (rf"({_SECRET})({_QUOTES}*\s*[=:]\s*){_VALUE}", r"\1\2***"),
        (rf"(--[\w-]*(?:{_SECRET})) +{_VALUE}", r"\1 ***"),
        (rf"(?-i:\b(?:{_KNOWN})[\w.-]{{12,}})", "***"),
    )
)
"""Patterns of secrets and what takes their place."""
_VARIABLE = re.compile(rf"(?:{_SECRET})$", re.IGNORECASE)
_FOLDERS = ("PWD", "OLDPWD")
SHORTEST_SECRET = 8
"""Shortest value of an environment variable that is masked wherever it occurs."""


def masked(text: str) -> str:
    """Return a text with secrets masked, those of this process's environment among them."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST_SECRET and name not in _FOLDERS and _VARIABLE.search(name):
            text = text.replace(value, "***")
    for pattern, replacement in SECRETS:
        text = pattern.sub(replacement, text)
    return text


def described(error: BaseException) -> str:
    """Return a library's error as one line of at most 300 characters, without secrets.

    For a pydantic error, the line describes the first problem: the key and what is wrong with its
    value. The value itself is left out, because it can be long or secret. For other errors, it is
    the message's first line. If that line ends with a colon, it is the lines below it.
    """
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        return printable(f"{key}: {reason_of(problem)}".removeprefix(": ")[:300])
    first, *below = (str(error).strip() or type(error).__name__).splitlines()
    said = " ".join(" ".join(below).split()) if below and first.endswith(":") else first
    return printable(masked(said)[:300])


@contextmanager
def refusing(
    what: str, *kinds: type[BaseException], advice: str = "", error: type[UsageError] = DataError
) -> Iterator[None]:
    """Turn what a library raises inside into an error of one line: `what (its words)advice`."""
    try:
        yield
    except ClewError:
        raise
    except kinds as found:
        raise error(f"{what} ({described(found)}){advice}") from None


_MAPPINGS = ("dict_type", "mapping_type", "model_type", "model_attributes_type")
_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type", "sequence_str"), "a list"),
    **dict.fromkeys(_MAPPINGS, "keys with values"),
    "string_type": "text",
    "string_unicode": "valid Unicode text",
    "string_too_short": "text, which must not be empty",
    "too_short": "at least {min_length} of them",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
"""Type of a pydantic problem to what pydantic expected."""


def reason_of(problem: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, in plain words, for a problem that pydantic found."""
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
    """Return a text with the characters that cannot be printed escaped."""
    if text.isprintable():  # nearly always; millions of names come here
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


# Control characters except line feed and tab, characters that turn the direction of writing, and
# halves of characters, which cannot be encoded.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Return a text of several lines with the characters escaped that a terminal would obey."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


SHOWN_CHARACTERS = 120
LONGEST_NAME = 200
"""Number of characters of a name that are compared with the valid names."""


def quoted(value: object) -> str:
    """Return a value, quoted and short enough for a one-line message."""
    shown = value if isinstance(value, str) else " ".join(repr(value).split())
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[:SHOWN_CHARACTERS] + "…"
    return repr(shown) if isinstance(value, str) else shown


def valid_names(given: str, names: Sequence[str]) -> str:
    """Return the end of an error message: a similar name, if any, and all valid names."""
    return f"{similar_name(given, names)} valid: {', '.join(names)}".lstrip()


def similar_name(given: str, names: Sequence[str]) -> str:
    """Return the question `did you mean ...?` with a similar name; empty if there is none."""
    near = difflib.get_close_matches(given[:LONGEST_NAME], names, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def spaced(name: object) -> str:
    """Return a name as people read it in sentences and pictures, with spaces for underscores."""
    return str(name).replace("_", " ")


def counted(number: int, thing: str) -> str:
    """Return a number of things, such as `1 record`, `2 queries` or `3,000 rows`."""
    several = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else several}"


_DISK = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or ask for a larger quota",
    errno.EFBIG: "raise the limit of `ulimit -f`, or use a file system for larger files",
    errno.EIO: "check the disk",
}
_PLACE = {
    errno.EROFS: "choose another folder, which is writable",
    errno.EACCES: "choose another folder, or change the permissions",
    errno.EPERM: "choose another folder, or change the permissions",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOTDIR: "name another folder",
    errno.EISDIR: "name a file",
    errno.ELOOP: "remove the symbolic link that points to itself",
}
_MOVED_BY = (
    "The folders are set by --checkpoint-dir, --output-dir, MLFLOW_TRACKING_URI, CLEW_SPOOL, "
    "XDG_CACHE_HOME and TMPDIR"
)
_TO_CONTINUE = "to continue a run, use clew train --resume"


def of_the_system(error: OSError) -> ClewError | None:
    """Return a readable error for a failed file operation, or None if `error` is something else.

    A note on the error says how to continue; without one, the newest run is continued.
    """
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        _, path, reason = error.args[0][0]  # the first file that could not be copied
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
            name = os.path.dirname(name)  # a temporary folder does not exist any more
        where = f"{name[-200:] or '.'}: "
    to_continue = "; ".join(getattr(error, "__notes__", [_TO_CONTINUE]))
    return kind(f"{where}{os.strerror(number)}; {advice[number]}. {_MOVED_BY}; {to_continue}")


@contextmanager
def extra(
    name: Literal["ui", "images", "zarr", "language", "gpu", "tensorboard", "trapi", "onnx"],
) -> Iterator[None]:
    """Wrap imports of packages that an extra installs.

    Raises:
        UsageError: If a package is not installed; the message names the extra that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name} is not installed; install it with pip install 'clew[{name}]'"
        ) from None
