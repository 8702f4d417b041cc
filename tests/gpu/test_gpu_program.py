"""The program for a GPU, on a processor in small sizes."""

import json
from pathlib import Path

import pytest

from experiments.gpu.__main__ import PARTS, main

pytestmark = pytest.mark.slow


def test_parts_run_without_a_gpu_and_are_written(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert main(["--minutes", "10", "--out", str(out), "--only", "equality|loss over|TracIn"]) == 0
    parts = json.loads(out.read_text())["parts"]
    assert len(parts) == 3
    assert all(part["rows"] and not part["error"] for part in parts.values())
    assert "fused" in out.with_suffix(".md").read_text()


def test_parts_that_had_no_time_are_named(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert main(["--minutes", "0", "--out", str(out)]) == 1
    parts = json.loads(out.read_text())["parts"]
    assert set(parts) == set(PARTS)
    assert all(part["error"] for part in parts.values())
