"""Studies and search spaces: many runs of one configuration.

A study compares variants, run with several seeds, with a reference (`clew compare`). A search space
names the settings that `clew tune` varies, and their values.
"""

import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from clew.config.base import Section
from clew.config.files import find, read_yaml, spaces, studies
from clew.config.load import from_mapping, full_key, full_settings, read_section, with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError, printable, quoted

INFLUENCE_PREFIX = "influence."
QUICK = "quick"
MOST_CHARACTERS = 100
"""Longest name of a variant, which is a part of the names of metrics."""


def metric_name(variant: str) -> str:
    """Return a variant's name without characters that MLflow refuses in the name of a metric."""
    return " ".join(re.sub(r"[^\w.\- :]|\.\.", " ", variant).split())


class Measure(Section):
    """A metric that the study compares."""

    metric: str
    """Metric key, for example `throughput/examples_per_second`."""
    label: str
    """Title in tables and figures."""


class Size(Section):
    """Settings of one size of a study, in addition to those of all sizes."""

    base: str | None = None
    """YAML file or preset, instead of the study's."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings of all variants at this size."""
    seeds: list[int] | None = Field(default=None, min_length=1)
    """Seeds at this size, instead of the study's."""


class Study(Section):
    """A matrix of variants and seeds over one base configuration."""

    name: str
    """Name of the study."""
    command: Literal["train", "tracin"] = "train"
    """What a cell runs. `tracin`: each seed's model is trained once, with the base configuration,
    and every variant explains it; variants can then set only `influence.*`."""
    tests: str | None = None
    """With `tracin`, the file of triples to explain, or a split of the data: `valid`, `test`."""
    base: str
    """YAML file or preset that all variants are based on."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings of all variants, as `section.key` to value."""
    variants: dict[str, dict[str, Any]] = Field(min_length=2)
    """Variant to its own settings; the first one is the reference."""
    seeds: list[int] = Field(default_factory=lambda: [0], min_length=1)
    """Each seed is a round: all variants run with it before the next seed starts, in reverse order
    in every second round."""
    measures: list[Measure] = Field(min_length=1)
    """The metrics to compare."""
    sizes: dict[str, Size] = Field(default_factory=dict)
    """Sizes to choose from, for example `quick` for two cores and `full` for a GPU."""

    @property
    def reference(self) -> str:
        return next(iter(self.variants))

    def _check(self) -> None:
        keys = [metric_name(variant) for variant in self.variants]
        for variant, key in zip(self.variants, keys, strict=True):
            if not key or keys.count(key) > 1 or len(key) > MOST_CHARACTERS:
                raise ValueError(
                    f"variants: {quoted(variant)} is no name for metrics; expected letters or "
                    f"digits, at most {MOST_CHARACTERS} characters, and for each variant another"
                )
        if (self.command == "tracin") != (self.tests is not None):
            raise ValueError("command: tracin and tests: FILE go together; give both or neither")
        for variant, settings in self.variants.items() if self.tests else ():
            for key in settings:
                if not key.startswith(INFLUENCE_PREFIX):
                    raise ValueError(
                        f"variant {quoted(variant)} sets {key}, but all variants of a tracin study "
                        f"explain one model: set {INFLUENCE_PREFIX}* there, the rest in overrides"
                    )

    def sized(self, size: str) -> "Study":
        """Return the study at one of its sizes."""
        if size not in self.sizes:
            raise ConfigError(
                f"study {self.name} has no size {quoted(size)}; "
                f"valid: {', '.join(self.sizes) or 'none, leave --size out'}"
            )
        chosen = self.sizes[size]
        changes = {
            "name": f"{self.name} ({size})",
            "base": chosen.base or self.base,
            "overrides": self.overrides | chosen.overrides,
            "seeds": chosen.seeds or self.seeds,
        }
        return self.model_copy(update=changes)

    def model_config_of(self, seed: int) -> RunConfig:
        own = {k: v for k, v in self.overrides.items() if not k.startswith(INFLUENCE_PREFIX)}
        settings = own | {"training.seed": seed}
        return from_mapping(read_yaml(find(self.base)), settings, source=self.name)

    def influence_settings(self, variant: str) -> dict[str, Any]:
        """Return the settings of a variant of a tracin study, as `influence.key` to value."""
        settings = self.overrides | self.variants[variant]
        return {k: v for k, v in settings.items() if k.startswith(INFLUENCE_PREFIX)}

    def config(self, variant: str, seed: int) -> RunConfig:
        """Return the configuration of one cell."""
        own = full_settings(self.overrides) | full_settings(self.variants[variant])
        if "training.seed" in own:
            said = "training.seed is given, but each round has its own; give seeds instead"
            raise ConfigError(f"{self.name}, {variant}: {said}")
        own["training.seed"] = seed
        return from_mapping(read_yaml(find(self.base)), own, source=f"{self.name}, {variant}")

    def cell_id(self, variant: str, seed: int) -> str:
        return f"{self.name}/{variant}/{self.config(variant, seed).config_hash}"


def load_study(path: Path | str, *, seeds: Sequence[int] = (), size: str = "") -> Study:
    """Read a study, or the one of that name that ships with Clew, and check its configurations.

    `seeds` replace the study's own. `size` is one of its sizes; empty: `quick`, if it has that.
    """
    study = read_section(Study, find(path, studies), source=str(path))
    if size or QUICK in study.sizes:
        study = study.sized(size or QUICK)
    if seeds:
        study = study.model_copy(update={"seeds": list(seeds)})
    twice = [seed for seed in study.seeds if study.seeds.count(seed) > 1]
    if twice:  # the second round would be trained, but would not count
        raise ConfigError(f"seeds: {twice[0]} is given twice; each round needs its own seed")
    for variant, seed in product(study.variants, study.seeds):
        study.config(variant, seed)
    return study


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

    def _check(self) -> None:
        if self.choices is not None:
            if self.model_fields_set != {"choices"}:
                raise ValueError("give choices, or low and high, not both")
            if len({repr(value) for value in self.choices}) < len(self.choices):
                raise ValueError("a choice is given twice; keep one of them")
            return
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
        step = self.step or (1.0 if whole else (high - low) / 2)
        return [low, low + step, high]


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

    `given` is a YAML file, or the name of a space that ships with Clew; empty: the space for the
    configuration's kind of data.
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
    if full_key(key).partition(".")[0] in NOT_SEARCHED:
        raise ConfigError(f"{key} does not change what is trained; leave it out of the space")
    for value in parameter.samples(whole=takes_whole_numbers(config, key)):
        with_settings(config, {key: value}, source=f"{key}={value}")


def takes_whole_numbers(config: RunConfig, key: str) -> bool:
    """Return whether a setting is a whole number."""
    section, _, name = full_key(key).partition(".")
    if section not in RunConfig.model_fields:
        return False
    fields = type(getattr(config, section)).model_fields
    kind = fields[name].annotation if name in fields else None
    return int in (kind, *get_args(kind))
