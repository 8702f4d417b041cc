"""Converts YAML and overrides into a checked `RunConfig`; every error is one readable line."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from clew.config.base import Section
from clew.config.data import TripleData
from clew.config.files import find_configuration, parse_yaml, read_yaml
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import ConfigError, described, quoted, reason_of, similar_name, valid_names

Overrides = Mapping[str, Any]
S = TypeVar("S", bound=Section)

SHOWN_PROBLEMS = 8
GRAPH_FILES = tuple(name for name in TripleData.paths if name not in {"packed", "train"})
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
    overrides = full_settings(overrides or {})
    merged = apply_overrides(spread_short_keys(content), overrides)
    merged.setdefault("data", {})
    _fill_kinds(merged)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        problems = [_describe(dict(p), first=not i) for i, p in enumerate(error.errors())]
        more = len(problems) - SHOWN_PROBLEMS
        shown = "; ".join(problems[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        # If every problem comes from an override, the message does not name the file.
        is_of_file = not all(_path(dict(p)) in overrides for p in error.errors())
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
    """Convert `name=value` texts into overrides.

    Raises:
        ConfigError: If an assignment has no `=`.
    """
    overrides: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{quoted(text)} is not an assignment; write name=value")
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
    is_graph = task_of(content, overrides) == "triples"
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
        _replace_source(target, key, overrides, is_graph=is_graph)
        target[name] = None if value in ("null", "None") else value
    # Overrides can be in any order, so this restores the keys that `data.train` has removed.
    for key, value in overrides.items():
        if key.startswith("data."):
            merged["data"][key.partition(".")[2]] = None if value in ("null", "None") else value
    return merged


def _replace_source(
    target: dict[str, Any], key: str, overrides: Overrides, *, is_graph: bool
) -> None:
    if key != "data.name" and "data.name" in overrides:
        return
    packed = ("packed",) if is_graph else ()
    replaced = {
        "data.name": ("train", "dataset", *packed, *GRAPH_FILES),
        "data.train": ("name", *packed, *GRAPH_FILES),
        "data.dataset": ("name",),
        "data.packed": ("name", "train", *GRAPH_FILES) if is_graph else (),
    }
    for stale in replaced.get(key, ()):
        target.pop(stale, None)


def task_of(content: Mapping[str, Any], overrides: Overrides) -> str:
    """Return the kind of data that fits the given kinds and keys best; the first if all fit."""
    given = {section: _keys(content.get(section)) for section in ("data", "model", "loss")}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        given.get(section, {})[name] = value

    def misfit(task: str) -> int:
        allowed = _allowed(task)
        return sum(
            (FAR if section == "data" else FAR // 10) * (values["kind"] not in allowed[section])
            if "kind" in values
            else min(_num_unknown(values, choice) for choice in _choices(section, allowed))
            for section, values in given.items()
        )

    return min(TASK_KINDS, key=misfit)


FAR = 1_000
"""Weight of a wrong kind, against 1 for a key that a kind does not have."""


def _keys(section: Any) -> dict[str, Any]:
    return dict(section) if isinstance(section, Mapping) else {}


def _allowed(task: str) -> dict[str, tuple[str, ...]]:
    fitting = TASK_KINDS[task]
    return {"data": (task,), "model": fitting.models, "loss": fitting.losses}


def _choices(section: str, allowed: Mapping[str, tuple[str, ...]]) -> list[type[BaseModel]]:
    """Return the classes of a section that are allowed, the default first."""
    known = {_kind_of(choice): choice for choice in _classes_or_none(section)}
    return [known[kind] for kind in allowed.get(section, tuple(known))]


def _num_unknown(values: Mapping[str, Any], choice: type[BaseModel]) -> int:
    return len(values.keys() - choice.model_fields.keys())


def _fill_kinds(content: Mapping[str, Any]) -> None:
    """Set each missing `kind` to the first that has the given keys and fits the task."""
    allowed = _allowed(task_of(content, {}))
    for section, target in content.items():
        choices = _choices(section, allowed)
        if isinstance(target, dict) and "kind" not in target and choices:
            target["kind"] = _kind_of(min(choices, key=functools.partial(_num_unknown, target)))


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


SHORT_KEYS = {
    "epochs": "training.num_epochs",
    "batch_size": "training.batch_size",
    "patience": "training.early_stopping_patience",
    "workers": "training.num_workers",
    "lr": "optimizer.learning_rate",
    "dim": "model.embedding_dim",
    "memory_optimized": "model.channels",
    "fp16": "optimizations.use_mixed_precision",
    "amp": "optimizations.use_mixed_precision",
    "mixed_precision": "optimizations.use_mixed_precision",
    "gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "compile": "optimizations.torch_compile",
    "use_mixed_precision": "optimizations.use_mixed_precision",
    "mixed_precision_dtype": "optimizations.mixed_precision_dtype",
    "use_gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "enable_memory_cleanup": "optimizations.enable_memory_cleanup",
}
"""Short names whose key has another name, or that several sections have."""
FULL_CHANNELS, REDUCED_CHANNELS = (64, 128, 256), (32, 64, 128)


def full_key(name: str) -> str:
    """Return `section.key` for a short name that means only one setting.

    Raises:
        ConfigError: If no setting or several settings have that name.
    """
    short = name.replace("-", "_")
    if "." in name or name in RunConfig.model_fields:
        return name
    if short in SHORT_KEYS:
        return SHORT_KEYS[short]
    match _keys_by_name().get(short, []):
        case [key]:
            return key
        case []:
            near = similar_name(short, [*SHORT_KEYS, *_keys_by_name()])
            said = f"{quoted(name)[1:-1]}: no such setting; write section.key=value, or a short name"
            raise ConfigError(f"{said}; {near}".removesuffix("; "))
        case keys:
            raise ConfigError(f"{name} means several settings; write {' or '.join(keys)}")


@functools.cache
def _keys_by_name() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for section in RunConfig.model_fields:
        for name in dict.fromkeys(n for c in section_classes(section) for n in c.model_fields):
            found.setdefault(name, []).append(f"{section}.{name}")
    return found


def full_settings(settings: Overrides) -> dict[str, Any]:
    """Return settings with `section.key` in place of short names.

    Raises:
        ConfigError: If a name is unknown, ambiguous, or means the same as another one.
    """
    full: dict[str, Any] = {}
    for name, given in settings.items():
        key, value = full_key(name), given
        if name == "memory_optimized":
            if str(given).lower() not in ("true", "false"):
                raise ConfigError(f"memory_optimized is {quoted(given)}; expected true or false")
            value = REDUCED_CHANNELS if str(given).lower() == "true" else FULL_CHANNELS
        if key in full:
            raise _given_twice(name, key)
        full[key] = value
    return full


def _given_twice(name: str, key: str) -> ConfigError:
    return ConfigError(f"{name} and {key} are both given and mean the same; remove one of them")


def spread_short_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw configuration with its short keys moved into their sections.

    Raises:
        ConfigError: If a setting is given by both keys, or if its value or its section is invalid.
    """
    spread = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    known = SHORT_KEYS.keys() | _keys_by_name().keys() - RunConfig.model_fields.keys()
    for name in content.keys() & known:
        ((key, value),) = full_settings({name: spread.pop(name)}).items()
        section, _, inner = key.partition(".")
        target = spread.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(
                f"{section} is {quoted(target)}; expected keys, because {name} is given"
            )
        if inner in target:
            raise _given_twice(name, key)
        target[inner] = value
    return spread
