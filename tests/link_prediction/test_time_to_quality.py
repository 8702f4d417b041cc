"""Time to quality: training and validation are timed apart, and every curve can be measured."""

from pathlib import Path

import pytest

from clew.config.load import load
from experiments import quality_picture
from experiments.benchmarks.time_to_quality import (
    CLEW,
    CURVES,
    DATA_SETS,
    clew_command,
    folder_of,
    summary,
    with_clocks,
)

CURVE = CURVES[0]


def test_a_point_has_all_training_and_all_validation_until_then() -> None:
    epochs = [(10, 1.0, 2.0), (20, 4.0, 3.0), (30, 9.0, 4.0)]
    mrr, validations = [(30, 9.5, 0.6), (20, 4.5, 0.5)], [(20, 4.5, 0.25), (30, 9.5, 0.5)]
    first, second = with_clocks(mrr, epochs, validations)
    assert first == {
        "seconds": 4.5,
        "training_seconds": 5.0,
        "validation_seconds": 0.25,
        "mrr": 0.5,
    }
    assert (second["training_seconds"], second["validation_seconds"]) == (9.0, 0.75)


def test_a_summary_has_the_first_time_of_each_mrr() -> None:
    points = [
        {"seconds": 5.0 * n, "training_seconds": 2.0 * n, "validation_seconds": 1.0 * n, "mrr": mrr}
        for n, mrr in enumerate((0.2, 0.5, 0.4, 0.6), 1)
    ]
    row = summary(CURVE, points, (0.4, 0.7))
    assert (row["s to 0.4"], row["s of training to 0.4"]) == (10.0, 4.0)
    assert (row["s to 0.7"], row["s of training to 0.7"]) == (None, None)
    assert (row["validations"], row["s, training"], row["s, validation"]) == (4, 8.0, 4.0)
    assert summary(CURVE, [], (0.4,))["s, all"] is None


@pytest.mark.parametrize("data", DATA_SETS)
def test_every_curve_of_clew_has_a_valid_configuration(data: str) -> None:
    for curve in (curve for curve in CURVES if curve.program == CLEW):
        _, _, _, _, _, path, *settings = clew_command(curve, data)
        assigned = dict(setting.split("=") for setting in settings)
        config = load(path, {k: None if v == "null" else v for k, v in assigned.items()})
        assert config.data.name == data
        assert config.evaluation.every_epochs == DATA_SETS[data].every_epochs


def test_umls_is_the_bundled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_DATA", raising=False)
    assert (folder_of("umls") / "train.txt").is_file()


def test_the_picture_takes_old_results_too(tmp_path: Path) -> None:
    old = [{"program": CLEW, "recipe": "ConvE", "seconds": 60.0, "mrr": 0.3}]
    new = [{**point, "training_seconds": 30.0} for point in old]
    path = tmp_path / "picture.png"
    quality_picture.draw({"umls": new, "codex-s": old, "WN18RR": new}, path)
    assert path.stat().st_size > 1000
