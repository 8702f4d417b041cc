"""The base class of every section of the configuration."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator


class Section(BaseModel):
    """A frozen group of settings: unknown keys are refused, every field is documented."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @field_validator("*")
    @classmethod
    def _is_plain_text(cls, value: Any) -> Any:
        """Refuse text that can be no name and no path, and that no file can hold."""
        if isinstance(value, str) and ("\0" in value or not can_be_written(value)):
            raise ValueError("expected text that a file can hold, without NUL and half characters")
        return value


def can_be_written(text: str) -> bool:
    """Return whether a text has bytes: an argument of other bytes, or JSON, may hold halves."""
    try:
        text.encode()
    except UnicodeEncodeError:  # one half of a character
        return False
    return True


@dataclass(frozen=True)
class Flag:
    """Marks a field that has its own option, such as `--batch-size` for `training.batch_size`."""

    verbs: tuple[str, ...]
    """Commands that have the option."""
    off: str = ""
    """A second option, which takes no value and means `false`."""


TRAIN_FLAG = Flag(("train", "plan"))
EXPLAIN_FLAG = Flag(("tracin", "batch_tracin"))
FILTER_FLAG = Flag(("batch_tracin",))
