"""Wrong usage ends with code 2 before anything is read, in lines that a terminal shows whole."""

import io
import json
import logging
import queue
import sys
from pathlib import Path

import pytest

from clew.__main__ import run as run_command
from clew.cli import cli, output
from clew.cli.options import Verb, dashed
from clew.workflows.train import TrainResult

FRAMES = ("predict", "--model=none", "--frames=f", "--output=o")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("data", "--kgx=D", "--output-dir=O", "--pack=P"),
            "--pack is given with FILES or --kgx",
        ),
        (("data", "--name=umls", "--qualifiers"), "--qualifiers is given without FILES"),
        (("data", "--name=umls", "--seed=5"), "--seed is given without FILES"),
        (
            ("data", "--name=umls", "--valid-fraction=0.3"),
            "--valid-fraction is given without FILES",
        ),
        (
            ("trace-text", "--model=none", "--prompts=F", "--continuation=x"),
            "--prompts and --continuation are both given",
        ),
        (
            ("trace-text", "--model=none", "--prompts=F", "--prompt=x"),
            "--prompts and --prompt are both given",
        ),
        ((*FRAMES, "--conformal=0.8"), "the option for the intervals of frames is --confidence"),
        (
            ("trace-sequence", "--model=none", "--frame=²"),
            "expected a whole number",
        ),
        (("report", "--explanation=~nosuch/x", "--output=o"), "~nosuch/x"),
        (("batch-tracin", "--model=none", "--start-index=-1"), "expected at least 0"),
        (("ui", "--port=99999"), "65535"),
        (("ui", "--port=0"), "--port"),
        (
            ("pretokenize", "--dataset=d", "--tokenizer=bpe", "--vocabulary-size=-5"),
            "258",
        ),
    ],
)
def test_one_line_says_what_to_do(
    tracking_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clew: error: ")
    assert message in line


def test_empty_options_of_kgx_are_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    """As `mlflow run` passes them."""
    empty = ("--kgx=", "--qualifiers=", "--valid-fraction=", "--test-fraction=", "--seed=")
    assert run_command(["data", "--name=umls", *empty]) == 0
    assert "umls" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["loop", "dead", "./none", "folder/none"])
def test_a_link_or_a_path_is_no_name_of_a_data_set(
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("dead").symlink_to("nothing")
    assert run_command(["data", word]) == 2
    said = capsys.readouterr().err
    assert str(Path(word)) in said
    assert "data.name" not in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[60, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def shown(words: list[str], monkeypatch: pytest.MonkeyPatch, *, code: int) -> list[str]:
    """Run a command as if on a terminal, and return the lines that it shows."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run_command(words) == code
    return terminal.getvalue().splitlines()


def test_no_command_shows_the_help(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = shown([], monkeypatch, code=2)
    assert alone == shown(["--help"], monkeypatch, code=0)
    assert {line.split()[0] for line in alone if line.startswith("  ")} >= set(cli.commands)
    assert max(map(len, alone)) <= width


@pytest.mark.parametrize("verb", cli.commands)
def test_help_fits_the_terminal(verb: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown([verb, "--help"], monkeypatch, code=0)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("verb", cli.commands)
@pytest.mark.parametrize("wrong", ["--unheard-of", "--hlep", "value", "word"])
def test_wrong_usage_names_the_usage_and_the_help(
    verb: str, wrong: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = cli.commands[verb]
    assert isinstance(command, Verb)
    if wrong == "value":  # an option without its value
        wrong = next((dashed(o.name) for o in command.declared if not o.alone), "--none-has-one")
    words = [wrong] * (1 + (wrong == "word"))  # the first can be the configuration or the model
    if wrong == "word" and verb == "data":
        words = ["--no-word-is-wrong"]
    lines = shown([verb, *words], monkeypatch, code=2)
    assert lines[0].startswith(f"Usage: clew {verb} ")
    assert f"clew {verb} --help" in lines[1]
    assert max(map(len, lines)) <= width


def test_a_misspelt_option_brings_its_likely_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["train", "--num_epoch=3"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "--num-epoch" in line.split("'")
    assert "--num-epochs" in line.split("'")
    assert "--num_epochs" not in line


@pytest.mark.parametrize("verb", ["batch-tracin", "batch_tracin"])
def test_underscores_stand_for_dashes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([verb, "--model_path=x", "--no-such"]) == 2
    assert run_command([verb, "--top_k", "--help"]) == 2  # the value of the option
    assert run_command([verb, "--help"]) == 0
    assert "_" not in "".join(
        line.split()[0] for line in capsys.readouterr().out.splitlines() if "  --" in line
    )


def test_a_command_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(output, "BEAT_SECONDS", 0.001)
    heard = queue.Queue[str]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.put(record.getMessage())

    logger, listener = logging.getLogger(output.__name__), Listener()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(listener)
    try:
        with output.Heartbeat():
            assert heard.get(timeout=60)
            output.progress_bar("tests", as_json=False)(3, 7)
            while "3 of 7 tests" not in heard.get(timeout=60):
                pass
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
    assert output.BEATING == []


def test_what_was_not_sent_is_told_by_the_exit_code_or_to_a_study_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, file = "a" * 32, tmp_path / "result.json"
    monkeypatch.setattr("clew.workflows.train.train", lambda *_, **__: TrainResult(run_id, "fp32"))
    monkeypatch.setattr("clew.runs.store.spool_root", lambda: tmp_path)
    assert run_command(["train", "umls"]) == 0
    (tmp_path / run_id).mkdir()
    assert run_command(["train", "umls"]) == 3
    assert run_command(["train", "umls", f"--result-file={file}"]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["run_id"] == run_id


def test_json_has_null_for_a_number_that_is_not_finite() -> None:
    said = output.in_json({"mrr": float("nan"), "of": [float("inf"), 0.5], "name": "\x9b"})
    assert json.loads(said, parse_constant=pytest.fail) == {
        "mrr": None,
        "of": [None, 0.5],
        "name": "\x9b",
    }
    assert said.isascii()


def test_help_gives_no_number_that_a_configuration_sets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["train", "--help"]) == 0  # its default configuration has 100 epochs
    lines = capsys.readouterr().out.splitlines()
    assert not next(line for line in lines if "--num-epochs" in line).endswith("]")
    assert next(line for line in lines if "--config" in line).endswith("[umls.yaml]")
