"""Compares networks with ridge regression on ERA5 temperatures three hours ahead.

    python -m experiments.benchmarks.era5_temperature                      # every cell, takes hours
    python -m experiments.benchmarks.era5_temperature transformer film 1   # some cells
    python -m experiments.benchmarks.era5_temperature choose               # settings, then seeds

Each 4-day block is held out in turn. A cell is an architecture, a setting and a seed. The settings
are `film`, `blind` (without the sun's angles) and `strict` (no window crosses the border of a
block). A cell that is already in the result is run again and replaced. The ERA5 file must be under
$CLEW_DATA. Errors are over all 737 windows (`strict`: 709), each predicted by a model that was not
trained on its block.

`choose` measures strict training with settings that were not chosen on the reported blocks. Blocks
are numbered in order of time. Every candidate is run with three seeds, because seeds of one setting
differ as much as settings do. The candidate with the smallest mean absolute error over the windows
of the odd blocks is reported on the even blocks, and vice versa, over three other seeds.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from clew.config.image_sequences import ImageSequenceData
from clew.config.load import load, with_settings
from clew.config.schema import RunConfig
from clew.image_sequences.errors import (
    BASELINE_PREFIX,
    RegressionResult,
    conformal_half_width,
)
from clew.image_sequences.windows import group_names, load_table
from clew.runs.reading.runs import fetched
from clew.workflows.train import train
from experiments.benchmarks.harness import COMMIT, RESULTS, ROOT, print_table, write_results
from experiments.image_sequences.era5 import convert

NAME = "era5_temperature"
GRIB = Path("era5_uk_t2m_2019_03") / "era5-2mt-2019-03-uk.grib"
Cell = tuple[str, str, int]
ARCHITECTURES = ("transformer", "ssm", "gnn", "cnn")
SETTINGS: dict[str, dict[str, Any]] = {
    "film": {},
    "blind": {"data.scalars": [], "data.zenith_scalars": [], "data.azimuth_scalars": []},
    "strict": {"data.windows_cross_groups": False},
}
AVERAGE = {"training.ema_decay": 0.98}
LONG = AVERAGE | {"training.num_epochs": 20}
CHANGES: dict[str, dict[str, Any]] = {
    "average": AVERAGE,
    "average, 20 epochs": LONG,
    "average, 20 epochs, half the rate": LONG | {"optimizer.learning_rate": 0.001},
    "average, 20 epochs, decay .5": LONG | {"optimizer.weight_decay": 0.5},
    "average, 20 epochs, dropout .3": LONG | {"model.dropout": 0.3},
    "average, 20 epochs, twice the width": LONG | {"model.channels": [32, 64, 128]},
    "average, 20 epochs, noise .1": LONG | {"data.pixel_noise": 0.1},
}
SETTINGS |= {f"strict, {name}": SETTINGS["strict"] | change for name, change in CHANGES.items()}
STRICT = [name for name in SETTINGS if name.startswith("strict")]
SEEDS = (1, 2, 3)
CELLS = [
    *itertools.product(ARCHITECTURES, ("film", "strict"), SEEDS),
    *itertools.product(("transformer", "cnn"), ("blind",), SEEDS),
]
CHOSEN_FOR, CHOOSING_SEEDS, REPORTED_SEEDS = "transformer", (0, 1, 2), (4, 5, 6)
KEPT = (
    "mae", "rmse", "r2", "bias", "abs_error_q50", "abs_error_q90", "abs_error_q95", "mean_mae",
    "persistence_mae", "ridge_mae", "interval_coverage", "interval_half_width",
)  # fmt: skip


def train_each_group(config: RunConfig) -> RegressionResult:
    """Train with each group as the test group in turn; return all predictions together."""
    parts = []
    assert isinstance(config.data, ImageSequenceData)
    for group in group_names(load_table(config.data).group):
        run_id = train(with_settings(config, {"data.test_group": group})).run_id
        assert run_id is not None
        with fetched(run_id, "evaluation/test_predictions.parquet") as path:
            parts.append(read_predictions(path))
    return together(parts)


def read_predictions(path: Path) -> RegressionResult:
    """Read predictions from a file of `RegressionResult.write`, without their intervals."""
    table = pq.read_table(path).to_pandas()
    known = [name for name in table.columns if name.startswith(BASELINE_PREFIX)]
    return RegressionResult(
        prediction=table["prediction"].to_numpy(),
        target=table["target"].to_numpy(),
        group=table["group"].to_numpy(dtype=str),
        last_frame=table["last_frame"].to_numpy(),
        baselines={n.removeprefix(BASELINE_PREFIX): table[n].to_numpy() for n in known},
    )


def together(parts: Sequence[RegressionResult]) -> RegressionResult:
    """Join the results of several folds.

    The intervals of each group are computed from the errors of the other groups.
    """
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("prediction", "target", "group", "last_frame")
    }
    baselines = {
        name: np.concatenate([part.baselines[name] for part in parts])
        for name in parts[0].baselines
    }
    errors = joined["prediction"] - joined["target"]
    return RegressionResult(
        **joined, baselines=baselines, interval=group_half_widths(errors, joined["group"])
    )


def group_half_widths(errors: np.ndarray, group: np.ndarray) -> np.ndarray:
    widths = np.empty(len(errors))
    for name in np.unique(group):
        widths[group == name] = conformal_half_width(errors[group != name])
    return widths


def run_cell(architecture: str, setting: str, seed: int, data: Path) -> dict[str, Any]:
    """Train one model for each block, and return the errors over all blocks."""
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
    metrics = result.metrics("test")
    row |= {name: metrics[f"test/{name}"] for name in KEPT}
    row["blocks"] = [
        {"block": block["group"], "windows": block["windows"], "mae": block["mae"]}
        for block in result.by_group()
    ]
    return row | {"seconds": time.perf_counter() - started}


@contextmanager
def cells(*, again: bool) -> Iterator[Callable[[Cell], dict[str, Any]]]:
    """Provide a function that runs a cell and adds it to the results of this commit.

    Args:
        again: Whether to run a cell again that already has a result.
    """
    path = RESULTS / f"{NAME}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    earlier = content["results"] if content.get("commit") == COMMIT else []
    done: dict[Cell, dict[str, Any]] = {}
    done |= {(r["architecture"], r["setting"], r["seed"]): r for r in earlier}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        data = Path(folder) / "era5_uk"
        convert(Path(os.environ["CLEW_DATA"]) / GRIB, data)

        def run(cell: Cell) -> dict[str, Any]:
            if again or cell not in done:
                done[cell] = run_cell(*cell, data)
                write_results(NAME, list(done.values()), packages=["torch"])
            return done[cell]

        yield run


def main(chosen: list[Cell]) -> None:
    """Run cells, and print medians over seeds."""
    with cells(again=True) as run:
        print_table(summary([run(cell) for cell in chosen]))


def choose() -> None:
    """Choose settings on the odd blocks for the even ones, and vice versa; print both."""
    with cells(again=False) as run:
        trials = {
            setting: [run((CHOSEN_FOR, setting, seed)) for seed in CHOOSING_SEEDS]
            for setting in STRICT
        }
        print_table(summary([row for rows in trials.values() for row in rows]))
        best = [
            min(STRICT, key=lambda setting: half_error(trials[setting], 1 - half))
            for half in (0, 1)
        ]
        for half, setting in enumerate(best):
            print(f"{('even', 'odd')[half]} blocks: {setting}")
        rows = [[run((CHOSEN_FOR, setting, seed)) for setting in best] for seed in REPORTED_SEEDS]
    errors = [mixed_error(*row) for row in rows]
    print_table(
        [
            {"seed": seed, "MAE (K)": error}
            for seed, error in zip(REPORTED_SEEDS, errors, strict=True)
        ]
    )
    print(f"mean {statistics.mean(errors):.3f} K, ridge {rows[0][0]['ridge_mae']:.3f} K")


def half_error(rows: list[dict[str, Any]], half: int) -> float:
    """Return the mean error over the windows of the even (0) or odd (1) blocks and all seeds."""
    return statistics.mean(weighted_mean(row["blocks"][half::2]) for row in rows)


def mixed_error(even: dict[str, Any], odd: dict[str, Any]) -> float:
    """Return the error over the even blocks of one row and the odd blocks of another."""
    return weighted_mean(even["blocks"][::2] + odd["blocks"][1::2])


def weighted_mean(blocks: list[dict[str, Any]]) -> float:
    """Return the mean absolute error over all windows of the blocks."""
    error: float = sum(block["mae"] * block["windows"] for block in blocks)
    return error / sum(int(block["windows"]) for block in blocks)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return medians over seeds, with one row per architecture and setting."""
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
    if given == ["choose"]:
        choose()
    else:
        named = zip(given[::3], given[1::3], given[2::3], strict=True)
        main([(name, setting, int(seed)) for name, setting, seed in named] or CELLS)
