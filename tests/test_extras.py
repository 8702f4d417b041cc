"""The core works without the packages of an extra; a one-line error names a needed extra."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clew.__main__ import run
from clew.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
OF_EXTRAS = (
    *(
        "streamlit",
        "altair",
        "h5py",
        "zarr",
        "datasets",
        "tokenizers",
        "zstandard",
        "pynvml",
        "triton",
        "onnx",
        "onnxruntime",
        "onnxscript",
    ),
    "tensorboard",
    "reasoner_pydantic",
)
PROGRAM = f"""
import json, pkgutil, sys
for name in {OF_EXTRAS!r}:
    sys.modules[name] = None
import clew
from clew.errors import ClewError
failed = {{}}
for module in pkgutil.walk_packages(clew.__path__, "clew.", onerror=lambda name: None):
    if module.name.startswith("clew.ui") or module.name.endswith("__main__"):
        continue
    try:
        __import__(module.name)
    except ImportError as error:
        failed[module.name] = str(error)
print(json.dumps(failed))
"""
NEED_ONE = {
    "clew.api.charts",
    "clew.layers.triton_scan",
    "clew.link_prediction.losses.triton_slopes",
}


def test_modules_of_the_core_need_no_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT / "platform", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert set(failed) == NEED_ONE, failed


@pytest.mark.parametrize(
    ("hidden", "words", "name"),
    [
        ("streamlit", ["ui"], "ui"),
        ("tokenizers", ["pretokenize", "--tokenizer=bpe", "--vocabulary-size=300"], "language"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    hidden: str, words: list[str], name: str, tmp_path: Path, tracking_store: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, hidden, None)
    if words[0] == "pretokenize":
        (tmp_path / "words.txt").write_text("But soft, what light through yonder window breaks?\n")
        words = [*words, f"--dataset={tmp_path / 'words.txt'}", f"--output={tmp_path / 'packed'}"]
    assert run(words) == UsageError.exit_code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    expected = f"the package {hidden} is not installed; install it with pip install 'clew[{name}]'"
    assert expected in line
