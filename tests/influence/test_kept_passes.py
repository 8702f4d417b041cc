"""An unfinished pass on a full disk raises the system's error, and saved parts remain."""

from pathlib import Path

import pytest
import torch

from clew.influence.adjoints import Adjoint
from clew.influence.unrolling import KeptInFile, Unfinished
from tests.runs.test_full_disk import largest_file


def unfinished(intervals_left: int) -> Unfinished:
    adjoint = Adjoint({"weight": torch.ones(100, 100)}, {}, {}, {})
    return Unfinished(intervals_left, [adjoint], torch.zeros(3, 1, 4))


def test_a_full_disk_is_the_systems_error_and_leaves_what_was_kept(tmp_path: Path) -> None:
    kept = KeptInFile(tmp_path / "pass.safetensors", torch.device("cpu"))
    kept.write(unfinished(2))
    with largest_file(1000), pytest.raises(OSError, match="File too large"):
        kept.write(unfinished(1))
    left = kept.read()
    assert left is not None
    assert left.intervals_left == 2
