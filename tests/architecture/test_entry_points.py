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
from clew.cli.options import flags
from clew.errors import ConfigError
from experiments.reference import PROGRAM, written_files

OF_THE_COMMAND_LINE_ALONE = {"runs", "sync", "ui"}
"""Verbs that are not in MLproject, because MLflow would open a run for them."""
ENTRY_POINTS = sorted(
    "main" if verb == "demo" else verb.replace("-", "_")
    for verb in set(cli.commands) - OF_THE_COMMAND_LINE_ALONE
)


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


def test_entry_points_are_the_commands(project: dict[str, Any]) -> None:
    assert sorted(project["entry_points"]) == ENTRY_POINTS
    assert project["python_env"] == "python_env.yaml"
    for entry_point in project["entry_points"].values():
        # If YAML does not read a default as text, the command gets `False` or `None`.
        values = entry_point.get("parameters", {}).values()
        assert all(value == "string" or isinstance(value["default"], str) for value in values)


def test_every_verb_is_on_the_page_of_commands(root: Path) -> None:
    page = (root / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `clew ([a-z-]+)", page, re.M)) == set(cli.commands)


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_command_line_takes_what_mlflow_sends(project: dict[str, Any], name: str) -> None:
    command = command_of(name)
    parameters = project["entry_points"][name].get("parameters", {})
    given = {
        key: "x" if value == "string" else value["default"] for key, value in parameters.items()
    }
    verb, *options = shlex.split(project["entry_points"][name]["command"].format(**given))[1:]
    assert verb == verb_of(name)
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
    for item in flags(verb):
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
    assert context.params["words"] == ("training.seed=3", "loss.kind=kvs_all")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tracin", "--model=a", "--model-path=b"], "--model and --model-path are both given"),
        (["predict", "--head=a"], "--model is missing; it is required"),
        (["predict", "--model=", "--head=a"], "--model is missing"),
        (["predict", "--model=a", "--top-k=many"], "--top-k is 'many'; expected a whole number"),
        (["evaluate", "--model=a", "--split=train"], "expected 'valid' or 'test'"),
        (["promote", "--dry-run=perhaps"], "--dry-run is 'perhaps'; expected true or false"),
        (["compare", "--study=training", "--seeds=1,x"], "--seeds is 'x'; expected a whole"),
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
