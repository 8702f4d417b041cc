"""Measures the neighbourhood index on graphs of 1,000,000 entities and 10,000,000 edges.

    python -m experiments.benchmarks.influence_neighbourhood

Both graphs are generated. One has uniform ends. The ends of the other follow a power law, with hubs
of 100,000 edges and more. Measured are the time and memory to build the index, and the time to find
the candidates of 200 test triples (10 for paths), and the paths that an explanation shows.
"""

import sys
import time

import numpy as np

from clew.config.services import InfluenceConfig
from clew.influence.link_prediction.paths import Neighbourhood, PathFinder
from experiments.benchmarks.harness import (
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)

NAME = "influence_neighbourhood"
ENTITIES, EDGES, QUERIES = 1_000_000, 10_000_000, 200
FILTERS = {
    "1 hop": InfluenceConfig(n_hops=1),
    "2 hops": InfluenceConfig(n_hops=2),
    "2 hops, min_degree 30": InfluenceConfig(n_hops=2, min_degree=30),
    "paths of 4": InfluenceConfig(n_hops=2, strict_path_filtering=True),
}


def generate(kind: str) -> np.ndarray:
    """Return random triples. All relations are 0, because they do not matter here."""
    generator = np.random.default_rng(0)
    triples = np.zeros((EDGES, 3), np.int32)
    for column in (0, 2):
        if kind == "uniform":
            triples[:, column] = generator.integers(0, ENTITIES, EDGES)
        else:
            triples[:, column] = (ENTITIES * generator.random(EDGES) ** 3).astype(np.int32)
    return triples


def child(kind: str) -> None:
    """Build and query the index of one graph, and report the figures."""
    triples = generate(kind)
    before = resident_gib()
    start = time.perf_counter()
    index = Neighbourhood(triples, ENTITIES)
    built = time.perf_counter() - start
    found: dict[str, object] = {
        "build s": built,
        "largest degree": int(index.degrees[:1000].max()),
        "resident before GiB": before,
    }
    chosen = np.random.default_rng(1).integers(0, EDGES, QUERIES)
    for name, filtering in FILTERS.items():
        times, sizes = [], []
        # Each query for paths through hubs takes seconds, so there are fewer of them.
        for head, _, tail in triples[
            chosen[: 10 if filtering.strict_path_filtering else None]
        ].tolist():
            start = time.perf_counter()
            sizes.append(len(index.candidates(head, tail, filtering)))
            times.append(1e3 * (time.perf_counter() - start))
        found[f"{name}, median ms"] = float(np.median(times))
        found[f"{name}, 95 % ms"] = float(np.quantile(times, 0.95))
        found[f"{name}, candidates"] = float(np.median(sizes))
    finder, times = PathFinder(triples, ENTITIES), []
    for test in triples[chosen[:50]]:
        start = time.perf_counter()
        finder.find(test)
        times.append(1e3 * (time.perf_counter() - start))
    found["shown paths, median ms"] = float(np.median(times))
    found["shown paths, 95 % ms"] = float(np.quantile(times, 0.95))
    report_child(found)


def main() -> None:
    """Measure both graphs, and print and write the results."""
    table = []
    for kind in ("uniform", "power law"):
        found = run_child(NAME, "child", kind)
        peak, before = (
            float(str(found.pop(k))) for k in ("process_peak_gib", "resident before GiB")
        )
        table.append({"graph": kind, "GiB above triples": peak - before, **found})
    rows = [{"": key, **{str(t["graph"]): t[key] for t in table}} for key in table[0]]
    print_table(rows)
    write_results(NAME, table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2])
    else:
        main()
