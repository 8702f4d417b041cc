"""Settings that have their own option: the fields of the schema that are marked with a `Flag`.

`clew train --batch-size 512` and `mlflow run . -e train -P batch_size=512` both set
`training.batch_size`, because that field is `Annotated[int, TRAIN_FLAG]`. The command line,
MLproject and the reference page are all generated from the schema.
"""

import functools
from dataclasses import dataclass

from pydantic.fields import FieldInfo

from clew.config.base import Flag
from clew.config.load import section_classes
from clew.config.schema import RunConfig


@dataclass(frozen=True)
class FlaggedField:
    """A field that has its own option."""

    name: str
    """Name of the option, with underscores."""
    key: str
    """Key of the configuration, `section.name`."""
    field: FieldInfo
    flag: Flag


@functools.cache
def flagged_fields(verb: str) -> tuple[FlaggedField, ...]:
    """Return the fields that have an option in a command, in the order of the schema.

    A field that several classes of a section share becomes one option.
    """
    found: dict[str, FlaggedField] = {}
    for section in RunConfig.model_fields:
        for choice in section_classes(section):
            for name, field in choice.model_fields.items():
                for flag in (mark for mark in field.metadata if isinstance(mark, Flag)):
                    if verb in flag.verbs:
                        key = f"{section}.{name}"
                        found.setdefault(name, FlaggedField(name, key, field, flag))
    return tuple(found.values())
