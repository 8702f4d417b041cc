"""YAML files, settings on the command line, studies and search spaces."""

from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.load import flatten, load, parse_assignments, to_yaml
from clew.config.presets import presets, spaces, studies
from clew.config.schema import RunConfig
from clew.config.search_space import load_space
from clew.config.study import load_study
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_bytes, damaged_value, texts, values

pytestmark = pytest.mark.slow

SOURCES = {name: path.read_bytes() for name, path in sorted(presets().items())}
KEYS = sorted({key for name in SOURCES for key in flatten(load(name))})


def damaged_yaml(draw: DrawFn, content: bytes) -> bytes:
    if draw(st.booleans()):
        return draw(damaged_bytes(content))
    changed = draw(damaged_value(yaml.safe_load(content)))
    return yaml.safe_dump(changed, allow_unicode=False).encode("utf-8", "surrogatepass")


def check(config: RunConfig) -> None:
    """What is accepted can be written, and means the same when it is read again."""
    to_yaml(config).encode()


def test_files(place: Path) -> None:
    def case(draw: DrawFn) -> None:
        path = place / "config.yaml"
        path.write_bytes(damaged_yaml(draw, draw(st.sampled_from(sorted(SOURCES.values())))))
        attempt(lambda: check(load(path)))

    fuzz(0.12, case)


def test_settings() -> None:
    def case(draw: DrawFn) -> None:
        keys = st.one_of(st.sampled_from(KEYS), texts)
        given = st.one_of(texts, values.map(str), st.sampled_from(["[1", "[[]]", "[*a]", "null"]))
        pairs = draw(st.lists(st.tuples(keys, given), min_size=1, max_size=3))
        assignments = [f"{key}={value}" for key, value in pairs]
        attempt(lambda: check(load("umls", parse_assignments(assignments))))

    fuzz(0.08, case)


def test_values_from_python() -> None:
    def case(draw: DrawFn) -> None:
        overrides = draw(st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
        name = draw(st.sampled_from(sorted(SOURCES)))
        attempt(lambda: check(load(name, overrides)))

    fuzz(0.05, case)


def test_names_of_configurations() -> None:
    def case(draw: DrawFn) -> None:
        given = draw(texts)
        attempt(lambda: load(given))

    fuzz(0.01, case)


def test_studies_and_search_spaces(place: Path) -> None:
    def case(draw: DrawFn) -> None:
        shipped = draw(st.sampled_from([studies(), spaces()]))
        content = draw(st.sampled_from([path.read_bytes() for path in shipped.values()]))
        path = place / "study.yaml"
        path.write_bytes(damaged_yaml(draw, content))
        attempt(lambda: load_space(path, load("umls")) if shipped == spaces() else load_study(path))

    fuzz(0.02, case)
