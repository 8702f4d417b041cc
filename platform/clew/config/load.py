"""Converts YAML and overrides into a checked `RunConfig`; every error is one readable line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from clew.config.base import Section
from clew.config.data import TripleData
from clew.config.files import find_configuration, parse_yaml, read_yaml
from clew.config.schema import RunConfig, TaskKind, fitting_kinds
from clew.errors import ConfigError, described, quoted, reason_of, similar_name, valid_names

Overrides = Mapping[str, Any]
S = TypeVar("S", bound=Section)

SHOWN_PROBLEMS = 8
GRAPH_FILES = tuple(name for name in TripleData.paths if name not in {"packed", "path", "train"})
"""Keys of `data` for files that belong to one set of training triples."""


def load(path: Path | str, overrides: Overrides | None = None) -> RunConfig:
    """Read a YAML file, apply overrides (`section.key` to value) and check the result.

    Args:
        path: The file, or the name of a configuration that ships with Clew.
        overrides: Settings that replace those of the file.

    Raises:
        ConfigError: If the file is missing or malformed, a key is unknown, or a value is invalid.
    """
    return from_mapping(read_yaml(find_configuration(path)), overrides, source=str(path))


def from_mapping(
    content: Mapping[str, Any], overrides: Overrides | None = None, *, source: str = "configuration"
) -> RunConfig:
    """Return the configuration of a nested mapping with overrides applied.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, or values do not fit together.
    """
    merged = apply_overrides(spread_flat_keys(content), overrides or {})
    fitting = fitting_kinds(merged)
    for section in RunConfig.model_fields.keys() & merged.keys():
        _fill_kind(merged[section], section, fitting)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        problems = [_describe(dict(p), first=not i) for i, p in enumerate(error.errors())]
        more = len(problems) - SHOWN_PROBLEMS
        shown = "; ".join(problems[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        # If every problem comes from an override, the message does not name the file.
        is_of_file = not all(_path(dict(p)) in (overrides or {}) for p in error.errors())
        raise ConfigError(f"{source}: {shown}" if is_of_file else shown) from None


def read_section(section: type[S], path: Path, *, source: str) -> S:
    """Read a YAML file that contains a single section, such as a study.

    Raises:
        ConfigError: If the file is missing or malformed, a key is unknown, or a value is invalid.
    """
    try:
        return section.model_validate(read_yaml(path))
    except ValidationError as error:
        problem = error.errors()[0]
        owner: type[BaseModel] = section
        for part in problem["loc"][:-1]:
            if part in owner.model_fields:
                owner = (*_model_classes(owner.model_fields[str(part)].annotation), owner)[0]
        valid = f"; valid: {', '.join(owner.model_fields)}" if "extra" in problem["type"] else ""
        raise ConfigError(f"{source}: {described(error)}{valid}") from None


def with_settings(
    config: RunConfig, settings: Overrides, *, source: str = "configuration"
) -> RunConfig:
    """Return a checked configuration with some settings changed.

    Raises:
        ConfigError: If a key is unknown, a value is invalid, or values do not fit together.
    """
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
    """Convert `section.key=value` texts into overrides.

    Raises:
        ConfigError: If an assignment has no `=` or no section.
    """
    overrides: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"{quoted(text)} is not an assignment; write section.key=value")
        overrides[key.strip()] = _read_value(value.strip())
    return overrides


def _read_value(text: str) -> Any:
    if not text.startswith("["):
        return text
    try:
        return parse_yaml(text)
    except ConfigError:
        raise ConfigError(f"{text[:100]!r} is not a list; write [first, second]") from None


def apply_overrides(content: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return a copy of `content` with overrides applied.

    If the `kind` of a section is overridden, only the file's keys that the new kind has are kept.
    Training triples or text given as a file replace a named data set, and vice versa.

    Raises:
        ConfigError: If a section is unknown, or a section or an override has no keys.
    """
    merged = {
        name: dict(values) if isinstance(values, Mapping) else values
        for name, values in content.items()
    }
    # A kind removes the file's keys that it does not have, but never a key of another override.
    kinds_first = sorted(overrides.items(), key=lambda item: not item[0].endswith(".kind"))
    for key, value in kinds_first:
        section, _, name = key.partition(".")
        if section not in RunConfig.model_fields:
            known = valid_names(section, _sections())
            raise ConfigError(f"{quoted(key)[1:-1]}: no section {quoted(section)}; {known}")
        target = merged.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(
                f"{section} is {quoted(target)}; expected keys such as {quoted(name)}"
            )
        if not name:
            raise ConfigError(
                f"{section} is {quoted(value)}; give each setting with its own key, such as "
                f"{section}.{_example_key(section)}"
            )
        if name == "kind":
            _keep_common_keys(target, section, value)
        _replace_source(target, key, overrides)
        target[name] = None if value in ("null", "None") else value
    # Overrides can be in any order, so this restores the keys that `data.train` has removed.
    for key, value in overrides.items():
        if key.startswith("data."):
            merged["data"][key.partition(".")[2]] = None if value in ("null", "None") else value
    return merged


def _replace_source(target: dict[str, Any], key: str, overrides: Overrides) -> None:
    if key != "data.name" and "data.name" in overrides:
        return
    is_graph = overrides.get("data.kind", target.get("kind", "triples")) == "triples"
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


