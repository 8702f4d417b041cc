"""Studies: variants of one configuration, run with several seeds and compared with a reference."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from clew.config.base import Section
from clew.config.files import find_configuration, find_study, read_yaml
from clew.config.load import from_mapping, read_section
from clew.config.schema import RunConfig
from clew.errors import ConfigError, quoted

INFLUENCE_PREFIX = "influence."
QUICK = "quick"
MEMORY = {"memory/process_": "process memory", "memory/gpu_": "GPU memory"}
"""Prefix of a metric to the kind of memory that it measures; a claim's text must name the kind."""


def memory_of(metric: str) -> str | None:
    """Return which kind of memory a metric measures; None if it measures something else."""
    return next((kind for start, kind in MEMORY.items() if metric.startswith(start)), None)


class Measure(Section):
    """A metric that the study compares."""

    metric: str
    """Metric key, for example `throughput/examples_per_second`."""
    label: str
    """Title in tables and figures."""


class Claim(Section):
    """A statement about a variant: bounds on how it compares with the reference."""

    variant: str
    """Variant that the claim is about."""
    metric: str
    """Metric that the claim is about. If it measures memory, the text must say which kind."""
    at_least: float | None = None
    """The measured value should be at least this."""
    at_most: float | None = None
    """The measured value should be at most this."""
    text: str
    """The claim in words."""
    source: str = ""
    """Where the claim was published, and its wording there."""
    needs: Literal["any", "gpu"] = "any"
    """Hardware that is needed to confirm or refute the claim."""
    about: Literal["ratio", "value", "difference"] = "ratio"
    """Whether the bound applies to the ratio to the reference, to the variant's own value, or to
    the difference from the reference. The whole 95 % interval over rounds must satisfy it."""
    against: str | None = None
    """Variant to compare with, instead of the study's reference."""

    def holds(self, measured: float) -> bool:
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )


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
    claims: list[Claim] = Field(default_factory=list)
    """Statements about the variants."""
    sizes: dict[str, Size] = Field(default_factory=dict)
    """Sizes to choose from, for example `quick` for two cores and `full` for a GPU."""

    @property
    def reference(self) -> str:
        return next(iter(self.variants))

    @model_validator(mode="after")
    def _claims_fit(self) -> "Study":
        metrics = [measure.metric for measure in self.measures]
        for claim in self.claims:
            for variant in filter(None, (claim.variant, claim.against)):
                if variant not in self.variants:
                    raise ValueError(
                        f"claim about variant {quoted(variant)}; valid: {', '.join(self.variants)}"
                    )
            if claim.metric not in metrics:
                raise ValueError(
                    f"claim about {quoted(claim.metric)}; measured: {', '.join(metrics)}"
                )
            if claim.at_least is None and claim.at_most is None:
                raise ValueError(f"claim {quoted(claim.text)}: give at_least or at_most")
            low, high = claim.at_least, claim.at_most
            if low is not None and high is not None and low > high:
                raise ValueError(
                    f"claim {quoted(claim.text)}: at_least {low} is more than at_most {high}; "
                    "correct one of them"
                )
            memory = memory_of(claim.metric)
            if memory is not None and memory not in claim.text:
                raise ValueError(f"claim {quoted(claim.text)}: the text must name {memory}")
        return self

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
        return from_mapping(read_yaml(find_configuration(self.base)), settings, source=self.name)

    def influence_settings(self, variant: str) -> dict[str, Any]:
        """Return the settings of a variant of a tracin study, as `influence.key` to value."""
        settings = self.overrides | self.variants[variant]
        return {k: v for k, v in settings.items() if k.startswith(INFLUENCE_PREFIX)}

    def config(self, variant: str, seed: int) -> RunConfig:
        """Return the configuration of one cell."""
        own = self.overrides | self.variants[variant] | {"training.seed": seed}
        return from_mapping(
            read_yaml(find_configuration(self.base)), own, source=f"{self.name}, {variant}"
        )

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
    study = read_section(Study, find_study(path), source=str(path))
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
