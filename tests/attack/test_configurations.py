"""YAML files, settings on the command line, studies and search spaces."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.files import presets, spaces, studies
from clew.config.load import flatten, from_mapping, load, parse_assignments, to_yaml
from clew.config.schema import RunConfig
from clew.config.study import load_space, load_study
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_bytes, damaged_value, texts, values

pytestmark = pytest.mark.slow

SOURCES = {name: path.read_bytes() for name, path in sorted(presets().items())}
CONTENTS = {name: yaml.safe_load(content) for name, content in SOURCES.items()}
"""The good files, read once; cases only change them."""
KEYS = sorted({key for name in SOURCES for key in flatten(load(name))})
Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def damaged_yaml(draw: DrawFn, source: bytes, content: Any) -> bytes:
    if draw(st.booleans()):
        return draw(damaged_bytes(source))
    changed = draw(damaged_value(content))
    try:
        written: bytes = yaml.dump(changed, Dumper=Dumper, encoding="utf-8")
    except UnicodeEncodeError:  # lone surrogates, which only the slow writer can write
        text: str = yaml.safe_dump(changed, allow_unicode=False)
        written = text.encode("utf-8", "surrogatepass")
    return written


def check(config: RunConfig) -> None:
    """Check that an accepted configuration can be written."""
    to_yaml(config).encode()


def test_files(place: Path) -> None:
    def case(draw: DrawFn) -> None:
        path = place / "config.yaml"
        name = draw(st.sampled_from(sorted(SOURCES)))
        path.write_bytes(damaged_yaml(draw, SOURCES[name], CONTENTS[name]))
        attempt(lambda: check(load(path)))

    fuzz(0.08, case)


def test_settings() -> None:
    def case(draw: DrawFn) -> None:
        keys = st.one_of(st.sampled_from(KEYS), texts)
        given = st.one_of(texts, values.map(str), st.sampled_from(["[1", "[[]]", "[*a]", "null"]))
        pairs = draw(st.lists(st.tuples(keys, given), min_size=1, max_size=3))
        assignments = [f"{key}={value}" for key, value in pairs]
        attempt(lambda: check(from_mapping(CONTENTS["umls"], parse_assignments(assignments))))

    fuzz(0.06, case)


def test_values_from_python() -> None:
    def case(draw: DrawFn) -> None:
        overrides = draw(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
        name = draw(st.sampled_from(sorted(SOURCES)))
        attempt(lambda: check(from_mapping(CONTENTS[name], overrides)))

    fuzz(0.04, case)


def test_names_of_configurations() -> None:
    def case(draw: DrawFn) -> None:
        given = draw(texts)
        attempt(lambda: load(given))

    fuzz(0.01, case)


def test_studies_and_search_spaces(place: Path) -> None:
    shipped = {path: path.read_bytes() for path in (*studies().values(), *spaces().values())}
    contents = {path: yaml.safe_load(content) for path, content in shipped.items()}
    is_space = set(spaces().values())
    path, umls = place / "study.yaml", load("umls")

    def case(draw: DrawFn) -> None:
        source = draw(st.sampled_from(list(shipped)))
        path.write_bytes(damaged_yaml(draw, shipped[source], contents[source]))
        attempt(lambda: load_space(path, umls) if source in is_space else load_study(path))

    fuzz(0.02, case)
