"""Converts YAML and overrides into a checked `RunConfig`; every error is one readable line."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from clew.config.base import Section
from clew.config.data import TripleData
from clew.config.files import find, parse_yaml, read_yaml
from clew.config.schema import RunConfig, kind_of, model_classes, section_classes, task_of
from clew.errors import ConfigError, described, quoted, reason_of, similar_name, valid_names

Overrides = Mapping[str, Any]
S = TypeVar("S", bound=Section)

SHOWN_PROBLEMS = 8
GRAPH_FILES = tuple(name for name in TripleData.paths if name not in {"packed", "path", "train"})
"""Keys of `data` for files that belong to one set of training triples."""


def load(path: Path | str, overrides: Overrides | None = None) -> RunConfig:
    """Read a YAML file, or the one of that name that ships with Clew, and check it with overrides.

    Raises:
        ConfigError: If the file is missing or malformed, a key is unknown, or a value is invalid.
    """
    return from_mapping(read_yaml(find(path)), overrides, source=str(path))


def from_mapping(
    content: Mapping[str, Any], overrides: Overrides | None = None, *, source: str = "configuration"
) -> RunConfig:
    """Return the configuration of a nested mapping with overrides applied.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, or values do not fit together.
    """
    overrides = full_settings(overrides or {})
    merged = apply_overrides(spread_short_keys(content), overrides)
    merged.setdefault("data", {})
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        problems = [_describe(p, first=not i) for i, p in enumerate(error.errors())]
        more = len(problems) - SHOWN_PROBLEMS
        shown = "; ".join(problems[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        # If every problem comes from an override, the message does not name the file.
        is_of_file = not all(_place(p)[0] in overrides for p in error.errors())
        raise ConfigError(f"{source}: {shown}" if is_of_file else shown) from None


def read_section(section: type[S], path: Path, *, source: str) -> S:
    """Read a YAML file that contains a single section, such as a study."""
    try:
        return section.model_validate(read_yaml(path))
    except ValidationError as error:
        problem = error.errors()[0]
        owner: type[BaseModel] = section
        for part in problem["loc"][:-1]:
            if part in owner.model_fields:
                owner = (*model_classes(owner.model_fields[str(part)].annotation), owner)[0]
        valid = f"; valid: {', '.join(owner.model_fields)}" if "extra" in problem["type"] else ""
        raise ConfigError(f"{source}: {described(error)}{valid}") from None


def with_settings(
    config: RunConfig, settings: Overrides, *, source: str = "configuration"
) -> RunConfig:
    """Return a checked configuration with some settings changed."""
    return from_mapping(config.model_dump(mode="json"), settings, source=source)


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML; loading it gives the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the resolved configuration as `section.key` to value."""
    return {
        f"{section}.{key}": value
        for section, values in config.model_dump(mode="json").items()
        for key, value in values.items()
    }


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Convert `name=value` texts into overrides."""
    overrides: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{quoted(text)} is not an assignment; write name=value")
        key, value = key.strip(), value.strip()
        overrides[key] = value
        if value.startswith("["):
            try:
                overrides[key] = parse_yaml(value)
            except ConfigError:
                raise ConfigError(f"{value[:100]!r} is not a list; write [first, second]") from None
    return overrides


def apply_overrides(content: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return a copy of `content` with overrides applied.

    If the `kind` of a section is overridden, only the file's keys that the new kind has are kept.
    Training triples or text given as a file replace a named data set, and vice versa.
    """
    merged = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    is_graph = task_of(merged, overrides) == "triples"
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if section not in RunConfig.model_fields:
            known = valid_names(section, list(RunConfig.model_fields))
            raise ConfigError(f"{quoted(key)[1:-1]}: no section {quoted(section)}; {known}")
        target = merged.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{section} is {quoted(target)}; expected keys like {quoted(name)}")
        if not name:
            raise ConfigError(
                f"{section} is {quoted(value)}; give each setting with its own key, such as "
                f"{section}.{next(iter(section_classes(section)[0].model_fields))}"
            )
        if name == "kind":
            for choice in (c for c in section_classes(section) if kind_of(c) == value):
                for stale in target.keys() - choice.model_fields.keys():
                    del target[stale]
        _replace_source(target, key, overrides, is_graph=is_graph)
    for key, value in overrides.items():  # after all removals, which concern the file's keys alone
        section, _, name = key.partition(".")
        merged[section][name] = None if str(value) in ("null", "None") else value
    return merged


def _replace_source(
    target: dict[str, Any], key: str, overrides: Overrides, *, is_graph: bool
) -> None:
    if key != "data.name" and "data.name" in overrides:
        return
    packed = ("packed", "path") if is_graph else ()
    replaced = {
        "data.name": ("train", "dataset", *packed, *GRAPH_FILES),
        "data.train": ("name", *packed, *GRAPH_FILES),
        "data.dataset": ("name",),
        "data.packed": ("name", "path", "train", *GRAPH_FILES) if is_graph else (),
        "data.path": ("name", "packed", "train", *GRAPH_FILES) if is_graph else (),
    }
    for stale in replaced.get(key, ()):
        target.pop(stale, None)


