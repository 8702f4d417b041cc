"""The sections of language modelling: presets, dependent settings, refused settings."""

from typing import Any

import pytest

from clew.config.load import apply_overrides, from_mapping, to_yaml
from clew.config.schema import RunConfig
from clew.errors import ConfigError


def language(**overrides: Any) -> RunConfig:
    named = {key.replace("__", "."): value for key, value in overrides.items()}
    return from_mapping({"data": {"kind": "tokens", "dataset": "corpus.txt"}}, named)


def test_tokens_bring_model_loss_and_metric_with_them():
    config = language()
    assert (config.model.kind, config.loss.kind) == ("eigenstate_lm", "language")
    assert config.evaluation.metric == "valid/bits_per_byte"
    assert not config.evaluation.maximize


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("nano", (512, 4, 64)),
        ("small_32k", (1024, 8, 128)),
        ("medium_32k", (1280, 12, 160)),
        ("large_32k", (1536, 16, 192)),
    ],
)
def test_a_preset_fills_what_is_not_given(preset: str, sizes: tuple[int, int, int]):
    model = language(model__kind="eigenstate_lm", model__preset=preset).model
    assert (model.d_model, model.n_layers, model.num_eigenstates) == sizes
    model = language(model__kind="eigenstate_lm", model__preset=preset, model__n_layers=2).model
    assert (model.d_model, model.n_layers) == (sizes[0], 2)


def test_a_long_preset_sets_batch_accumulation_and_checkpointing():
    config = language(model__kind="eigenstate_lm", model__preset="small_32k")
    assert (config.training.batch_size, config.training.gradient_accumulation) == (4, 4)
    assert config.optimizations.use_gradient_checkpointing
    assert (config.model.chunk_size, config.model.max_seq_len) == (256, 32768)
    config = language(
        model__kind="eigenstate_lm", model__preset="small_32k", training__gradient_accumulation=2
    )
    assert (config.training.batch_size, config.training.gradient_accumulation) == (4, 2)


def test_the_resolved_file_repeats_the_configuration():
    config = language(model__kind="eigenstate_lm", model__preset="small_32k")
    import yaml

    assert from_mapping(yaml.safe_load(to_yaml(config))) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.kind": "eigenstate_lm", "model.preset": "tiny"}, "model.preset: 'tiny' given"),
        ({"model.kind": "conve"}, "model.kind is 'conve', but data.kind 'tokens' needs eigenst"),
        ({"loss.kind": "one_vs_all"}, "loss.kind is 'one_vs_all', but data.kind 'tokens' needs"),
        ({"evaluation.metric": "valid/mrr"}, "valid: valid/bits_per_byte, valid/perplexity"),
        ({"evaluation.metric": "valid/perplexit"}, "did you mean 'valid/perplexity'"),
        ({"model.kind": "eigenstate_lm", "model.num_heads": 5}, "not a multiple of num_heads 5"),
        ({"model.kind": "eigenstate_lm", "model.num_gates": 7}, "not a multiple of num_gates 7"),
        (
            {"model.kind": "eigenstate_lm", "model.further_tokens": 512},
            "set further_tokens below max_seq_len",
        ),
        ({"data.name": "x", "data.dataset": "y"}, "data.name and data.dataset are both given"),
        ({"data.valid_fraction": 0.5, "data.test_fraction": 0.5}, "leave nothing to train on"),
        ({"training.gradient_accumulation": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        from_mapping({"data": {"kind": "tokens", "dataset": "corpus.txt"}}, overrides)


def test_tokens_need_a_source():
    with pytest.raises(ConfigError, match=r"data.name"):
        from_mapping({"data": {"kind": "tokens"}})


def test_a_data_set_given_by_hand_replaces_a_named_one():
    content = {"data": {"kind": "tokens", "name": "tinyshakespeare"}}
    assert "name" not in apply_overrides(content, {"data.dataset": "x.txt"})["data"]
    content = {"data": {"kind": "tokens", "dataset": "x.txt"}}
    assert "dataset" not in apply_overrides(content, {"data.name": "tinyshakespeare"})["data"]


def test_triples_still_need_two_examples_for_batch_normalisation():
    with pytest.raises(ConfigError):
        from_mapping({"data": {"name": "umls"}}, {"training.batch_size": 1})
    assert language(training__batch_size=1).training.batch_size == 1
