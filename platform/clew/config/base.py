"""The base class of every section of the configuration."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings: unknown keys are refused, every field is documented."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )


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
