"""Measures the speed and memory of filtered ranking of heads and tails.

    python -m experiments.benchmarks.ranking_speed [rounds]

An untrained ConvE of 200 dimensions ranks all 20,466 test triples of FB15k-237 in float32. If
`$CLEW_DATA` does not have the data set, the triples are random with its sizes. PyKEEN ranks the
first 128 test triples with its own ConvE and evaluator. Both rank some triples before the timed
part. `extra_gib` is the peak above the memory with model, triples and filter loaded. Processes take
turns.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from clew.config.data import TripleData
from clew.config.graph_models import ConvEModel
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.sources import load_graph
from clew.link_prediction.triples import SPLITS, FilterIndex, KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import (
    median,
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)
from experiments.benchmarks.training_speed import (
    NUM_ENTITIES,
    NUM_RELATIONS,
    NUM_TRIPLES,
    generated_triples,
)

NAME = "ranking_speed"
NUM_VALID, NUM_TEST = 17_535, 20_466
NUM_PYKEEN_TRIPLES = 128
VARIANTS = {
    "clew": RankingSettings(),
    "clew, chunks of 2,048": RankingSettings(chunk_bytes=1),
    "PyKEEN 1.11.1": None,
}


def fb15k237() -> KnowledgeGraph:
    """Return FB15k-237, or a random graph with its sizes."""
    if (Path(os.environ.get("CLEW_DATA", "")) / "FB15k-237").is_dir():
        return load_graph(TripleData(name="FB15k-237"))
    triples = generated_triples(NUM_TRIPLES + NUM_VALID + NUM_TEST)
    parts = np.split(triples, [NUM_TRIPLES, NUM_TRIPLES + NUM_VALID])
    entities = Vocabulary.from_names("entity", [f"e{i}" for i in range(NUM_ENTITIES)])
    relations = Vocabulary.from_names("relation", [f"r{i}" for i in range(NUM_RELATIONS)])
    return KnowledgeGraph("generated", entities, relations, *parts)


def rank(graph: KnowledgeGraph, settings: RankingSettings) -> dict[str, float]:
    """Rank all test triples, and return seconds, number of queries and extra memory."""
    model = ConvE(graph.num_entities, 2 * graph.num_relations, ConvEModel())
    known = FilterIndex.from_graph(graph)
    rank_triples(model, graph.test[:64], known, settings=settings)
    before_gib = resident_gib()
    reset_process_peak()
    start = time.perf_counter()
    result = rank_triples(model, graph.test, known, settings=settings)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "queries": 2 * len(result.relation),
        "extra_gib": process_peak_gib() - before_gib,
    }


def rank_with_pykeen(graph: KnowledgeGraph) -> dict[str, float]:
    """Rank some test triples with PyKEEN's ConvE and evaluator, 32 at a time."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ConvE as PyKEENConvE
    from pykeen.triples import CoreTriplesFactory

    parts = [torch.from_numpy(graph.split(split).astype(np.int64)) for split in SPLITS]
    factory = CoreTriplesFactory(
        parts[0], graph.num_entities, graph.num_relations, create_inverse_triples=True
    )
    model = PyKEENConvE(triples_factory=factory, embedding_dim=200, random_seed=0)

    def evaluate(triples: torch.Tensor) -> None:
        RankBasedEvaluator().evaluate(
            model, triples, batch_size=32, additional_filter_triples=parts[:2], use_tqdm=False
        )

    evaluate(parts[2][:32])
    before_gib = resident_gib()
    reset_process_peak()
    start = time.perf_counter()
    evaluate(parts[2][:NUM_PYKEEN_TRIPLES])
    return {
        "seconds": time.perf_counter() - start,
        "queries": 2 * NUM_PYKEEN_TRIPLES,
        "extra_gib": process_peak_gib() - before_gib,
    }


def child(variant: str) -> None:
    """Measure one variant, and report its figures."""
    keep_allocator_pages()
    torch.manual_seed(0)
    graph, settings = fb15k237(), VARIANTS[variant]
    measured = rank_with_pykeen(graph) if settings is None else rank(graph, settings)
    report_child({"graph": graph.name, **measured})


def main(rounds: int) -> None:
    """Measure all variants in turn in each round, and print and write the medians."""
    measured: dict[str, list[dict]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant, runs in measured.items():
            runs.append(run_child(NAME, "child", variant))
    rows = [
        {
            "variant": variant,
            "graph": runs[0]["graph"],
            "queries": runs[0]["queries"],
            "seconds": median([run["seconds"] for run in runs]),
            "queries_per_second": median([run["queries"] / run["seconds"] for run in runs]),
            "extra_gib": max(run["extra_gib"] for run in runs),
        }
        for variant, runs in measured.items()
    ]
    print_table(rows)
    figures = {
        f"{variant}, {unit}": values
        for variant, runs in measured.items()
        for unit, values in (
            ("queries/s", [run["queries"] / run["seconds"] for run in runs]),
            ("GiB", [run["extra_gib"] for run in runs]),
        )
    }
    results = {"rounds": rounds, "cases": rows}
    write_results(NAME, results, figures=figures, packages=["torch", "pykeen"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 3)
