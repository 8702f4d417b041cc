"""Stored influence scores of a small graph in float64 show that a change alters no number.

The first cases use both directions and the loss that trained the model, which were once the only
choices. To store the scores again after an intended change:

    python -m tests.golden.test_influence
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.test_influence_sum import DoubleTask, fixture_of, matrix

STORED = Path(__file__).with_name("influence.json")
SHOWN = 3
"""Test triples whose scores are stored."""
CASES: dict[str, dict[str, object]] = {
    "raw": {"score": "raw"},
    "cosine": {"score": "cosine"},
    "preconditioned": {"score": "preconditioned"},
    "raw, kvs_all softmax": {"kind": "kvs_all", "function": "softmax_cross_entropy"},
    "raw, no inverse relations": {"inverse": False},
}


def scores(folder: Path, case: dict[str, object]) -> list[list[float]]:
    small = fixture_of(folder, DoubleTask, **case)
    found = matrix(small.tracer(top_k=0).explain(small.tests[:SHOWN]))
    return [[float(f"{value:.13g}") for value in row] for row in found]


@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_stored(tmp_path, name):
    expected = np.array(json.loads(STORED.read_text())[name])
    found = np.array(scores(tmp_path, CASES[name]))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())


def store() -> None:
    content = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            content[name] = scores(Path(folder), case)
    lines = ",\n".join(f'"{name}": {json.dumps(rows)}' for name, rows in content.items())
    STORED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    store()
