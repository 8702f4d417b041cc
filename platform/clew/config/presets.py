"""Finds the configurations, studies and search spaces that ship with Clew by name.

The files in `clew/presets/` are links to files in `experiments/`. An installed package contains the
files that the links point to. So a preset and its file in `experiments/` cannot differ.
"""

import logging
import os
from pathlib import Path

from clew.errors import ConfigError, quoted, valid_names
from clew.folders import expanded

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
    return {p.stem: p for p in sorted((SHIPPED / SPACES).glob("*.yaml"))}


def find_configuration(given: str | Path) -> Path:
    """Return the file for a path or for the name of a preset.

    If a path does not exist but ends with a preset's file name, the preset is used. So commands
    written for another folder, such as `--config configs/colab_optimized.yaml`, still work.

    Raises:
        ConfigError: If there is neither a file nor a preset of that name.
    """
    return _find(given, presets(), "configuration file")


def find_study(given: str | Path) -> Path:
    """Return the file for a path or for the name of a study.

    Raises:
        ConfigError: If there is neither a file nor a study of that name.
    """
    return _find(given, studies(), "study")


def find_space(given: str | Path) -> Path:
    """Return the file for a path or for the name of a search space.

    Raises:
        ConfigError: If there is neither a file nor a search space of that name.
    """
    return _find(given, spaces(), "search space")


def _find(given: str | Path, shipped: dict[str, Path], what: str) -> Path:
    path = expanded(given)
    if os.path.isfile(path):  # Path.is_file raises for text that cannot be a path
        return path
    said = quoted(str(given))[1:-1]
    name = path.stem if path.suffix in SUFFIXES else path.name
    found = shipped.get(name)
    if found is None:
        raise ConfigError(
            f"{said}: no such {what}, and Clew ships with none of that name; "
            f"{valid_names(name, list(shipped))}"
        )
    here = Path("experiments", found.parent.name, found.name)
    if str(given) not in (name, str(here)):
        logger.warning("%s does not exist; using the %s that ships with Clew", said, name)
    return found
