"""Temperature three hours ahead, each 4-day block held out in turn: networks beside ridge.

    python -m experiments.benchmarks.era5_temperature                      # every cell, hours
    python -m experiments.benchmarks.era5_temperature transformer film 1   # some cells

Cells are (architecture; `film`, `blind` to the sun's angles, or `strict`: no window crosses a
block; seed). A cell that is in the result already is run again and replaced. Needs the ERA5 file
under $CLEW_DATA. Errors are over all 737 windows, each predicted by a model that never saw its
block (`strict`: 709 windows).
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clew.config.load import load
from clew.workflows.leave_one_out import train_each_group
from experiments.benchmarks.harness import COMMIT, RESULTS, ROOT, print_table, write_results
from experiments.image_sequences.era5 import convert

NAME = "era5_temperature"
GRIB = Path("era5_uk_t2m_2019_03") / "era5-2mt-2019-03-uk.grib"
ARCHITECTURES = ("transformer", "ssm", "gnn", "cnn")
SETTINGS: dict[str, dict[str, Any]] = {
    "film": {},
    "blind": {"data.scalars": [], "data.zenith_scalars": [], "data.azimuth_scalars": []},
    "strict": {"data.windows_cross_groups": False},
}
SEEDS = (1, 2, 3)
CELLS = [
    *itertools.product(ARCHITECTURES, ("film",), SEEDS),
    *itertools.product(("transformer", "cnn"), ("blind", "strict"), SEEDS),
]
KEPT = (
    "mae", "rmse", "r2", "bias", "abs_error_q50", "abs_error_q90", "abs_error_q95", "mean_mae",
    "persistence_mae", "ridge_mae", "interval_coverage", "interval_half_width",
)  # fmt: skip


def run_cell(architecture: str, setting: str, seed: int, data: Path) -> dict[str, Any]:
    """Train a model for each block and return the errors over all of them."""
    config = load(
        ROOT / "experiments/image_sequences/era5.yaml",
        {
            "data.path": str(data),
            "model.architecture": architecture,
            "training.seed": seed,
            "training.num_threads": int(os.environ.get("OMP_NUM_THREADS", "2")),
            "tracking.log_mfu": False,
            "tracking.log_checkpoints": False,
            **SETTINGS[setting],
        },
    )
    started = time.perf_counter()
    result = train_each_group(config)
    row: dict[str, Any] = {"architecture": architecture, "setting": setting, "seed": seed}
    row |= {name: result.metrics[f"test/{name}"] for name in KEPT}
    row["by_block"] = {str(block["group"]): block["mae"] for block in result.groups}
    return row | {"seconds": time.perf_counter() - started}


def main(cells: list[tuple[str, str, int]]) -> None:
    """Run cells, add them to those of earlier calls at this commit, print medians over seeds."""
    path = RESULTS / f"{NAME}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    earlier = content["results"] if content.get("commit") == COMMIT else []
    done = {(r["architecture"], r["setting"], r["seed"]): r for r in earlier}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        data = Path(folder) / "era5_uk"
        convert(Path(os.environ["CLEW_DATA"]) / GRIB, data)
        for cell in cells:
            done[cell] = run_cell(*cell, data)
            write_results(NAME, list(done.values()), packages=["torch"])
    print_table(summary(list(done.values())))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return medians over seeds, one row an architecture and setting."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["architecture"], row["setting"]), []).append(row)
    return [
        {
            "architecture": architecture,
            "setting": setting,
            "seeds": len(own),
            "MAE (K)": statistics.median(row["mae"] for row in own),
            "worst seed": max(row["mae"] for row in own),
            "ridge": own[0]["ridge_mae"],
            "persistence": own[0]["persistence_mae"],
            "mean": own[0]["mean_mae"],
            "coverage": statistics.median(row["interval_coverage"] for row in own),
            "seconds": statistics.median(row["seconds"] for row in own),
        }
        for (architecture, setting), own in found.items()
    ]


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = zip(given[::3], given[1::3], given[2::3], strict=True)
    main([(name, setting, int(seed)) for name, setting, seed in chosen] or CELLS)
