"""The base class of every section of the configuration."""

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator, model_validator

NUMBERS = (int, float, int | None, float | None)


class Section(BaseModel):
    """A frozen group of settings; unknown keys are refused and every field is documented."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, given: Any) -> Any:
        """Refuse true and false for a number, which would be 1 and 0."""
        for name, value in given.items() if isinstance(given, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in NUMBERS:
                raise ValueError(f"{name} is {str(value).lower()}; expected a number")
        return given

    @field_validator("*")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        """Refuse text that cannot be a name, a path or written, and numbers beyond 64 bits."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("expected a number below 2**63")
        if isinstance(value, str) and ("\0" in value or not can_be_written(value)):
            raise ValueError("expected valid Unicode text without NUL characters")
        return value

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check()
        return self

    def _check(self) -> None:
        """Refuse, by a ValueError, values that do not fit together."""


def can_be_written(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8.

    Text from JSON or from command-line arguments can contain unpaired surrogates, which cannot.
    """
    return not re.search("[\ud800-\udfff]", text)


@dataclass(frozen=True)
class Flag:
    """Marks a field that has its own option, such as `--batch-size` for `training.batch_size`."""

    verbs: tuple[str, ...]
    """Commands that have the option."""
    off: str = ""
    """A second option, which takes no value and means `false`."""


COMMAS = BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given)
"""Marks a list that can be typed with commas between its elements."""
TRAIN_FLAG = Flag(("train", "plan"))
EXPLAIN_FLAG = Flag(("tracin", "batch_tracin"))
FILTER_FLAG = Flag(("batch_tracin",))
NO_CLEANUP = "disable_memory_cleanup"
