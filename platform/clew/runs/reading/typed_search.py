"""What a person types to find runs, as a condition in MLflow's filter language.

`embedding_dim=400 mrr>0.9 data:umls` means that all three must hold. A part without a sign is part
of a run's name, or a run's whole id.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.config.load import SHORT_KEYS
from clew.config.schema import section_classes
from clew.errors import UsageError, similar_name, valid_names

TAGS = {"data": names.TAG_DATASET, "parent": MLFLOW_PARENT_RUN_ID, "note": names.TAG_NOTE}
"""Tags that have another name here; `variant` is `clew.variant`, and `user` is `mlflow.user`."""
STATES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
SPLITS = ("valid", "test", "train")
"""Of metrics with the same last part, `mrr` means that of the first of these."""

_WORDS = re.compile(r'(?:"[^"]*"|\S)+')
_PART = re.compile(r'([^\s:=<>!"]+)(<=|>=|!=|[:=<>])(.+)', re.DOTALL)


@dataclass(frozen=True)
class Keys:
    """The names of what the runs of a store recorded."""

    metrics: frozenset[str]
    params: frozenset[str]
    tags: frozenset[str]


def condition(text: str, known: Callable[[], Keys]) -> str:
    """Return the condition; `known` is called if a part has a name.

    Raises:
        UsageError: A part cannot be understood.
    """
    return " AND ".join(_clause(part, known) for part in _WORDS.findall(text))


def quoted(text: str) -> str:
    """Return a string literal for MLflow's filter language, which cannot escape quotes."""
    return '"' + text.replace('"', "_") + '"' if "'" in text else f"'{text}'"


def _clause(part: str, known: Callable[[], Keys]) -> str:
    split, plain = _PART.fullmatch(part), part.replace('"', "")
    if split is None:
        if re.fullmatch(r"[0-9a-f]{32}", plain):
            return f"attributes.run_id = '{plain}'"
        return f"attributes.run_name ILIKE {quoted(f'%{plain}%')}"
    name, sign, value = split[1], split[2], split[3].replace('"', "")
    if name == "state":
        if value not in STATES or sign not in ":=":
            raise UsageError(f"{plain}: {valid_names(value, list(STATES))}")
        return f"attributes.status = '{STATES[value]}'"
    kind, key = ("tags", TAGS[name]) if name in TAGS else _meaning(name, known())
    place = f"{kind}.`{key}`"
    if kind == "metrics":
        if not re.fullmatch(r"-?(\d{1,20}\.?\d*|\.\d+)(e[+-]?\d\d?)?", value):
            raise UsageError(f"{plain}: a metric is compared with a number, such as 0.9")
        return f"{place} {sign.replace(':', '=')} {float(value):.17f}"
    if sign in (">", "<", ">=", "<="):
        raise UsageError(f"{plain}: {name} is kept as text and has no order; use =, != or :")
    if sign == ":":
        return f"{place} ILIKE {quoted(f'%{value}%')}"
    return f"{place} {sign} {quoted(_recorded(key, value) if kind == 'params' else value)}"


def _meaning(name: str, keys: Keys) -> tuple[str, str]:
    """Return whether a name is that of `metrics`, `params` or `tags`, and the whole name."""
    kind, _, rest = name.partition(".")
    if kind in vars(keys) and rest and "`" not in rest:  # MLflow cannot quote it
        return kind, rest
    short = name.replace("-", "_")
    setting = names.PARAMETER_PREFIX + SHORT_KEYS.get(short, short)
    settings = [key for key in keys.params if key.startswith(names.PARAMETER_PREFIX)]
    splits = [key for split in SPLITS if (key := f"{split}/{name}") in keys.metrics]
    for where, found in (
        ("tags", {f"clew.{name}"} & keys.tags),
        ("params", {setting} & keys.params),
        ("params", {key for key in settings if key.endswith(f".{short}")}),
        ("metrics", {name} & keys.metrics),
        ("metrics", set(splits[:1])),
        ("metrics", {key for key in keys.metrics if key.endswith(f"/{name}")}),
        ("tags", {name, f"mlflow.{name}"} & keys.tags),
        ("params", {name} & keys.params),
    ):
        if len(found) > 1:
            raise UsageError(f"{name} means {' or '.join(sorted(found))}; write one of them")
        if found:
            return where, found.pop()
    every = {re.split(r"[./]", key)[-1] for key in keys.metrics | keys.params | keys.tags}
    near = [key for key in sorted(every) if short in key] or [short]
    said = f"no run has a setting, metric or tag {name!r}"
    question = similar_name(near[0], sorted(every))
    raise UsageError("; ".join(filter(None, (said, "names of runs go in quotes", question))))


def _recorded(key: str, value: str) -> str:
    """Return a setting's value as a run records it: `1e-3` as `0.001`."""
    section, _, name = key.removeprefix(names.PARAMETER_PREFIX).partition(".")
    for owner in section_classes(section) if key.startswith(names.PARAMETER_PREFIX) else []:
        if name in owner.model_fields:
            try:
                field: Any = owner.model_fields[name].annotation
                read = TypeAdapter(field).validate_python(value)
            except ValidationError:
                continue
            return read if isinstance(read, str) else json.dumps(read)
    return value
