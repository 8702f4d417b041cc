"""Measures `clew tracin` on FB15k-237: all training triples on 100 test triples.

    CLEW_DATA=... python -m experiments.benchmarks.influence_whole_graph [tests]

Trains ConvE (200 dimensions) for 100 steps. Then explains test triples by all 272,115 training
triples in both directions, with that one checkpoint and ten proponents and opponents each. Finally
explains 11 of the test triples and writes every score as JSON, CSV and Parquet.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from clew.config.load import from_mapping
from clew.link_prediction.sources import load_graph
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.training.memory import keep_allocator_pages
from clew.workflows.explaining.tracin import tracin
from clew.workflows.train import train
from experiments.benchmarks.harness import print_table, resident_gib, write_results

NAME = "influence_whole_graph"
OVERRIDES = {
    "loss.kind": "one_vs_all",
    "training.max_steps": 100,
    "training.batch_size": 512,
    "schedule.kind": "constant",
    "evaluation.enabled": False,
}
WRITTEN_TESTS = 11
"""These tests have three million scores, like 100 tests on 30,000 triples."""
CASES: tuple[tuple[str, int, dict[str, object]], ...] = (
    ("float32, ten strongest", 0, {"influence.top_k": 10}),
    ("bfloat16, ten strongest", 0, {"influence.top_k": 10, "influence.use_mixed_precision": True}),
    ("float32, every score written", WRITTEN_TESTS, {"influence.top_k": 0}),
)


def main(tests: int) -> None:
    """Train, explain all cases, and print and write the results."""
    keep_allocator_pages()
    table: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        config = from_mapping({"data": {"name": "FB15k-237"}}, OVERRIDES)
        graph = load_graph(config.data)  # type: ignore[arg-type]
        run = train(config)
        lines = [
            f"{graph.entities.name(h)}\t{graph.relations.name(r)}\t{graph.entities.name(t)}\n"
            for h, r, t in graph.test[:tests].tolist()
        ]
        path = Path(folder) / "tests.txt"
        for name, fewer, settings in CASES:
            path.write_text("".join(lines[: fewer or None]))
            before = resident_gib()
            reset_process_peak()
            start = time.perf_counter()
            result = tracin(run.run_id or "", str(path), settings)
            seconds = time.perf_counter() - start
            table.append(
                {
                    "case": name,
                    "tests": len(result.report.tests),
                    "training triples": len(graph.train),
                    "seconds of computing": result.report.seconds,
                    "seconds of the command": seconds,
                    "GiB above the process": process_peak_gib() - before,
                }
            )
            print_table(table[-1:])
    print_table(table)
    write_results(NAME, table)


if __name__ == "__main__":
    if "CLEW_DATA" not in os.environ:
        print(f"{NAME}: skipped, needs the data set FB15k-237 under $CLEW_DATA")
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
