"""Output paths: every verb refuses a path that it cannot write before it does anything else.

The models and files named here do not exist, so a verb that read them first would report this.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from clew.__main__ import run as run_command
from clew.errors import ConfigError
from clew.workflows import outputs

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "experiments/link_prediction/umls.yaml"
STUDY = ROOT / "experiments/studies/loss.yaml"
TRACIN = ("tracin", "--model=none", "--test=a,b,c")
TEXT = ("trace-text", "--model=none", "--prompt=a")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder that contains a folder `full` with a file `file`."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "option", "place", "message"),
    [
        (("train", f"--config={CONFIG}"), "--output-dir", "full/file", "full/file is not a folder"),
        (("train", "--resume=none"), "--output-dir", "full", "exists and is not empty"),
        (("export", "--model=none"), "--output-dir", "full/file/x", "full/file is not a folder"),
        (("export", "--model=none"), "--output-dir", "full", "exists and is not empty"),
        (("batch-tracin", "--model=none"), "--output-dir", "full/file", "is not a folder"),
        (
            ("export", "--model=none"),
            "--output-dir",
            "dangling",
            "a link to nowhere, which does not exist",
        ),
        (("export", "--model=none"), "--output-dir", "dangling/x", "a link to nowhere, which"),
        (("compare", f"--study={STUDY}"), "--output", "full", "is a folder; name a file"),
        (("compare", f"--study={STUDY}"), "--output", "full/file/x", "full/file is not a folder"),
        (TRACIN, "--output", "full/file", "full/file is not a folder"),
        (TRACIN, "--output", "full/file/x.json", "full/file is not a folder"),
        (TEXT, "--output", "full", "is a folder; name a file"),
        (TEXT, "--output", "full/file/x/y", "full/file is not a folder"),
        (("trace-sequence", "--model=none"), "--output", "full", "is a folder; name a file"),
        (("pretokenize", "--dataset=none"), "--output", "full/file", "full/file is not a folder"),
    ],
)
def test_every_verb_looks_first(
    places: None,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    option: str,
    place: str,
    message: str,
) -> None:
    assert run_command([*arguments, option, place]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"clew: error: {option} {place}: ")
    assert message in line
    assert Path("full/file").read_text() == "mine"


def test_a_small_probability_is_no_zero_in_json(tmp_path: Path) -> None:
    path, small = tmp_path / "list.json", [3.25e-9, -1.5e-8]
    outputs.write_table(path, pa.table({"probability": small}))
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [row["probability"] for row in rows] == pytest.approx(small, rel=1e-5)


def test_what_is_not_there_yet_can_be_made(places: None) -> None:
    outputs.check_new_folder("--output-dir", Path("new/deep"))
    outputs.check_file("--output", Path("new/file.json"))
    outputs.check_file("--output", Path("full/file"))
    outputs.check_folder("--output", None)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder nobody may write, even root")
def test_a_folder_that_may_not_be_written() -> None:
    with pytest.raises(ConfigError, match="--output"):
        outputs.check_file("--output", Path("/proc/new/x"))
