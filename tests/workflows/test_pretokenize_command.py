"""`clew pretokenize` on the command line."""

import re
from pathlib import Path

import pytest

from clew.__main__ import run


def test_pack_a_file_and_say_what_was_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "corpus.txt").write_text("a line of text\n" * 100)
    output = tmp_path / "packed"
    options = ["--dataset", str(tmp_path / "corpus.txt"), "--output", str(output)]
    assert run(["pretokenize", *options, "--chunk_size", "64", "--max-chunks", "5"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^tokens +321$", printed, re.MULTILINE)
    assert re.search(r"^windows of 64 +5$", printed, re.MULTILINE)
    assert f"data.packed={output}" in printed


def test_wrong_use_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["pretokenize", "--dataset", "nowhere.txt", "--output", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "nowhere.txt: no such file or folder" in errors
    assert "Traceback" not in errors
    (tmp_path / "a.txt").write_text("text")
    options = ["--dataset", str(tmp_path / "a.txt"), "--output", str(tmp_path / "p")]
    assert run(["pretokenize", *options, "--num-proc", "0"]) == 2
    assert "--num-proc is '0'; expected at least 1" in capsys.readouterr().err
