"""Draws the picture of time to quality: validation MRR against minutes, one panel per data set.

    python -m experiments.quality_picture

writes `ui/pictures/time_to_quality.png` from the results of
`experiments.benchmarks.time_to_quality`.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments/benchmarks/results"
PREFIX = "time_to_quality-"
PICTURE = ROOT / "ui/pictures/time_to_quality.png"


def read() -> dict[str, list[dict[str, Any]]]:
    """Return the points of all curves, by data set."""
    files = sorted(RESULTS.glob(f"{PREFIX}*.json"))
    return {
        file.stem.removeprefix(PREFIX): json.loads(file.read_text("utf-8"))["results"]["curves"]
        for file in files
    }


def draw(curves: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw one panel for each data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(curves) + 2.5, 3.4), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (data, points) in zip(axes, curves.items(), strict=True):
        for program, recipe in dict.fromkeys((p["program"], p["recipe"]) for p in points):
            own = [p for p in points if (p["program"], p["recipe"]) == (program, recipe)]
            axis.plot(
                [p["seconds"] / 60 for p in own],
                [p["mrr"] for p in own],
                marker=".",
                linestyle="-" if program == "Clew" else "--",
                label=f"{program}: {recipe}",
            )
        axis.set_title(data)
        axis.set_xlabel("minutes since the command was typed")
        axis.set_ylabel("validation MRR")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw the picture from the existing results, if there are any."""
    if curves := read():
        draw(curves, PICTURE)


if __name__ == "__main__":
    main()
