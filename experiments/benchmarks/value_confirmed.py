"""Measures how many values of `clew value-facts` are confirmed by training without the fact.

    CLEW_DATA=... python -m experiments.benchmarks.value_confirmed [graph ...]

The models are the ConvE of `influence_validation models` and `wordnet`, on five graphs, each
trained with three seeds. All facts are valued by the validation triples, and the twenty facts at
each end of the list are tried with `--confirm`: the run is trained again, with its own seed,
without the fact, and without all twenty of an end together. A value, or the sum of twenty, is
confirmed if the loss then rises by half of it to twice. The table also says how much one rise
differs from its value (root mean square, as a share of the values' mean size), and how many of the
twenty best facts of one seed are among those of another.

Results of a finished model stay in `runs/value_confirmed`, so a command that was stopped goes on;
named graphs are measured without a result file.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from statistics import mean

import numpy as np

from clew.config.load import load
from clew.config.services import ValueRequest
from clew.workflows.explaining.value_facts import agree, value_facts
from clew.workflows.train import train
from experiments.benchmarks.dense_part import write_dense_part
from experiments.benchmarks.harness import print_table, write_results
from experiments.benchmarks.influence_validation import (
    CONFIGS,
    MODEL_CASES,
    WORDNET_CASES,
    Row,
)

NAME = "value_confirmed"
KEPT = Path("runs") / NAME
CASES = {
    case.dense_part_of or "umls": case
    for name, case in (MODEL_CASES | WORDNET_CASES).items()
    if name.startswith("ConvE")
}
SEEDS, TRIED = (0, 1, 2), 20
AVERAGED = (
    "test MRR",
    "best confirmed",
    "worst confirmed",
    "one rise's difference",
    "mean rise / mean value",
    "best together confirmed",
    "worst together confirmed",
)


def measure(graph: str, seed: int) -> Row:
    """Train a model, value its facts, and try both ends of the list."""
    case, files = CASES[graph], dict[str, object]()
    with tempfile.TemporaryDirectory() as work:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{work}/mlflow.db"
        if case.dense_part_of:
            files = write_dense_part(case.dense_part_of, Path(work) / "graph")
        settings = {**case.settings, **files, "training.seed": seed}
        run = train(load(str(CONFIGS / case.config), settings))
        assert run.run_id is not None
        found = value_facts(ValueRequest(model=run.run_id, confirm=TRIED))
    best, worst = found.ends
    tried = np.concatenate([best, worst])
    values, rises = found.values[tried], found.without[tried]
    size = np.abs(values).mean()
    sums = np.array([found.values[end].sum() for end in found.ends])
    together = agree(sums, np.array(found.together))
    return {
        "graph": graph,
        "seed": seed,
        "facts": len(found.values),
        "test MRR": run.metrics["test/mrr"],
        "best": best.tolist(),
        "best, values": found.values[best].tolist(),
        "best, rises": found.without[best].tolist(),
        "best confirmed": float(found.confirmed[best].mean()),
        "worst, values": found.values[worst].tolist(),
        "worst, rises": found.without[worst].tolist(),
        "worst confirmed": float(found.confirmed[worst].mean()),
        "one rise's difference": float(np.sqrt(np.mean((rises - values) ** 2)) / size),
        "mean rise / mean value": float(np.mean(np.sign(values) * rises) / size),
        "twenty together, values": sums.tolist(),
        "twenty together, rises": [*found.together],
        "best together confirmed": float(together[0]),
        "worst together confirmed": float(together[1]),
    }


def kept(graph: str, seed: int) -> Row:
    """Return the row of a model, which is saved when it is first measured."""
    path = KEPT / f"{graph}-{seed}.json"
    if not path.is_file():
        row = measure(graph, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row), encoding="utf-8")
    found: Row = json.loads(path.read_text(encoding="utf-8"))
    return found


def summary(graph: str, rows: Iterable[Row]) -> Row:
    """Return the averages of a graph over its seeds."""
    own = [row for row in rows if row["graph"] == graph]
    bests = [set(np.array(row["best"]).tolist()) for row in own]
    return {
        "graph": graph,
        **{key: mean(float(str(row[key])) for row in own) for key in AVERAGED},
        "best in another seed's": mean(
            len(one & other) / TRIED for one, other in permutations(bests, 2)
        ),
    }


def main(asked: list[str]) -> None:
    """Measure the named graphs, or all and write the results."""
    rows = []
    for graph in asked or CASES:
        for seed in SEEDS:
            rows.append(kept(graph, seed))
            shown = {k: v for k, v in rows[-1].items() if not isinstance(v, list)}
            print_table([shown])
    table = [summary(graph, rows) for graph in asked or CASES]
    print_table(table)
    if not asked:
        overall = {key: mean(float(str(row[key])) for row in table) for key in AVERAGED[1:]}
        write_results(NAME, {**overall, "graphs": table, "models": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
