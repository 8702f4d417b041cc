"""Measures the accuracy of the shipped presets over several seeds.

    CLEW_DATA=... python -m experiments.benchmarks.accuracy PRESET SEEDS

A preset, such as `umls` or `codex_s_complex`, is trained unchanged with the seeds 0, 1, ...; these
figures are not used to choose any setting. Each finished training is saved in `runs/accuracy`, so a
program that was stopped continues with the next one. Each preset has its own result file. Seconds
are the wall-clock time of a whole run with evaluation. Other programs can have run at the same
time.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from clew import names
from clew.config.load import load
from clew.files import write_whole
from clew.influence.outcomes import measured
from clew.workflows.train import train
from experiments.benchmarks.harness import ROOT, SHORT_COMMIT, print_table, write_results

NAME = "accuracy"
KEPT = Path("runs") / NAME

QUALITY = (names.MRR, *(names.hits_at(k) for k in (1, 3, 10)))

Row = dict[str, float]


def trained(preset: str, seed: int) -> Row:
    """Return the metrics of one run, or the saved ones of this commit if there are any."""
    kept = KEPT / f"{preset}-{seed}-{SHORT_COMMIT}.json"
    if kept.is_file():
        found: Row = json.loads(kept.read_text(encoding="utf-8"))
        return found
    config = load(ROOT / f"experiments/link_prediction/{preset}.yaml", {"training.seed": seed})
    with tempfile.TemporaryDirectory(prefix="clew-accuracy-") as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        began = time.perf_counter()
        metrics = train(config).metrics
    keys = [names.metric("valid", names.MRR), *(names.metric("test", name) for name in QUALITY)]
    row: Row = {"seed": seed, "seconds": time.perf_counter() - began}
    row |= {key: metrics[key] for key in keys}
    write_whole(kept, json.dumps(row))
    return row


def summary(rows: list[Row]) -> Mapping[str, object]:
    """Return means over seeds, and the 95 % interval of test MRR by Student's t."""
    means = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if key != "seed"}
    if len(rows) < 2:
        return means
    test = np.array([row["test/mrr"] for row in rows])
    return means | {"± test/mrr": measured(test).half_width}


def main(preset: str, seeds: int) -> None:
    """Train with all seeds, and print and write the results."""
    KEPT.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(seeds):
        rows.append(trained(preset, seed))
        print(rows[-1], flush=True)
    print_table(rows)
    results = {
        "preset": preset,
        "threads": torch.get_num_threads(),
        "mean": summary(rows),
        "seeds": rows,
    }
    write_results(NAME, results, part=preset)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
