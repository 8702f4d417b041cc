"""Meaningless options are refused in one line before anything is read."""

from pathlib import Path

import pytest

from clew.__main__ import run as run_command

FRAMES = ("predict", "--model=none", "--frames=f", "--output=o")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("data", "--kgx=D", "--output-dir=O", "--pack=P"),
            "--pack is given with --kgx; make the data set first",
        ),
        (("data", "--name=umls", "--qualifiers"), "--qualifiers is given without --kgx"),
        (("data", "--name=umls", "--seed=5"), "--seed is given without --kgx"),
        (
            ("data", "--name=umls", "--valid-fraction=0.3"),
            "--valid-fraction is given without --kgx",
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
        (("trace-sequence", "--model=none", "--frame=²"), "expected numbers of frames"),
        (("report", "--explanation=~nosuch/x", "--output=o"), "~nosuch/x"),
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
