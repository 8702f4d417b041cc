"""`clew pretokenize` on the command line, and training on what it wrote."""

import subprocess
import sys
from pathlib import Path


def clew(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "clew", *arguments], capture_output=True, text=True, check=False
    )


def test_pack_a_file_and_say_what_was_packed(tmp_path: Path):
    (tmp_path / "corpus.txt").write_text("a line of text\n" * 100)
    output = tmp_path / "packed"
    run = clew(
        "pretokenize",
        "--dataset",
        str(tmp_path / "corpus.txt"),
        "--output",
        str(output),
        "--chunk_size",
        "64",
        "--max-chunks",
        "5",
    )
    assert run.returncode == 0, run.stderr
    assert "tokens                   321" in run.stdout
    assert "windows of 64            5" in run.stdout
    assert f"data.packed={output}" in run.stdout


def test_wrong_use_is_one_line_and_exit_code_2(tmp_path: Path):
    run = clew("pretokenize", "--dataset", "nowhere.txt", "--output", str(tmp_path))
    assert run.returncode == 2
    assert "nowhere.txt: no such file or folder" in run.stderr
    assert "Traceback" not in run.stderr
    (tmp_path / "a.txt").write_text("text")
    run = clew(
        "pretokenize", "--dataset", str(tmp_path / "a.txt"), "--output", str(tmp_path / "p"),
        "--num-proc", "0",
    )  # fmt: skip
    assert run.returncode == 2
    assert "num_proc is 0; expected 1 or more" in run.stderr
