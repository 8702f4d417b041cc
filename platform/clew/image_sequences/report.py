"""The files of an evaluated regression: predictions, errors by group, pictures."""

import json
from pathlib import Path

from clew.image_sequences.errors import RegressionResult
from clew.image_sequences.plots import draw_groups, draw_predictions


def predictions_file(split: str) -> str:
    """Return the name of the file of a split's predictions."""
    return f"{split}_predictions.parquet"


def write_regression_report(result: RegressionResult, split: str, unit: str, folder: Path) -> None:
    """Write Parquet, JSON and two pictures into a folder that exists."""
    result.write(folder / predictions_file(split))
    text = json.dumps(result.by_group(), indent=1) + "\n"
    (folder / f"{split}_groups.json").write_text(text, encoding="utf-8")
    draw_predictions(result, unit, folder / f"{split}_predicted_against_true.png")
    draw_groups(result, unit, folder / f"{split}_error_by_group.png")
