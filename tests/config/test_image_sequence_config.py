"""Sections of image-sequence regression: default values and refused settings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from clew.config.load import from_mapping, load, parse_assignments
from clew.errors import ConfigError

DATA = {"kind": "image_sequences", "path": "frames.h5"}


def test_the_kind_of_data_fills_in_model_loss_and_metric() -> None:
    config = from_mapping({"data": DATA})
    assert config.model.kind == "sequence_regression"
    assert config.loss.kind == "huber"
    assert config.evaluation.metric == "valid/mae"
    assert not config.evaluation.maximize


def test_an_architecture_may_be_a_mapping_with_a_name() -> None:
    config = from_mapping({"data": DATA, "model": {"kind": "sequence_regression",
                           "architecture": {"name": "ssm"}}})  # fmt: skip
    assert config.model.architecture == "ssm"
    assert from_mapping(config.model_dump(mode="json")) == config


# Exactly as users know these settings.
FULL = """
# Memory & Performance
memory_optimized: false              # Use full model
gradient_checkpointing: true         # Save memory
torch_compile: true                  # Speed up training
torch_compile_mode: "reduce-overhead"

# Training
batch_size: 20
temporal_frames: 5
epochs: 50

# Model
architecture:
  name: "transformer"  # Full MultimodalRegressionModel
"""
MINIMAL = """
# Memory & Performance
memory_optimized: true  # Use smaller model
gradient_checkpointing: false
torch_compile: false

# Training
batch_size: 16
temporal_frames: 5
epochs: 50
"""


@pytest.mark.parametrize(
    ("text", "preset", "channels", "recompute", "batch_size"),
    [
        (FULL, "colab_optimized_full", (64, 128, 256), True, 20),
        (MINIMAL, "colab_optimized", (32, 64, 128), False, 16),
    ],
)
def test_short_keys_mean_what_they_say(
    text: str, preset: str, channels: tuple[int, ...], recompute: bool, batch_size: int
) -> None:
    root = Path(__file__).resolve().parents[2]
    short = from_mapping(yaml.safe_load(text), {"data.path": "frames.h5"})
    long = load(root / f"experiments/image_sequences/{preset}.yaml")
    for config in (short, long):
        assert config.model.kind == "sequence_regression"
        assert config.model.channels == channels
        assert config.model.architecture == "transformer"
        assert config.optimizations.use_gradient_checkpointing is recompute
        assert config.optimizations.torch_compile is recompute
        assert config.data.temporal_frames == 5
        assert (config.training.batch_size, config.training.num_epochs) == (batch_size, 50)
    assert short.optimizations.torch_compile_mode == ("reduce-overhead" if recompute else "default")


def test_lists_on_the_command_line() -> None:
    given = ["model.kind=sequence_regression", "model.channels=[8, 16]", "data.scalars=[]"]
    config = from_mapping({"data": DATA}, parse_assignments(given))
    assert config.model.channels == (8, 16)
    assert config.data.scalars == ()
    with pytest.raises(ConfigError, match="is not a list"):
        parse_assignments(["model.channels=[8, 16"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"batch_size": 4, "training": {"batch_size": 8}}, "batch_size and training.batch_size"),
        ({"memory_optimized": "yes"}, "memory_optimized is 'yes'; expected true or false"),
        ({"epochs": 3, "training": 5}, "training is 5; expected keys, because epochs is given"),
        ({"epochs": "many"}, "training.num_epochs: 'many' given, expected a whole number"),
    ],
)
def test_short_keys_that_cannot_be(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping({"data": DATA} | content)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data.name": "clouds"}, "both of data.name and data.path given"),
        (
            {"data.test_group": "a", "data.validation_group": "a"},
            "'a' is both test_group and valid",
        ),
        ({"data.azimuth_scalars": ["s"], "data.zenith_scalars": ["s"]}, "'s' is in azimuth"),
        (
            {"data.validation_group": "a", "data.hold_out_validation": False},
            "validation_group is 'a', but hold_out_validation is false",
        ),
        ({"model.channels": [10]}, "channels 10 is not a multiple of norm_groups 8"),
        ({"model.heads": 3}, "the last of channels is 256, not a multiple of 2 x heads = 6"),
        ({"model.architecture": "lstm"}, "'lstm' given, expected 'transformer', 'ssm'"),
        ({"loss.kind": "kvs_all"}, "data.kind 'image_sequences' needs huber or mae"),
        ({"evaluation.metric": "valid/mrr"}, "valid: valid/mae, valid/rmse, valid/r2"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: dict[str, Any], message: str) -> None:
    model = {"kind": "sequence_regression"}
    with pytest.raises(ConfigError, match=message):
        from_mapping({"data": DATA, "model": model}, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"evaluation.every_epochs": 20, "training.early_stopping_patience": 2},
        {"evaluation.every_epochs": 20, "schedule.kind": "plateau"},
    ],
)
def test_the_test_group_may_choose_nothing(overrides: dict[str, Any]) -> None:
    alone = {"data.hold_out_validation": False}
    with pytest.raises(ConfigError, match="the test group must not choose"):
        from_mapping({"data": DATA}, alone | overrides)
    from_mapping({"data": DATA}, alone | {"evaluation.every_epochs": 20})


def test_a_graph_of_patches_has_a_limit() -> None:
    """Its adjacency takes the square of the number of patches, but no weights."""
    model = {"architecture": "gnn", "channels": [8], "patch_grid": [8, 64]}
    small = {"data": DATA | {"temporal_frames": 8}, "model": model}
    assert from_mapping(small).model.kind == "sequence_regression"
    large = {"data": DATA | {"temporal_frames": 9}, "model": model}
    with pytest.raises(ConfigError, match=r"model\.patch_grid.*data\.temporal_frames"):
        from_mapping(large)
    assert from_mapping(large | {"model": model | {"architecture": "cnn"}})
