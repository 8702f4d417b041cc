"""Finds configurations, studies and search spaces by name, and reads YAML from untrusted files.

The files in `clew/presets/` are links to files in `experiments/`. An installed package contains the
files that the links point to. So a preset and its file in `experiments/` cannot differ.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from clew.errors import ConfigError, described, printable, quoted, refusing, valid_names
from clew.files import expanded

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[1] / "presets"
STUDIES = "studies"
SPACES = "spaces"
SUFFIXES = (".yaml", ".yml")


def presets() -> dict[str, Path]:
    """Return the shipped configurations by name."""
    found = sorted(SHIPPED.glob("*/*.yaml"))
    return {p.stem: p for p in found if p.parent.name not in (STUDIES, SPACES)}


def studies() -> dict[str, Path]:
    """Return the shipped studies by name."""
    return {p.stem: p for p in sorted((SHIPPED / STUDIES).glob("*.yaml"))}


def spaces() -> dict[str, Path]:
    """Return the shipped search spaces by name."""
    return {p.stem: p for p in sorted((SHIPPED / SPACES).glob("*.yaml"))}


def find(given: str | Path, shipped: Callable[[], dict[str, Path]] = presets) -> Path:
    """Return the file for a path or for the name of a shipped file, such as a preset.

    If a path does not exist but ends with a preset's file name, the preset is used. So commands
    written for another folder, such as `--config configs/colab_optimized.yaml`, still work.

    Raises:
        ConfigError: If there is neither a file nor a preset of that name.
    """
    path = expanded(given)
    if os.path.isfile(path):  # Path.is_file raises for text that cannot be a path
        return path
    said = quoted(str(given))[1:-1]
    name = path.stem if path.suffix in SUFFIXES else path.name
    found = shipped().get(name)
    if found is None:
        what = {presets: "configuration file", studies: "study"}.get(shipped, "search space")
        raise ConfigError(
            f"{said}: no such {what}, and Clew ships with none of that name; "
            f"{valid_names(name, list(shipped()))}"
        )
    here = Path("experiments", found.parent.name, found.name)
    if str(given) not in (name, str(here)):
        logger.warning("%s does not exist; using the %s that ships with Clew", said, name)
    return found


MAX_CHARACTERS = 2**20
MAX_NODES = 100_000
"""Limit on the number of values, lists and mappings, with every alias expanded."""
MAX_DEPTH = 50


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that contains one mapping."""
    if not path.exists():
        raise ConfigError(f"{path}: no such configuration file")
    wrong = f"{path}: cannot be read as UTF-8 text"
    refused = refusing(wrong, OSError, UnicodeDecodeError, error=ConfigError)
    with refused, path.open(encoding="utf-8") as file:
        text = file.read(MAX_CHARACTERS + 1)
    try:
        content = parse_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        found = "is empty" if content is None else f"contains {quoted(content)}"
        raise ConfigError(f"{path}: {found}; expected sections such as `data:`")
    return content


def parse_yaml(text: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"has more than {MAX_CHARACTERS:,} characters; expected a configuration")
    try:
        loader = _UniqueKeyLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_NODES:
            raise ConfigError(f"aliases (*name) expand to more than {MAX_NODES:,} values")
        return loader.construct_document(node)
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        said = printable(" ".join(str(error).split()))[:300]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        # The constructors of dates, numbers and tags raise these for a text that is not one.
        said = f"a value does not fit its type: {described(error)}"
    raise ConfigError(f"not valid YAML ({said})")


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    if id(node) not in known:
        known[id(node)] = MAX_NODES  # a node that contains itself would expand forever
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = (n for child in children for n in (child if type(child) is tuple else [child]))
        known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses deep nesting, repeated keys, and lists or mappings as keys."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConfigError("not valid YAML (brackets are nested too deeply)")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"line {line}: a key is a list or a mapping; expected a name")
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = key_node.value
            if key in seen:
                raise ConfigError(f"line {line}: key {quoted(key)} is given twice; keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)
