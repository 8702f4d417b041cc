"""Search spaces: the settings that `clew tune` varies, and their values."""

import math
from pathlib import Path
from typing import get_args

from pydantic import Field, model_validator

from clew.config.base import Section
from clew.config.files import find, spaces
from clew.config.load import read_section, with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError, printable

Value = bool | int | float | str | None
"""Value of one setting."""

NOT_SEARCHED = ("evaluation", "influence", "tracking")
"""Sections that do not change the training, or that change how trials are compared."""


class Parameter(Section):
    """The values of one setting: `choices`, or the numbers from `low` to `high`."""

    low: float | None = None
    """Smallest number."""
    high: float | None = None
    """Largest number."""
    step: float | None = Field(default=None, gt=0)
    """Try only `low` plus multiples of this step; unset: any number, or any whole number if the
    setting is a whole number."""
    log: bool = False
    """Sample the logarithm uniformly: between 0.001 and 0.1, half of the values are below 0.01."""
    choices: tuple[Value, ...] | None = Field(default=None, min_length=2)
    """Values without an order, such as the kinds of optimizers."""

    @model_validator(mode="after")
    def _is_choices_or_range(self) -> "Parameter":
        if self.choices is not None:
            if self.model_fields_set != {"choices"}:
                raise ValueError("give choices, or low and high, not both")
            if len({repr(value) for value in self.choices}) < len(self.choices):
                raise ValueError("a choice is given twice; keep one of them")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}; raise high")
        if self.log and self.low <= 0:
            raise ValueError(f"low is {self.low:g}, but log needs a number above 0")
        if self.log and self.step is not None:
            raise ValueError("log and step are both given; leave one of them out")
        steps = (self.high - self.low) / (self.step or 1.0)
        if self.step is not None and not math.isclose(steps, round(steps), rel_tol=1e-9):
            raise ValueError(
                f"high {self.high:g} is not low {self.low:g} plus whole steps of {self.step:g}"
            )
        return self

    @property
    def ends(self) -> tuple[float, float]:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def samples(self, *, whole: bool) -> list[Value]:
        """Return some values of the range, or all choices, to check them against the schema."""
        if self.choices is not None:
            return list(self.choices)
        low, high = self.ends
        if whole:
            return [int(low), int(low + (self.step or 1)), int(high)]
        return [low, low + self.step if self.step else (low + high) / 2, high]

    def check_whole(self, key: str) -> None:
        """Check that the range contains only whole numbers.

        Raises:
            ConfigError: If `low`, `high` or `step` is not a whole number.
        """
        for name in ("low", "high", "step"):
            number = getattr(self, name)
            if number is not None and not float(number).is_integer():
                raise ConfigError(f"{key}: {name} is {number:g}, but the setting is a whole number")


class SearchSpace(Section):
    """The settings that a search varies, and when it can prune a trial."""

    parameters: dict[str, Parameter] = Field(min_length=1)
    """Setting, as `section.key`, to its values."""
    unpruned_trials: int = Field(default=5, ge=1)
    """Number of trials that must finish before a trial can be pruned. A trial is pruned if its
    validation metric is worse than the median of the finished trials after the same number of
    epochs."""
    unpruned_epochs: int = Field(default=0, ge=0)
    """Number of epochs that each trial trains before it can be pruned."""


def load_space(given: Path | str, config: RunConfig) -> SearchSpace:
    """Read a search space and check it against the configuration that it varies.

    Args:
        given: YAML file, or the name of a space that ships with Clew; empty: the space for this
            kind of data.
        config: The configuration that the trials share.

    Raises:
        ConfigError: If the file, a key, a range or a value is not valid.
    """
    path = find(given or config.data.kind, spaces)
    space = read_section(SearchSpace, path, source=str(path))
    for key, parameter in space.parameters.items():
        try:
            _check(key, parameter, config)
        except ConfigError as error:
            raise ConfigError(f"{path}: {printable(str(error))}") from None
    return space


def _check(key: str, parameter: Parameter, config: RunConfig) -> None:
    """Refuse a setting that does not exist, or values that it cannot have."""
    if key.partition(".")[0] in NOT_SEARCHED:
        raise ConfigError(f"{key} does not change what is trained; leave it out of the space")
    is_whole = takes_whole_numbers(config, key)
    if is_whole:
        parameter.check_whole(key)
    for value in parameter.samples(whole=is_whole):
        with_settings(config, {key: value}, source=f"{key}={value}")


def takes_whole_numbers(config: RunConfig, key: str) -> bool:
    """Return whether a setting, as `section.key`, is a whole number."""
    section, _, name = key.partition(".")
    if section not in RunConfig.model_fields:
        return False
    fields = type(getattr(config, section)).model_fields
    kind = fields[name].annotation if name in fields else None
    return int in (kind, *get_args(kind))
