"""MLproject, the command line and the configuration name the same things."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from clew.cli import cli
from clew.config.flags import BOOLEAN_FLAGS, FILTER_FLAGS, INFLUENCE_FLAGS, TRAIN_FLAGS
from clew.config.load import section_classes

TRACIN = (
    "model test train top_k batch_size use_mixed_precision use_gradient_checkpointing "
    "enable_memory_cleanup use_last_layers_only num_last_layers output"
)
PARAMETERS = {
    "main": "",
    "train": "config train valid test entity_to_id relation_to_id use_mixed_precision "
    "use_gradient_checkpointing enable_memory_cleanup torch_compile torch_compile_mode batch_size "
    "num_epochs learning_rate embedding_dim output_channels label_smoothing num_workers "
    "gradient_accumulation max_grad_norm checkpoint_frequency temporal_frames seed resume set",
    "evaluate": "model split",
    "tracin": TRACIN,
    "batch_tracin": f"{TRACIN} test_triples output_dir n_hops min_degree strict_path_filtering "
    "edge_map node_name_dict start_index max_triples",
    "compare": "study seeds",
    "promote": "run_id experiment metric name alias",
    "predict": "model head relation tail top_k filter_known",
}


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((root / "MLproject").read_text(encoding="utf-8")))


def verb_of(entry_point: str) -> str:
    return "demo" if entry_point == "main" else entry_point.replace("_", "-")


def command_of(entry_point: str) -> click.Command:
    assert verb_of(entry_point) in cli.commands, f"clew has no verb {verb_of(entry_point)}"
    return cli.commands[verb_of(entry_point)]


def spellings(command: click.Command) -> set[str]:
    return {opt for p in command.params if isinstance(p, click.Option) for opt in p.opts}


def test_entry_points_are_the_agreed_ones(project: dict[str, Any]) -> None:
    assert set(project["entry_points"]) == set(PARAMETERS)
    assert project["python_env"] == "python_env.yaml"


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_agreed_ones(project: dict[str, Any], name: str) -> None:
    parameters = project["entry_points"][name].get("parameters", {})
    assert list(parameters) == PARAMETERS[name].split()
    for value in parameters.values():
        # A default that YAML does not read as text would reach the command as `False` or `None`.
        assert value == "string" or isinstance(value["default"], str)


@pytest.mark.parametrize("name", PARAMETERS)
def test_command_passes_each_parameter_under_its_own_name(
    project: dict[str, Any], name: str
) -> None:
    words = shlex.split(project["entry_points"][name]["command"])
    assert words[:2] == ["clew", verb_of(name)]
    expected = [f"--{p.replace('_', '-')}={{{p}}}" for p in PARAMETERS[name].split()]
    assert words[2:] == expected


@pytest.mark.parametrize("name", PARAMETERS)
def test_command_line_takes_what_mlflow_sends(project: dict[str, Any], name: str) -> None:
    command = command_of(name)
    parameters = project["entry_points"][name].get("parameters", {})
    given = {
        key: "x" if value == "string" else value["default"] for key, value in parameters.items()
    }
    options = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
    assert {option.partition("=")[0] for option in options} <= spellings(command)
    context = command.make_context(verb_of(name), options)
    for key, value in given.items():
        assert str(context.params[key]) == value


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_command_line_is_documented(verb: str) -> None:
    command = cli.commands[verb]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"clew {verb} {parameter.opts[0]} has no help"


def test_train_has_the_flags_of_the_table() -> None:
    others = {"config", "resume", "set"}
    assert set(PARAMETERS["train"].split()) - others == set(TRAIN_FLAGS)
    assert set(TRAIN_FLAGS | INFLUENCE_FLAGS | FILTER_FLAGS) >= BOOLEAN_FLAGS


@pytest.mark.parametrize(
    ("flag", "key"), [*TRAIN_FLAGS.items(), *INFLUENCE_FLAGS.items(), *FILTER_FLAGS.items()]
)
def test_flag_sets_a_key_that_exists(flag: str, key: str) -> None:
    section, _, name = key.partition(".")
    fields = [choice.model_fields for choice in section_classes(section)]
    assert any(name in names for names in fields)
    if flag in BOOLEAN_FLAGS:
        assert all(names[name].annotation is bool for names in fields if name in names)


def test_booleans_stand_alone_or_take_a_value() -> None:
    train = command_of("train")
    alone = train.make_context("train", ["--use-mixed-precision"]).params
    spoken = train.make_context("train", ["--use_mixed_precision", "false"]).params
    assert alone["use_mixed_precision"] == "true"
    assert spoken["use_mixed_precision"] == "false"


def test_default_configuration_exists(project: dict[str, Any], root: Path) -> None:
    default = project["entry_points"]["train"]["parameters"]["config"]["default"]
    assert (root / default).is_file()
    option = next(p for p in command_of("train").params if p.name == "config")
    assert re.search(re.escape(default), str(getattr(option, "help", "")))
