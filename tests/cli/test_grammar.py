"""One grammar for all commands, short help, and the right command for a wrong guess."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from clew.__main__ import run as run_command
from clew.cli import cli
from clew.cli.options import Options, Verb
from clew.cli.training import PlanOptions, TrainOptions, TuneOptions
from clew.config.load import flatten, load
from clew.errors import ConfigError

GRAPH = {
    "train": "a\tr\tb\nb\tr\tc\nc\tr\td\nd\tr\ta\na\ts\tc\n",
    "valid": "a\tr\tc\n",
    "test": "b\tr\td\n",
}


def options_of(line: str) -> Any:
    """Return the checked options of a command as it is typed."""
    words = shlex.split(line)
    verb = cli.commands[words[0]]
    assert isinstance(verb, Verb)
    context = verb.make_context(words[0], words[1:])
    classes = {c.__name__: c for c in every_class(Options)}
    name = words[0].replace("-", "_").title().replace("_", "")
    return classes[f"{name}Options"].read(words[0].replace("-", "_"), context.params)


def every_class(parent: type[Options]) -> list[type[Options]]:
    return [parent, *(found for c in parent.__subclasses__() for found in every_class(c))]


@pytest.mark.parametrize("verb", ["train", "plan", "tune"])
def test_a_preset_and_short_names(verb: str) -> None:
    short = options_of(f"{verb} umls epochs=20 batch_size=256 lr=0.1")
    long = options_of(
        f"{verb} --config umls --set training.num_epochs=20,training.batch_size=256 "
        "optimizer.learning_rate=0.1"
    )
    assert isinstance(short, TrainOptions | PlanOptions | TuneOptions)
    assert short.configuration() == long.configuration()
    flat = flatten(short.configuration())
    assert (flat["training.num_epochs"], flat["optimizer.learning_rate"]) == (20, 0.1)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("evaluate newest split=valid", "evaluate --model newest --split valid"),
        ("tracin newest top_k=3 test=a,b,c", "tracin --model newest --top-k 3 --test a,b,c"),
        ("tracin x batch_size=3", "tracin --model x influence.batch_size=3"),
        ("tune umls seed=3 minutes=2", "tune --config umls --seed 3 --minutes 2"),
        ("plan small_32k device=T4", "plan --config small_32k --device T4"),
        ("plan --use-mixed-precision umls", "plan --use-mixed-precision true --config umls"),
        ("compare training seeds=1,2", "compare --study training --seeds 1,2"),
        ("data umls", "data --config umls"),
        ("data era5 embargo=3", "data --config era5 data.embargo=3"),
        ("pretokenize a.txt chunk-size=9", "pretokenize --dataset a.txt --chunk_size 9"),
    ],
)
def test_words_are_options(
    short: str, long: str, monkeypatch: pytest.MonkeyPatch, tracking_store: Path
) -> None:
    monkeypatch.setattr("clew.runs.reading.search.run_meant", lambda *_: "newest")
    assert options_of(short) == options_of(long)


def test_settings_for_other_data_replace_the_default_configuration() -> None:
    config = options_of("train data.packed=packed preset=small_32k").configuration()
    assert (config.data.kind, config.model.kind) == ("tokens", "eigenstate_lm")
    assert options_of("train").configuration() == load("umls")


@pytest.mark.parametrize(
    "line",
    [
        *("train umls --config wn18rr", "train umls --epochs=3 lr=1"),
        *("train umls lr=1 learning_rate=2", "train umls epochs="),
        *("train umls --resume=", "train umls --resume ''", "train umls resume="),
    ],
)
def test_contradictions_are_refused(line: str) -> None:
    with pytest.raises((ConfigError, ValueError)):
        options_of(line)


@pytest.mark.parametrize(
    "line",
    [
        *("data x.tsv seed=-1", "train data.path=x.tsv data.seed=-1"),
        "plan umls num_entities=3000000000 num_relations=2",
    ],
)
def test_numbers_that_cannot_be_are_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        options_of(line).configuration()


def test_mlflow_may_pass_an_empty_run_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    assert options_of("train umls --resume=").resume == ""


GUESSES = {
    "train train.txt": "train --train train.txt --valid valid.txt --test test.txt",
    "train . epochs=1": "train --train train.txt --valid valid.txt --test test.txt epochs=1",
    "train . --epochs 1": "train --train train.txt --valid valid.txt --test test.txt epochs=1",
    "train --data .": "train --train train.txt --valid valid.txt --test test.txt",
    "train umls --epochs 1": "train umls epochs=1",
    "train umls --lr 0.1": "train umls lr=0.1",
    "train umls --lr=0.1 --epochs 1 --bs 64": "train umls lr=0.1 epochs=1 batch_size=64",
    "train umls --patience 3": "train umls patience=3",
    "train umls --fp16": "train umls --use-mixed-precision",
    "train umls --gpu 0": "CUDA_VISIBLE_DEVICES=0 clew train umls",
    "train --cpu umls": "train device=cpu umls",
    "train --device cpu umls": "train device=cpu umls",
    "train --preset umls": "train umls",
    "run umls": "train umls",
    "fit umls epochs=1": "train umls epochs=1",
    "list": "runs",
    "memory umls": "plan umls",
    "ui 8080": "ui --port 8080",
    "dashboard": "ui",
    "resume": "train --resume",
    "explain": "tracin newest test=virus,causes,pathologic_function",
    "explain newest test=virus,causes,cell": "tracin newest test=virus,causes,cell",
    "test newest": "evaluate newest",
    "evaluate --run newest": "evaluate newest",
    "search umls minutes=1": "tune umls minutes=1",
    "help train": "train --help",
    "version": "--version",
}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, triples in GRAPH.items():
        (tmp_path / f"{split}.txt").write_text(triples, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("guess", "right"), GUESSES.items())
def test_a_wrong_guess_brings_the_right_command(
    graph: None, guess: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(guess.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    command = re.sub(r"^(CUDA_\w+=0 )?clew ", r"\1", line.partition("; type: ")[2])
    assert command == right.replace(" clew ", " ")


@pytest.mark.parametrize("guess", ["train umls epochs:10", "tune umls 10", "verify newest 3"])
def test_a_word_without_a_name_is_not_taken_for_another_option(
    guess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(guess.split()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert guess.rsplit(maxsplit=1)[-1] in line
    assert "type:" not in line
    assert "name=value" in line


@pytest.mark.parametrize("right", sorted(set(GUESSES.values())))
def test_the_right_command_is_understood(graph: None, right: str) -> None:
    """Each has the options and settings that its command takes."""
    words = shlex.split(right.partition("clew ")[2] or right)
    if words[0].startswith("--") or "--help" in words:
        assert run_command(words) == 0
    else:
        context = cli.commands[words[0]].make_context(words[0], words[1:])
        assert context.params


@pytest.mark.slow
def test_the_right_commands_run(graph: None, tracking_store: Path) -> None:
    """After a training, so that there is a newest run."""
    quick = ["max_steps=1", "test_after_training=false"]
    for guess, right in GUESSES.items():
        words = shlex.split(right.partition("clew ")[2] or right)
        if words[0] == "train" and words[1] not in ("--help", "--resume"):
            assert run_command([*words, *quick]) == 0, guess
    for right in ("runs", "plan umls", "--version", "train --help", GUESSES["explain"]):
        assert run_command(right.split()) == 0
    assert run_command(["evaluate", "newest"]) in (0, 2)


@pytest.mark.parametrize("verb", [None, *cli.commands])
def test_the_short_help_fits_forty_lines(
    verb: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [verb] if verb else []
    assert run_command([*words, "--help"]) == 0
    short = capsys.readouterr().out.splitlines()
    assert len(short) <= 40
    assert sum(bool(re.match(r"[A-Z][a-z ]+:$", line)) for line in short) <= 7
    command = cli.commands[verb] if verb else cli
    if isinstance(command, Verb):
        assert run_command([*words, "--help-all"]) == 0
        whole = capsys.readouterr().out
        assert all(f"--{o.name.replace('_', '-')}" in whole for o in command.declared
                   if not (o.hidden or o.positional))  # fmt: skip
        for line in filter(None, [command.example]):
            options = shlex.split(line)[1:]
            cli.commands[options[0]].make_context(options[0], options[1:])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], "train"),
        (["train", "uml"], "umls"),
        (["train", "umls", "ep"], "epochs="),
        (["train", "--num-ep"], "--num-epochs"),
        (["evaluate", "ne"], "newest"),
        (["evaluate", "--split", "v"], "valid"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_completes(words: list[str], found: str, shell: str) -> None:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete: ShellComplete = kind(cli, {}, "clew", "_CLEW_COMPLETE")
    values = [item.value for item in complete.get_completions(words[:-1], words[-1])]
    assert found in values
    assert isinstance(cli, click.Group)
