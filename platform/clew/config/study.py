"""Studies: variants of one configuration, run with several seeds and compared with a reference."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from clew.config.base import Section
from clew.config.files import find, read_yaml, studies
from clew.config.load import from_mapping, read_section
from clew.config.schema import RunConfig
from clew.errors import ConfigError, quoted

INFLUENCE_PREFIX = "influence."
QUICK = "quick"


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
    """With `tracin`, the file of triples to explain."""
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

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, content: Any) -> Any:
        if isinstance(content, dict) and "claims" in content:
            raise ValueError(
                "a study has no claims; put them into a file of their own and judge the results "
                "with `python -m experiments.claims CLAIMS.yaml RESULTS.json` in a checkout"
            )
        return content

    @model_validator(mode="after")
    def _seeds_differ(self) -> "Study":
        for seeds in (self.seeds, *(size.seeds or [] for size in self.sizes.values())):
            _refuse_twice(seeds)
        return self

    @model_validator(mode="after")
    def _command_fits(self) -> "Study":
        if (self.command == "tracin") != (self.tests is not None):
            raise ValueError("command: tracin and tests: FILE go together; give both or neither")
        for variant, settings in self.variants.items() if self.tests else ():
            for key in settings:
                if not key.startswith(INFLUENCE_PREFIX):
                    raise ValueError(
                        f"variant {quoted(variant)} sets {key}, but all variants of a tracin study "
                        f"explain one model: set {INFLUENCE_PREFIX}* there, the rest in overrides"
                    )
        return self

    def sized(self, size: str) -> "Study":
        """Return the study at one of its sizes.

        Raises:
            ConfigError: If the study has no such size.
        """
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
        own = self.overrides | self.variants[variant] | {"training.seed": seed}
        return from_mapping(read_yaml(find(self.base)), own, source=f"{self.name}, {variant}")

    def cell_id(self, variant: str, seed: int) -> str:
        content = [self.name, variant, self.config(variant, seed).config_hash]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def load_study(
    path: Path | str, *, seeds: list[int] | None = None, size: str | None = None
) -> Study:
    """Read a study and check it, including all its configurations.

    Args:
        path: YAML file, or the name of a study that ships with Clew.
        seeds: Seeds to use instead of the study's seeds.
        size: One of the study's sizes; None: `quick`, if the study has that size.

    Raises:
        ConfigError: If the file, a key, or the configuration of a cell is not valid.
    """
    study = read_section(Study, find(path, studies), source=str(path))
    if size or QUICK in study.sizes:
        study = study.sized(size or QUICK)
    if seeds is not None:
        _refuse_twice(seeds)
        study = study.model_copy(update={"seeds": seeds})
    for variant in study.variants:
        study.config(variant, study.seeds[0])
    return study


def _refuse_twice(seeds: Sequence[int]) -> None:
    """Refuse a repeated seed; its second round would be trained, but would not count."""
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ConfigError(f"seeds: {twice[0]} is given twice; each round needs its own seed")
