"""Draws the picture of time to quality: validation MRR against minutes, one panel per data set.

    python -m experiments.quality_picture

writes `ui/pictures/time_to_quality.png` from the results of
`experiments.benchmarks.time_to_quality`. The minutes are those of training alone; older results
have only the time since the command was typed, with validation, and their panel says so.
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

    columns = min(2, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(4.5 * columns + 2.5, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    lines: dict[str, Any] = {}
    for axis, (data, points) in zip(axes, curves.items(), strict=False):
        apart = all("training_seconds" in point for point in points)
        for program, recipe in dict.fromkeys((p["program"], p["recipe"]) for p in points):
            own = [p for p in points if (p["program"], p["recipe"]) == (program, recipe)]
            name = f"{program}: {recipe}"
            (line,) = axis.plot(
                [p["training_seconds" if apart else "seconds"] / 60 for p in own],
                [p["mrr"] for p in own],
                marker=".",
                linestyle="-" if program == "Clew" else "--",
                color=lines[name].get_color() if name in lines else f"C{len(lines)}",
            )
            lines.setdefault(name, line)
        axis.set_title(data)
        axis.set_xlabel("minutes of training" if apart else "minutes since the command was typed")
        axis.set_ylabel("validation MRR")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes:  # a panel that is left over
        axis.set_axis_off()
    figure.legend(lines.values(), lines.keys(), loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw the picture from the existing results, if there are any."""
    if curves := read():
        draw(curves, PICTURE)


if __name__ == "__main__":
    main()
