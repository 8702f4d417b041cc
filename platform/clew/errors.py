"""Every error that Clew raises on purpose, and the exit code it ends a command with.

    ClewError                     1
    ├── UsageError                2   wrong use, configuration or data
    │   ├── ConfigError               a key, a value, or values that do not fit together
    │   ├── DataError                 a data file: names file, line and the offending text
    │   ├── CheckpointError           a checkpoint that is missing, incomplete or of another model
    │   └── TrackingError             the tracking store: unreachable, or without what was asked for
    ├── ProtectedStop             3   stopped to protect the result
    │   ├── NonFiniteLossError        training would have gone on with NaN or infinity
    │   ├── OutOfMemoryError          the memory asked for is not there
    │   └── PromotionRefused          the promotion gate said no
    └── Interrupted             130   stopped by the person; the last checkpoint is kept

A message is one line: what was given, what was expected, what to do.
"""

from typing import ClassVar


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
    """The tracking store is unreachable or lacks what was asked for."""


class ProtectedStop(ClewError):
    """Stopped to protect the result."""

    exit_code: ClassVar[int] = 3


class NonFiniteLossError(ProtectedStop):
    """The loss or a gradient became NaN or infinite; the last good checkpoint is kept."""


class OutOfMemoryError(ProtectedStop):
    """The device has less memory than the configuration needs."""


class PromotionRefused(ProtectedStop):
    """The promotion gate said no."""


class Interrupted(ClewError):
    """Stopped by the person; the last checkpoint is kept."""

    exit_code: ClassVar[int] = 130