def _describe(problem: Mapping[str, Any], *, first: bool) -> str:
    """Return a problem as one line.

    For an unknown key, the valid keys are listed only if it is the `first` problem, because
    sections have many keys.
    """
    path, names, kinds = _place(problem)
    given = problem.get("input")
    match problem["type"]:
        case "extra_forbidden":
            help_with = valid_names if first else similar_name
            name = quoted(str(problem["loc"][-1]))[1:-1]
            return f"{path}: unknown key; {help_with(name, names)}".removesuffix("; ")
        case "union_tag_invalid" | "union_tag_not_found":
            tag = given.get("kind") if isinstance(given, Mapping) else given
            return f"{path}: {quoted(tag)} is not valid; {valid_names(str(tag), kinds)}"
        case "value_error":
            return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
        case "missing":
            return f"{path}: missing; it has no default"
        case _:
            return f"{path}: {quoted(given)} given, {reason_of(problem)}"


def _place(problem: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """Return where a problem is, as `section.key`, the keys there, and the section's kinds."""
    section, *rest = [quoted(str(part))[1:-1] for part in problem["loc"]] or [""]
    classes = section_classes(section) if section in RunConfig.model_fields else []
    by_kind = {kind_of(c): c for c in classes if "kind" in c.model_fields}
    if rest and rest[0] in by_kind:  # pydantic adds the kind
        classes = [by_kind[rest.pop(0)]]
    if problem["type"].startswith("union_tag"):
        rest.append("kind")
    keys = classes[0].model_fields if rest else RunConfig.model_fields
    return ".".join([section, *rest]), list(keys), list(by_kind)


SHORT_KEYS = {
    "epochs": "training.num_epochs",
    "batch_size": "training.batch_size",
    "seed": "training.seed",
    "patience": "training.early_stopping_patience",
    "lr": "optimizer.learning_rate",
    "memory_optimized": "model.channels",
    "gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "use_mixed_precision": "optimizations.use_mixed_precision",
    "mixed_precision_dtype": "optimizations.mixed_precision_dtype",
    "use_gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "enable_memory_cleanup": "optimizations.enable_memory_cleanup",
}
"""Short names that are not keys, or that are keys of several sections."""
FULL_CHANNELS, REDUCED_CHANNELS = (64, 128, 256), (32, 64, 128)


@functools.cache
def _keys_by_name() -> dict[str, list[str]]:
    """Return the keys that each short name can mean."""
    found: dict[str, list[str]] = {}
    for section in RunConfig.model_fields:
        for name in dict.fromkeys(n for c in section_classes(section) for n in c.model_fields):
            found.setdefault(name, []).append(f"{section}.{name}")
    found["seeds"].insert(0, "training.seed")  # seeds=3 is not taken for three training runs
    return found | {name: [key] for name, key in SHORT_KEYS.items()}


def full_key(name: str) -> str:
    """Return `section.key` for a short name that means only one setting.

    Raises:
        ConfigError: If no setting or several settings have that name.
    """
    if "." in name or name in RunConfig.model_fields:
        return name
    short = name.replace("-", "_")
    keys = _keys_by_name().get(short, [])
    if len(keys) == 1:
        return keys[0]
    said = f"{quoted(name)[1:-1]} means {' or '.join(keys) or 'no setting'}; write section.key"
    near = "" if keys else f"; {similar_name(short, list(_keys_by_name()))}"
    raise ConfigError(f"{said}{near}".removesuffix("; "))


def full_settings(settings: Overrides) -> dict[str, Any]:
    """Return settings with `section.key` in place of short names."""
    full: dict[str, Any] = {}
    for name, given in settings.items():
        key, value = full_key(name), given
        if name == "memory_optimized":
            if str(given).lower() not in ("true", "false"):
                raise ConfigError(f"memory_optimized is {quoted(given)}; expected true or false")
            value = REDUCED_CHANNELS if str(given).lower() == "true" else FULL_CHANNELS
        _set_once(full, key, value, name=name, key=key)
    return full


def _set_once(target: dict[str, Any], place: str, value: Any, *, name: str, key: str) -> None:
    if place in target:
        said = f"{key} and a short name of it" if name == key else f"{name} and {key}"
        raise ConfigError(f"{said} are both given and mean the same; remove one of them")
    target[place] = value


def spread_short_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw configuration with its short keys moved into their sections."""
    spread = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    for name in content.keys() & (_keys_by_name().keys() - RunConfig.model_fields.keys()):
        ((key, value),) = full_settings({name: spread.pop(name)}).items()
        section, _, place = key.partition(".")
        target = spread.setdefault(section, {})
        if not isinstance(target, dict):
            said = f"{section} is {quoted(target)}"
            raise ConfigError(f"{said}; expected keys, because {name} is given")
        _set_once(target, place, value, name=name, key=key)
    return spread
