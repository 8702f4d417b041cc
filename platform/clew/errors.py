"""Every error that Clew raises on purpose, and the exit code that a command ends with.

    ClewError                     1
    ├── UsageError                2   wrong use, configuration or data
    │   ├── ConfigError               a key, a value, or values that do not fit together
    │   ├── DataError                 a data file: names file, line and the offending text
    │   ├── CheckpointError           a checkpoint that is missing, incomplete or of another model
    │   └── TrackingError             the tracking store: unreachable, or an entry is missing
    ├── ProtectedStop             3   stopped to protect the result
    │   ├── NonFiniteLossError        the loss, a gradient or a score is NaN or infinite
    │   ├── OutOfMemoryError          the device has too little memory
    │   └── PromotionRefused          a check of the promotion gate failed
    └── Interrupted             130   stopped by the user; the last checkpoint is kept

A message is one line: what was given, what was expected, what to do.
"""

from typing import ClassVar

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


class ProtectedStop(ClewError):
    """Stopped to protect the result."""

    exit_code: ClassVar[int] = 3


class NonFiniteLossError(ProtectedStop):
    """The loss or a gradient became NaN or infinite; the last good checkpoint is kept."""


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
    value, which may be long or secret.
    """
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"]))
        reason = problem["msg"].removeprefix("Value error, ")
        return f"{key}: {reason}".removeprefix(": ")[:300]
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
