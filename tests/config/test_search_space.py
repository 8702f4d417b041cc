"""Search spaces: every mistake gives a one-line error before any training."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from clew.config.files import spaces
from clew.config.load import load
from clew.config.schema import RunConfig
from clew.config.study import load_space, takes_whole_numbers
from clew.errors import ConfigError

RATE = "optimizer.learning_rate"


@pytest.fixture
def config() -> RunConfig:
    return load("umls")


def write(folder: Path, parameters: object, **others: Any) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump({"parameters": parameters} | others))
    return path


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "parameters: expected at least 1 of them"),
        ({"optimizer.rate": {"low": 1, "high": 2}}, "optimizer.rate: unknown key"),
        ({"optimiser.rate": {"low": 1, "high": 2}}, "no section 'optimiser'"),
        ({RATE: {"low": 0.1, "hi": 1}}, "unknown key; valid: low, high"),
        ({RATE: {"low": 0.1}}, "give low and high, or choices"),
        ({RATE: {"low": 0.1, "high": 0.1}}, "low 0.1 is not below high 0.1; raise high"),
        ({RATE: {"low": 0.1, "high": 0.01}}, "is not below high 0.01; raise high"),
        ({RATE: {"low": 0, "high": 1, "log": True}}, "low is 0, but log needs a number above 0"),
        ({RATE: {"low": 1, "high": 2, "log": True, "step": 1}}, "log and step are both given"),
        ({RATE: {"low": 0.1, "high": 0.45, "step": 0.1}}, "is not low 0.1 plus whole steps of 0.1"),
        ({RATE: {"low": 0.0, "high": 0.5}}, "learning_rate: 0.0 given, expected more than 0"),
        ({RATE: {"choices": [0.1, "fast"]}}, "'fast' given, expected a number"),
        ({RATE: {"choices": [0.1]}}, "choices: expected at least 2 of them"),
        ({RATE: {"choices": [0.1, 0.1]}}, "a choice is given twice"),
        ({RATE: {"choices": [0.1, 0.2], "log": True}}, "choices, or low and high, not both"),
        ({"loss.label_smoothing": {"low": 0, "high": 1}}, "1.0 given, expected less than 1"),
        ({"model.embedding_dim": {"low": 8.5, "high": 16}}, "8.5 given, expected a whole number"),
        ({"model.output_channels": {"low": 0, "high": 4}}, "0 given, expected at least"),
        (
            {"optimizations.use_tf32": {"low": 0, "high": 1}},
            "use_tf32: 0.5 given, expected true or false",
        ),
        ({"evaluation.metric": {"choices": ["valid/mrr", "valid/hits_at_1"]}}, "leave it out"),
        ({"evaluation.test_after_training": {"choices": [True, False]}}, "leave it out"),
        ({"metric": {"choices": ["valid/mrr", "valid/mean_rank"]}}, "leave it out"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_and_setting(
    tmp_path: Path, config: RunConfig, parameters: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, parameters)
    with pytest.raises(ConfigError) as caught:
        load_space(path, config)
    text = str(caught.value)
    assert message in text
    assert text.startswith(str(path))
    assert "\n" not in text
    assert all(key in text for key in parameters)


def test_a_key_that_does_not_print_is_escaped(tmp_path: Path, config: RunConfig) -> None:
    path = write(tmp_path, {"model.\ufeffsize": {"low": 1, "high": 2}})
    with pytest.raises(ConfigError) as caught:
        load_space(path, config)
    assert str(caught.value).isprintable()


def test_values_between_the_ends_are_checked_too(tmp_path: Path) -> None:
    complexes = load("umls_complex")
    odd = write(tmp_path, {"model.embedding_dim": {"low": 100, "high": 200, "step": 25}})
    with pytest.raises(ConfigError):
        load_space(odd, complexes)
    even = write(tmp_path, {"model.embedding_dim": {"low": 100, "high": 200, "step": 50}})
    load_space(even, complexes)


def test_unknown_settings_of_the_space_itself_are_refused(
    tmp_path: Path, config: RunConfig
) -> None:
    path = write(tmp_path, {RATE: {"low": 0.1, "high": 1}}, pruner="median")
    with pytest.raises(ConfigError, match="unpruned_trials"):
        load_space(path, config)
    with pytest.raises(ConfigError):
        load_space("nowhere", config)


def test_the_schema_says_which_settings_are_whole_numbers(config: RunConfig) -> None:
    whole = ("model.embedding_dim", "training.batch_size", "model.embedding_height", "epochs")
    others = (RATE, "model.input_dropout", "optimizations.use_tf32", "loss.kind", "model.nothing")
    assert all(takes_whole_numbers(config, key) for key in whole)
    assert not any(takes_whole_numbers(config, key) for key in others)


SHIPPED_FOR = {
    "triples": (
        *("umls", "umls_complex", "umls_cp", "umls_distmult", "umls_rescal", "umls_rotate"),
        *("umls_transe", "umls_tucker", "fb15k237", "wn18rr", "codex_s"),
    ),
    "conve": ("umls", "codex_s", "fb15k237", "wn18rr"),
    "factorization": ("umls_complex", "umls_cp", "umls_distmult", "umls_rescal"),
    "tokens": ("nano", "small_32k"),
    "image_sequences": ("colab_optimized", "era5"),
}


def test_every_shipped_space_is_named_here() -> None:
    assert set(spaces()) == set(SHIPPED_FOR)


@pytest.mark.parametrize(
    ("space", "preset"), [(space, name) for space, names in SHIPPED_FOR.items() for name in names]
)
def test_shipped_spaces_fit_the_shipped_configurations(space: str, preset: str) -> None:
    config = load(preset)
    found = load_space(space, config)
    if space == config.data.kind:
        assert load_space("", config) == found, "the default for this kind of data"
