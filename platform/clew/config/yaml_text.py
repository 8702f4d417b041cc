"""Reads YAML that anybody may have written: plain values only, and no more than a person writes."""

from pathlib import Path
from typing import Any

import yaml

from clew.errors import ConfigError, described, printable, quoted

MAX_CHARACTERS = 2**20
MAX_NODES = 100_000
"""Values, lists and mappings, with every alias written out."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({described(error)})") from None
    try:
        content = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"contains {quoted(content)}"
        raise ConfigError(f"{path}: {found}; expected sections such as `data:`")
    return content


def parse_yaml(text: str) -> Any:
    """Return what a YAML text says.

    Raises:
        ConfigError: it is not valid, too large, or holds a value that is none.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"more than {MAX_CHARACTERS:,} characters, which no configuration has")
    try:
        loader = _UniqueKeyLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_NODES:
            raise ConfigError(f"aliases (*name) stand for more than {MAX_NODES:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ConfigError("not valid YAML (brackets within brackets without end)") from None
    except yaml.YAMLError as error:
        said = printable(" ".join(str(error).split()))
        raise ConfigError(f"not valid YAML ({said[:300]})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        # How the constructors of dates, numbers and tags say that a text is none.
        raise ConfigError(
            f"not valid YAML (a value is none of its kind: {described(error)})"
        ) from None


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many nodes there are when every alias is written out."""
    if id(node) not in known:
        known[id(node)] = MAX_NODES  # one that holds itself has no end
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = (
            part for child in children for part in (child if type(child) is tuple else [child])
        )
        known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses repeated keys, and keys that are lists or mappings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"line {line}: a key is a list or a mapping; give it a name")
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = key_node.value
            if key in seen:
                raise ConfigError(
                    f"line {line}: key {quoted(key)} is given twice; keep one of them"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
