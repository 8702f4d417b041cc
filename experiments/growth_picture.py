"""Draws how seconds grow with size: one panel for each curve, with a line of proportion.

    python -m experiments.growth_picture

writes `ui/pictures/growth.png` from the results of `experiments.benchmarks.growth`.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "experiments/benchmarks/results/growth.json"
PICTURE = ROOT / "ui/pictures/growth.png"
COLUMNS = 4


def draw(curves: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each curve; the grey line is in proportion to the size."""
    from matplotlib.figure import Figure

    rows = -(-len(curves) // COLUMNS)
    figure = Figure(figsize=(11, 2.5 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for panel, curve in zip(panels, curves, strict=False):
        sizes, seconds = curve["sizes"], curve["seconds"]
        proportion = [seconds[-1] * size / sizes[-1] for size in sizes]
        panel.plot(sizes, proportion, color="0.75", linestyle="--")
        panel.plot(sizes, seconds, marker="o", color="C0")
        panel.set(xscale="log", yscale="log", xlabel=curve["axis"], ylabel="seconds")
        ends = [min(seconds), max(seconds)]
        panel.set_xticks(sizes, [short(size) for size in sizes])
        panel.set_yticks(ends, [f"{end:.2g}" for end in ends])
        panel.minorticks_off()
        panel.set_title(f"{curve['curve']}: exponent {curve['exponent']:.2f}", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=110)


def short(size: int) -> str:
    """Return a size as on an axis: 250k, 2M."""
    for factor, letter in ((1_000_000, "M"), (1_000, "k")):
        if size >= factor:
            return f"{size / factor:g}{letter}"
    return str(size)


def main() -> None:
    """Draw the picture from the existing results, if there are any."""
    if RESULT.exists():
        draw(json.loads(RESULT.read_text(encoding="utf-8"))["results"]["curves"], PICTURE)


if __name__ == "__main__":
    main()