def _fill_kind(target: Any, section: str, fitting: TaskKind | None) -> None:
    """Set the missing `kind` of a section to one that fits the data, or to the section's first."""
    classes = _classes_or_none(section)
    if not isinstance(target, dict) or "kind" in target or not classes:
        return
    implied = {"model": fitting.models[0], "loss": fitting.losses[0]} if fitting else {}
    target["kind"] = implied.get(section, _kind_of(classes[0]))


def _kind_of(choice: type[BaseModel]) -> str:
    kind: str = choice.model_fields["kind"].default
    return kind


def _keep_common_keys(target: dict[str, Any], section: str, kind: str) -> None:
    """Remove the keys that the section's new kind does not have."""
    for choice in section_classes(section):
        if _kind_of(choice) == kind:
            for name in [n for n in target if n not in choice.model_fields]:
                del target[name]


def _sections() -> list[str]:
    return list(RunConfig.model_fields)


def _example_key(section: str) -> str:
    return next(iter(section_classes(section)[0].model_fields))


def section_classes(section: str) -> list[type[BaseModel]]:
    """Return the possible classes of a section, one for each `kind`."""
    field: FieldInfo = RunConfig.model_fields[section]
    return _model_classes(field.annotation)


def _model_classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _model_classes(part)]


def _describe(problem: dict[str, Any], *, first: bool) -> str:
    """Return a problem as one line.

    For an unknown key, the valid keys are listed only if it is the `first` problem, because
    sections have many keys.
    """
    location = [quoted(str(part))[1:-1] for part in problem["loc"]]
    kinds, path = _kinds_of(problem["loc"]), _path(problem)
    given = problem.get("input")
    match problem["type"]:
        case "extra_forbidden":
            names = _valid_keys(location, kinds)
            help_with = valid_names if first else similar_name
            return f"{path}: unknown key; {help_with(location[-1], names)}".removesuffix("; ")
        case "union_tag_invalid" | "union_tag_not_found":
            tag = given.get("kind") if isinstance(given, Mapping) else given
            return f"{path}: {quoted(tag)} is not valid; {valid_names(str(tag), kinds)}"
        case "value_error":
            return f"{path}: {problem['ctx']['error']}" if path else str(problem["ctx"]["error"])
        case "missing":
            return f"{path}: missing; it has no default"
        case _:
            return f"{path}: {quoted(given)} given, {reason_of(problem)}"


def _path(problem: dict[str, Any]) -> str:
    """Return the location of a problem as `section.key`, without the kind that a union adds."""
    parts = [quoted(str(part))[1:-1] for part in problem["loc"]]
    if problem["type"].startswith("union_tag"):
        parts.append("kind")
    kinds = _kinds_of(problem["loc"])
    return ".".join(part for i, part in enumerate(parts) if not (i == 1 and part in kinds))


def _kinds_of(location: Sequence[int | str]) -> list[str]:
    return [_kind_of(c) for c in _classes_or_none(str(location[0]))] if location else []


def _classes_or_none(section: str) -> list[type[BaseModel]]:
    if section not in RunConfig.model_fields:
        return []
    return [c for c in section_classes(section) if "kind" in c.model_fields]


def _valid_keys(location: list[str], kinds: list[str]) -> list[str]:
    if len(location) == 1:
        return _sections()
    classes = section_classes(location[0])
    if len(location) > 2 and location[1] in kinds:
        classes = [c for c in classes if _kind_of(c) == location[1]]
    return list(classes[0].model_fields)


FLAT_KEYS: dict[str, str] = {
    "architecture": "model.architecture",
    "memory_optimized": "model.channels",
    "temporal_frames": "data.temporal_frames",
    "batch_size": "training.batch_size",
    "epochs": "training.num_epochs",
    "gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "torch_compile": "optimizations.torch_compile",
    "torch_compile_mode": "optimizations.torch_compile_mode",
}
"""Top-level key to configuration key."""
FULL_CHANNELS, REDUCED_CHANNELS = (64, 128, 256), (32, 64, 128)
IMPLIED_KINDS = {"data": "image_sequences", "model": "sequence_regression"}


def spread_flat_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw configuration with its short keys moved into their sections.

    Raises:
        ConfigError: If a setting is given by both keys, or if its value or its section is invalid.
    """
    spread = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    flat = {name: spread.pop(name) for name in FLAT_KEYS if name in spread}
    if not flat:
        return spread
    for section, kind in IMPLIED_KINDS.items():
        _section(spread, section, name=next(iter(flat))).setdefault("kind", kind)
    for name, value in flat.items():
        section, _, key = FLAT_KEYS[name].partition(".")
        target = _section(spread, section, name=name)
        if key in target:
            raise ConfigError(
                f"{name} and {section}.{key} are both given and mean the same; remove one of them"
            )
        if name == "memory_optimized":
            if not isinstance(value, bool):
                raise ConfigError(f"memory_optimized is {quoted(value)}; expected true or false")
            target[key] = REDUCED_CHANNELS if value else FULL_CHANNELS
        else:
            target[key] = value
    return spread


def _section(content: dict[str, Any], section: str, *, name: str) -> dict[str, Any]:
    target = content.setdefault(section, {})
    if not isinstance(target, dict):
        raise ConfigError(f"{section} is {quoted(target)}; expected keys, because {name} is given")
    return target
