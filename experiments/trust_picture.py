"""Draws the picture of the page on trust: how well each form of score predicts retraining.

    python -m experiments.trust_picture

writes `ui/pictures/trust.png` from the results of `experiments.benchmarks.influence_validation`.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "experiments/benchmarks/results/influence_validation.json"
PICTURE = ROOT / "ui/pictures/trust.png"
SHOWN = {
    "kronecker": "#00796b",
    "deflated": "#4db6ac",
    "raw": "#b2dfdb",
    "siblings": "0.45",
    "touching": "0.7",
}
"""Forms of score in shades of green, and heuristics that use no model in grey."""
WIDTH = 0.15


def scores(results: dict[str, Any], training: str) -> dict[str, tuple[float, float]]:
    """Return each form's correlation with retraining with other seeds, and its half-width."""
    wanted = {"training": training, "runs": 1, "question": "tail", "loss": "trained"}
    return {
        row["form"]: (row["other seeds"], row["± other"])
        for row in results["datamodelling scores"]
        if {key: row[key] for key in wanted} == wanted
    }


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw a group of bars for each model, with a line at the ceiling of any score."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    trainings = [run["training"] for run in results["runs"]]
    for place, run in enumerate(results["runs"]):
        found = scores(results, run["training"])
        for number, (form, colour) in enumerate(SHOWN.items()):
            value, half_width = found[form]
            axis.bar(
                place + (number - (len(SHOWN) - 1) / 2) * WIDTH,
                value,
                WIDTH,
                yerr=half_width,
                color=colour,
                label=form if place == 0 else None,
            )
        reach = WIDTH * len(SHOWN) / 2
        axis.hlines(
            run["ceiling"],
            place - reach,
            place + reach,
            colors="black",
            linestyles="dashed",
            label="ceiling" if place == 0 else "",
        )
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(trainings)), trainings)
    axis.set_ylabel("correlation with retraining")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw the picture from the result file."""
    draw(json.loads(RESULT.read_text(encoding="utf-8"))["results"], PICTURE)


if __name__ == "__main__":
    main()
