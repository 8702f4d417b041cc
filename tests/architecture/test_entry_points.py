"""The command line is made from declarations that match MLproject and the reference page."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from clew.__main__ import run
from clew.cli import UNDER_TORCHRUN, cli
from clew.cli.reference import PROGRAM, written_files
from clew.config.flags import flagged_fields
from clew.errors import ConfigError

TRAIN = (
    "config train valid test entity_to_id relation_to_id use_mixed_precision "
    "use_gradient_checkpointing enable_memory_cleanup torch_compile torch_compile_mode batch_size "
    "num_epochs learning_rate embedding_dim output_channels label_smoothing num_workers "
    "gradient_accumulation max_grad_norm checkpoint_frequency temporal_frames seed set"
)
CLUSTER = "cluster cpus_per_task gpus_per_task memory_gib_per_task"
TRACIN = (
    "model model_path test test_triples train entity_to_id relation_to_id top_k score direction "
    "test_loss batch_size use_mixed_precision use_gradient_checkpointing enable_memory_cleanup "
    "use_last_layers_only num_last_layers output set"
)
PARAMETERS = {
    "main": "",
    "train": f"{TRAIN} resume checkpoint_dir output_dir",
    "plan": f"{TRAIN} device memory_gib num_processes devices num_entities num_relations "
    "num_triples vocabulary_size frame_shape",
    "tune": f"config space minutes trials seed output_dir set {CLUSTER}",
    "evaluate": "model split negatives",
    "tracin": TRACIN,
    "batch_tracin": f"{TRACIN} output_dir n_hops min_degree strict_path_filtering "
    f"edge_map node_name_dict start_index max_triples {CLUSTER}",
    "trace_text": "model prompt continuation prompts top_k score num_last_layers with_cosine "
    "use_mixed_precision search candidates search_opponents output set",
    "trace_sequence": "model frame top_k score num_last_layers with_cosine use_mixed_precision "
    "search candidates search_opponents output set",
    "validate_influence": "model subsets seeds drop tests deletions scores direction test_loss "
    "max_hours output_dir",
    "value_facts": "model test weights direction worst output_dir",
    "compare": f"study seeds size output {CLUSTER}",
    "promote": "run_id experiment metric name alias dry_run force rollback",
    "predict": "model head relation tail top_k filter_known conformal input prompt prompt_file "
    "max_tokens temperature top_p seed state frames output confidence",
    "export": "model output_dir",
    "data": (
        "config name train valid test pack kgx output_dir qualifiers negated "
        "valid_fraction test_fraction seed"
    ),
    "report": "explanation output test format",
    "pretokenize": "dataset output chunk_size tokenizer vocabulary_size text_column num_proc "
    "max_chunks held_out_fraction force",
}
"""Names that scripts depend on."""
OF_THE_COMMAND_LINE_ALONE = {"runs", "sync", "ui"}
"""Verbs that are not in MLproject, because MLflow would open a run for them."""
OPTIONS_OF_THE_COMMAND_LINE_ALONE = {"json", "disable_memory_cleanup", "quick"}
"""Options for a terminal, or alternatives to another parameter."""


@pytest.mark.parametrize(("path", "content"), written_files().items())
def test_written_files_say_what_is_declared(root: Path, path: str, content: str) -> None:
    written = (root / path).read_text(encoding="utf-8")
    assert written == content, f"{path} is out of date; run {PROGRAM}"


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


def test_every_verb_is_an_entry_point_and_on_the_page_of_commands(root: Path) -> None:
    assert set(cli.commands) == {verb_of(name) for name in PARAMETERS} | OF_THE_COMMAND_LINE_ALONE
    page = (root / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `clew ([a-z-]+)", page, re.M)) == set(cli.commands)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_option_is_a_parameter(name: str) -> None:
    options = {
        str(p.name) for p in command_of(name).params if isinstance(p, click.Option) and not p.hidden
    }
    assert options - OPTIONS_OF_THE_COMMAND_LINE_ALONE == set(PARAMETERS[name].split())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_agreed_ones(project: dict[str, Any], name: str) -> None:
    parameters = project["entry_points"][name].get("parameters", {})
    assert set(parameters) == set(PARAMETERS[name].split())
    for value in parameters.values():
        # If YAML does not read a default as text, the command gets `False` or `None`.
        assert value == "string" or isinstance(value["default"], str)


@pytest.mark.parametrize("name", PARAMETERS)
def test_command_passes_each_parameter_under_its_own_name(
    project: dict[str, Any], name: str
) -> None:
    words = shlex.split(project["entry_points"][name]["command"])
    assert words[:2] == ["clew", verb_of(name)]
    parameters = project["entry_points"][name].get("parameters", {})
    assert words[2:] == [f"--{p.replace('_', '-')}={{{p}}}" for p in parameters]


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
        assert str(context.params[key] or "") == value


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_command_line_is_documented(verb: str) -> None:
    command = cli.commands[verb]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"clew {verb} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("verb", ["train", "plan", "tracin", "batch_tracin"])
def test_a_marked_field_of_the_schema_is_an_option(verb: str) -> None:
    options = {str(param.name): param for param in command_of(verb).params}
    for item in flagged_fields(verb):
        assert item.key in str(getattr(options[item.name], "help", ""))


def test_booleans_stand_alone_or_take_a_value() -> None:
    train = command_of("train")
    alone = train.make_context("train", ["--use-mixed-precision"]).params
    spoken = train.make_context("train", ["--use_mixed_precision", "false"]).params
    assert alone["use_mixed_precision"] == "true"
    assert spoken["use_mixed_precision"] == "false"


@pytest.mark.parametrize("verb", ["train", "plan", "tracin", "batch-tracin"])
def test_settings_may_be_given_several_times(verb: str) -> None:
    required = [f"--{p.name}=x" for p in command_of(verb).params if p.required]
    options = ["--set", "a.b=1", "--set=c.d=[2,3],e.f=4", "--set="]
    context = command_of(verb).make_context(verb, [*required, *options])
    assert context.params["set"] == ["a.b=1", "c.d=[2,3]", "e.f=4"]


def test_default_configuration_exists(project: dict[str, Any], root: Path) -> None:
    default = project["entry_points"]["train"]["parameters"]["config"]["default"]
    assert (root / default).is_file()
    option = next(p for p in command_of("train").params if p.name == "config")
    assert re.search(re.escape(default), str(getattr(option, "help", "")))


def test_an_option_that_stands_alone_leaves_the_next_assignment() -> None:
    context = command_of("train").make_context(
        "train", ["--use-mixed-precision", "training.seed=3", "--resume", "loss.kind=kvs_all"]
    )
    assert context.params["use_mixed_precision"] == "true"
    assert context.params["resume"] == "newest"
    assert context.params["assignments"] == ("training.seed=3", "loss.kind=kvs_all")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracin", "--model=a", "--model-path=b"], "--model and --model-path are both given"),
        (["predict", "--head=a"], "--model is missing; it is required"),
        (["predict", "--model=", "--head=a"], "--model is missing"),
        (["predict", "--model=a", "--top-k=many"], "--top-k is 'many'; expected a whole number"),
        (["evaluate", "--model=a", "--split=train"], "expected 'valid' or 'test'"),
        (["promote", "--dry-run=perhaps"], "--dry-run is 'perhaps'; expected true or false"),
        (["compare", "--study=training", "--seeds=1,x"], "--seeds is '1,x'; expected whole"),
    ],
)
def test_a_value_that_is_not_valid_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises((ConfigError, click.ClickException)) as raised:
        cli.main(words, standalone_mode=False)
    assert message in str(getattr(raised.value, "message", raised.value))


@pytest.mark.parametrize("command", sorted(set(cli.commands) - set(UNDER_TORCHRUN)))
def test_a_command_of_one_process_refuses_torchrun(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run([command, "--help"]) == 2
    assert f"clew {command} works in one process" in capsys.readouterr().err
