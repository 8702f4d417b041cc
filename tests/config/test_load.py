"""Loading of configurations: which are accepted, and the one-line error for the others."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from clew.config.load import (
    apply_overrides,
    flatten,
    from_mapping,
    full_key,
    load,
    parse_assignments,
    to_yaml,
)
from clew.config.schema import RunConfig
from clew.errors import ConfigError

TOKENS = ("tokens", "eigenstate_lm", "language")
MINIMAL = {"data": {"name": "umls"}}


def test_defaults_are_the_published_conve() -> None:
    config = from_mapping(MINIMAL)
    assert config.model.embedding_dim == 200
    assert (config.model.height, config.model.width) == (10, 20)
    assert config.model.num_features == 32 * 18 * 18
    assert config.loss.label_smoothing == 0.1
    assert config.optimizer.learning_rate == 1e-3


def test_yaml_round_trip_keeps_everything(tmp_path: Path) -> None:
    config = from_mapping(
        MINIMAL,
        {"optimizer.kind": "sgd", "optimizer.momentum": "0.9", "schedule.kind": "plateau"},
    )
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load(path) == config
    assert load(path).config_hash == config.config_hash


def test_where_a_run_is_recorded_is_not_part_of_its_hash() -> None:
    other = from_mapping(MINIMAL, {"tracking.experiment": "elsewhere"})
    assert other.config_hash == from_mapping(MINIMAL).config_hash
    assert from_mapping(MINIMAL, {"training.seed": "1"}).config_hash != other.config_hash


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"training.batch_sise": "4"},
            r"training\.batch_sise: unknown key; did you mean 'batch_size'\? valid: num_epochs,",
        ),
        (
            {"training.num_epochs": "abc"},
            r"training\.num_epochs: 'abc' given, expected a whole number",
        ),
        (
            {"optimizations.use_mixed_precision": "maybe"},
            r"use_mixed_precision: 'maybe' given, expected true or false",
        ),
        (
            {"optimizations.torch_compile_mode": "fast"},
            r"expected 'default', 'reduce-overhead' or 'max-autotune'",
        ),
        (
            {"optimizer.kind": "sdg"},
            r"optimizer\.kind: 'sdg' is not valid; did you mean 'sgd'\? valid: adam, adamw,",
        ),
        ({"optimiser.kind": "sgd"}, r"no section 'optimiser'; did you mean 'optimizer'\?"),
        (
            {"model.embedding_height": "7"},
            r"embedding_height 7 x embedding_width 28 = 196, but embedding_dim is 200",
        ),
        (
            {"model.embedding_dim": "37", "model.embedding_height": "5"},
            r"= 35, but embedding_dim is 37",
        ),
        (
            {"model.kernel_width": "21"},
            r"kernel 3 x 21 is larger than the image 20 x 20 \(2 x 10 rows",
        ),
        ({"model.kernel_height": "21"}, r"kernel 21 x 3 is larger than the image"),
        ({"model.input_dropout": "1"}, r"model\.input_dropout: '1' given, expected less than 1"),
        (
            {"loss.label_smoothing": "nan"},
            r"loss\.label_smoothing: 'nan' given, expected a finite number",
        ),
        ({"training.prefetch_factor": "2"}, r"prefetch_factor is 2, but num_workers is 0"),
        ({"data.name": "null"}, r"none of data\.name, data\.path, data\.train, data\.packed given"),
        (
            {"schedule.kind": "plateau", "evaluation.enabled": "false"},
            r"schedule\.kind=plateau depends on valid/mrr, but evaluation\.enabled is false",
        ),
        ({"training.batch_size": "0"}, r"batch_size is 0; give 1 or more, or auto"),
        ({"training.batch_size": "1"}, r"batch normalisation needs 2 or more"),
        (
            {"evaluation.metric": "valid/mrrr"},
            r"evaluation\.metric is 'valid/mrrr'.*did you mean 'valid/mrr'",
        ),
    ],
)
def test_mistakes_are_explained_in_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_mapping(MINIMAL, overrides)
    assert "\n" not in str(caught.value)


def test_only_what_the_file_says_is_blamed_on_the_file() -> None:
    of_override = {"training.num_epochs": "0", "model.kind": "foo"}
    message = r"^model\.kind: 'foo' is not.*; training\.num_epochs: '0'"
    with pytest.raises(ConfigError, match=message):
        from_mapping(MINIMAL, of_override, source="mine.yaml")
    of_file = MINIMAL | {"training": {"seed": "x"}}
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        from_mapping(of_file, of_override, source="mine.yaml")


@pytest.mark.parametrize("key", ["training.batch_size", "optimizer.learning_rate"])
def test_true_is_no_number(key: str) -> None:
    with pytest.raises(ConfigError):
        from_mapping(MINIMAL, {key: True})


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError):
        from_mapping(MINIMAL | {"dta": {}, "loss": {"kind": "kvs_all", "smothing": 1}})


def test_many_unknown_keys_make_a_message_that_can_be_read() -> None:
    sections = ("data", "model", "loss", "training", "optimizations", "evaluation", "influence")
    with pytest.raises(ConfigError) as caught:
        from_mapping(MINIMAL, {f"{section}.{section}_x": 1 for section in sections})
    assert str(caught.value).count("unknown key") == len(sections)
    assert str(caught.value).count("valid: ") == 1
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {name: umls}\ndata: {name: x}\n", "line 2: key 'data' is given twice"),
        ("data: [", "not valid YAML"),
        ("data: {name: umls}\nloss:\n  ? [a, b]\n  : 1\n", "line 3: a key is a list or a mapping"),
        ("- a\n", r"contains \['a'\]; expected sections"),
        ("", "is empty; expected sections"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"broken\.yaml: .*{message}"):
        load(path)


def test_a_section_may_take_over_the_keys_of_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(
        "data: {name: umls}\n"
        "model: {embedding_dim: 16, <<: {output_channels: 4, embedding_dim: 8}}\n"
    )
    model = load(path).model
    assert (model.embedding_dim, model.output_channels) == (16, 4)


def test_an_automatic_batch_size_is_written_as_it_is_given() -> None:
    config = from_mapping(MINIMAL, {"training.batch_size": "auto"})
    assert "batch_size: auto" in to_yaml(config)
    assert from_mapping(yaml.safe_load(to_yaml(config))) == config


@pytest.mark.parametrize(
    ("kind", "source", "key", "value"),
    [
        ("tokens", {"dataset": "a.txt"}, "loss.implementation", "plain"),
        ("tokens", {"dataset": "a.txt"}, "model.d_model", "64"),
        ("image_sequences", {"path": "x.h5"}, "model.channels", "[8, 16]"),
    ],
)
def test_a_section_without_kind_takes_the_one_that_fits_the_data(
    kind: str, source: dict[str, str], key: str, value: str
) -> None:
    content = {"data": {"kind": kind, **source}}
    plain, changed = (
        from_mapping(content),
        from_mapping(content, parse_assignments([f"{key}={value}"])),
    )
    assert changed.model.kind == plain.model.kind
    assert changed.loss.kind == plain.loss.kind
    assert changed != plain


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError):
        load(path)


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text("data: !!python/object/apply:os.system ['touch /tmp/evil']\n")
    with pytest.raises(ConfigError):
        load(path)


def test_a_training_file_replaces_a_named_data_set() -> None:
    merged = apply_overrides(MINIMAL, {"data.valid": "v.txt", "data.train": "t.txt"})
    assert merged["data"] == {"train": "t.txt", "valid": "v.txt"}
    labelled = {"data": merged["data"] | {"node_name_dict": "names.tsv", "edge_map": "edges.tsv"}}
    back = apply_overrides(labelled, {"data.name": "umls"})
    assert back["data"] == {"name": "umls"}
    assert MINIMAL == {"data": {"name": "umls"}}, "overrides must not change their input"


def test_changing_the_kind_keeps_what_both_kinds_have() -> None:
    content = MINIMAL | {"optimizer": {"kind": "adam", "beta1": 0.8, "learning_rate": 0.5}}
    config = from_mapping(content, {"optimizer.momentum": "0.9", "optimizer.kind": "sgd"})
    assert config.optimizer.kind == "sgd"
    assert config.optimizer.learning_rate == 0.5
    assert config.optimizer.momentum == 0.9


@pytest.mark.parametrize("kind_first", [True, False])
def test_a_setting_that_the_given_kind_lacks_is_refused_in_any_order(kind_first: bool) -> None:
    given = [("model.kind", "distmult"), ("model.output_channels", "8")]
    with pytest.raises(ConfigError, match=r"model\.output_channels"):
        from_mapping(MINIMAL, dict(given if kind_first else reversed(given)))


def test_a_whole_section_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="'seed'"):
        from_mapping(MINIMAL, {"training": {"seed": 3}})


def test_an_assignment_needs_a_value() -> None:
    with pytest.raises(ConfigError):
        parse_assignments(["training.seed"])


@pytest.mark.parametrize("name", ["", "no_such_setting", "kind", "channels", "chunk_mib"])
def test_a_short_name_means_one_setting(name: str) -> None:
    """`kind`, `channels` and `chunk_mib` are in several sections."""
    with pytest.raises(ConfigError):
        from_mapping(MINIMAL, {name: "1"})


@pytest.mark.parametrize(
    ("short", "key", "value"),
    [
        ("lr", "optimizer.learning_rate", 0.5),
        ("epochs", "training.num_epochs", 7),
        ("num_epochs", "training.num_epochs", 7),
        ("seed", "training.seed", 5),
        ("batch_size", "training.batch_size", 9),
        ("batch-size", "training.batch_size", 9),
        ("patience", "training.early_stopping_patience", 4),
        ("embedding_dim", "model.embedding_dim", 40),
        ("use_mixed_precision", "optimizations.use_mixed_precision", True),
        ("device", "training.device", "cpu"),
        ("label_smoothing", "loss.label_smoothing", 0.2),
        ("every_epochs", "evaluation.every_epochs", 3),
    ],
)
def test_short_names_in_overrides_and_files(short: str, key: str, value: object) -> None:
    as_override = from_mapping(MINIMAL, {short: str(value)})
    assert flatten(as_override)[key] == value
    if "-" not in short:
        assert from_mapping({**MINIMAL, short: value}) == as_override


def test_a_setting_is_given_once() -> None:
    for name in ("epochs", "num_epochs"):
        with pytest.raises(ConfigError):
            from_mapping(MINIMAL, {"training.num_epochs": 3, name: 3})
        with pytest.raises(ConfigError):
            from_mapping({**MINIMAL, "training": {"num_epochs": 3}, name: 3})


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"data.packed": "p"}, ("triples", "conve", "one_vs_all")),
        ({"data.packed": "p", "model.kind": "eigenstate_lm"}, TOKENS),
        ({"data.packed": "p", "model.preset": "small_32k"}, TOKENS),
        ({"data.packed": "p", "preset": "small_32k"}, TOKENS),
        ({"data.name": "x", "loss.kind": "language"}, TOKENS),
        ({"dataset": "corpus.txt"}, TOKENS),
        (
            {"path": "frames.h5", "temporal_frames": "4"},
            ("image_sequences", "sequence_regression", "huber"),
        ),
        ({"data.name": "x", "relation_dim": 5}, ("triples", "tucker", "one_vs_all")),
    ],
)
def test_kinds_follow_from_what_is_given(
    settings: dict[str, str], kinds: tuple[str, str, str]
) -> None:
    content: dict[str, dict[str, str]] = {}
    for name, value in settings.items():
        section, _, key = full_key(name).partition(".")
        content.setdefault(section, {})[key] = value
    for config in (from_mapping({}, settings), from_mapping(content)):
        assert (config.data.kind, config.model.kind, config.loss.kind) == kinds


def test_the_kind_of_an_optimizer_follows_from_its_keys() -> None:
    assert from_mapping(MINIMAL, {"momentum": "0.9"}).optimizer.kind == "sgd"
    assert from_mapping(MINIMAL, {"schedule.patience": "2"}).schedule.kind == "plateau"


def test_several_seeds_are_not_taken_for_several_training_runs() -> None:
    with pytest.raises(ConfigError):
        from_mapping(MINIMAL, {"seeds": "3"})
    assert from_mapping(MINIMAL, {"influence.seeds": "3"}).influence.seeds == 3


def test_flattened_keys_cover_the_schema() -> None:
    flat = flatten(from_mapping(MINIMAL))
    assert flat["optimizations.use_mixed_precision"] is False
    assert {key.split(".")[0] for key in flat} == set(RunConfig.model_fields)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, r"aliases \(\*name\) expand to more than 100,000 values"),
        ("a: &a [*a]", r"aliases \(\*name\) expand to more than"),
        ("a: " + "[" * 1000 + "]" * 1000, "brackets are nested too deeply"),
        ("a: " + "{a: " * 5000, "brackets are nested too deeply"),
        ("a: 2020-13-45", "a value does not fit its type: month must be in 1..12"),
        ("a: !!int ten", "a value does not fit its type"),
        ("a: !!float ten", "a value does not fit its type"),
        ("a: !!bool maybe", "a value does not fit its type"),
        ("a: !!timestamp soon", "a value does not fit its type"),
        ("a: !!binary Ü", "not valid YAML"),
        ("a: !!python/name:os.system", "not valid YAML"),
        ("a: \x07", "not valid YAML"),
        ("a: " + "x" * 2**20, "more than 1,048,576 characters"),
    ],
)
def test_hostile_yaml_is_one_short_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"hostile\.yaml: .*{says}") as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500 + len(str(path))


@pytest.mark.parametrize("text", ["[" * 1000, "[2020-13-45]", "[!!int ten]"])
def test_hostile_lists_in_assignments_are_one_short_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignments([f"data.channels={text}"])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("size", [10**18, 2**61 - 2])
def test_an_embedding_size_that_nobody_can_factor_is_refused_at_once(size: int) -> None:
    with pytest.raises(ConfigError, match=r"model\.embedding_dim"):
        from_mapping({"data": {"name": "umls"}}, {"model.embedding_dim": str(size)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.gradient_accumulation", 10**30),
        ("training.shuffle_block", 2**63),
        ("model.output_channels", 10**20),
        ("training.num_threads", 10**12),
    ],
)
def test_numbers_that_no_tensor_can_have_are_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError) as refused:
        load("umls", {key: value})
    assert key.partition(".")[2] in str(refused.value)


def test_only_a_network_with_activations_to_recompute_is_checkpointed() -> None:
    recomputed = {"optimizations.use_gradient_checkpointing": True}
    assert load("umls", recomputed | {"model.kind": "conve"})
    for kind in ("transe", "complex", "tucker"):
        with pytest.raises(ConfigError) as refused:
            load("umls", recomputed | {"model.kind": kind})
        assert "optimizations.use_gradient_checkpointing" in str(refused.value)
        assert kind in str(refused.value)
