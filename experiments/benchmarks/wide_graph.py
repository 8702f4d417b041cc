"""Measures loss, training steps and ranking for 1,000,000 entities on a small machine.

    python -m experiments.benchmarks.wide_graph [entities] [rounds]

The settings are 200 dimensions, batches of 1,024, float32 and binary cross entropy over all
entities. The loss is compared with the three matrix products that it needs (scores, gradient of the
queries, gradient of the table), computed in the same chunks. The extra memory of the loss is its
peak beyond its inputs and their gradients. Training, by the trainer, and ranking are measured once;
the loss and its products in every round. Every case runs in a new process.
"""

import os
import sys
import time

import numpy as np
import torch

from clew.config.graph_models import ConvEModel
from clew.config.load import from_mapping
from clew.layers.products import product
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import OneVsAll, one_vs_all_loss
from clew.link_prediction.losses.score_tiles import chunk_size
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.triples import FilterIndex, KnowledgeGraph, no_triples
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
from experiments.benchmarks.steps import timed_steps

NAME = "wide_graph"
ENTITIES, RELATIONS, DIMENSIONS, BATCH = 1_000_000, 200, 200, 1024
CHUNK_BYTES = 64 * 1024**2
STEPS, RANKED, ROUNDS = 4, 1000, 3


def timed_alone(function: object, leaves: list[torch.Tensor]) -> tuple[float, float]:
    """Return the seconds of the second call, and its peak beyond inputs and their gradients."""
    assert callable(function)
    for leaf in leaves:
        leaf.grad = torch.ones_like(leaf)  # pages of zeros would not be resident
    before = resident_gib()
    for leaf in leaves:
        leaf.grad = None
    function()
    reset_process_peak()
    for leaf in leaves:
        leaf.grad = None
    start = time.perf_counter()
    function()
    return time.perf_counter() - start, process_peak_gib() - before


def loss_alone(entities: int, implementation: str) -> dict[str, float]:
    """Return seconds and extra memory of one loss with its gradients, or of its products."""
    torch.manual_seed(0)
    queries = torch.randn(BATCH, DIMENSIONS, requires_grad=True)
    # A quotient of its own would leave a block as large as the table behind, used or not.
    table = torch.randn(entities, DIMENSIONS).div_(14).requires_grad_()
    bias = torch.zeros(entities, requires_grad=True)
    row, entity = torch.arange(BATCH), torch.randint(entities, (BATCH,))
    size = chunk_size(BATCH, entities, chunk_bytes=CHUNK_BYTES, device=table.device)

    @torch.no_grad()
    def products() -> None:
        gradient = torch.empty_like(table)
        queries_gradient = torch.zeros_like(queries)
        for start in range(0, entities, size):
            rows = table[start : start + size]
            scores = product(queries, rows.T)
            queries_gradient += product(scores, rows)
            gradient[start : start + size] = product(scores.T, queries)
        table.grad, queries.grad = gradient, queries_gradient

    def loss() -> None:
        settings = OneVsAll(label_smoothing=0.1, chunk_bytes=CHUNK_BYTES)
        computed = one_vs_all_loss if implementation == "plain" else fused_one_vs_all_loss
        computed(queries, table, bias, row, entity, settings=settings).backward()

    seconds, extra = timed_alone(
        products if implementation == "bare products" else loss, [queries, table, bias]
    )
    return {"seconds": seconds, "extra_gib": extra}


def graph_of(entities: int, num_triples: int = 50_000) -> KnowledgeGraph:
    """Return a generated graph with uneven entity frequencies."""
    generator = np.random.default_rng(0)
    ends = (entities * generator.random((2, num_triples)) ** 2).astype(np.int32)
    relation = generator.integers(0, RELATIONS, num_triples).astype(np.int32)
    triples = np.stack([ends[0], relation, ends[1]], axis=1)
    names = Vocabulary.from_names("entity", [f"e{i}" for i in range(entities)])
    relations = Vocabulary.from_names("relation", [f"r{i}" for i in range(RELATIONS)])
    test = triples[:RANKED].copy()
    return KnowledgeGraph("generated", names, relations, triples, no_triples(), test)


def training(entities: int, optimizer: str) -> dict[str, float]:
    """Return the seconds per step, and the whole process's peak with data and optimizer."""
    kind, _, row_wise = optimizer.partition(" ")
    settings = {
        "training.batch_size": BATCH,
        "training.max_steps": STEPS,
        "training.device": "cpu",
        "optimizer.kind": kind,
        "evaluation.enabled": False,
    }
    if row_wise:
        settings["optimizer.row_wise"] = True
    config = from_mapping({"data": {"name": "generated"}}, settings)
    _, seconds = timed_steps(graph_of(entities), config)
    step = median(seconds[2:])
    return {"seconds": step, "queries_per_second": BATCH / step, "process_gib": process_peak_gib()}


def ranking(entities: int) -> dict[str, float]:
    """Return the seconds and extra memory of ranking heads and tails of some test triples."""
    torch.manual_seed(0)
    graph = graph_of(entities)
    model, known = ConvE(entities, 2 * RELATIONS, ConvEModel()), FilterIndex.from_graph(graph)
    rank_triples(model, graph.test[:8], known, settings=RankingSettings())
    before = resident_gib()
    reset_process_peak()
    start = time.perf_counter()
    rank_triples(model, graph.test, known, settings=RankingSettings())
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "queries_per_second": 2 * RANKED / seconds,
        "extra_gib": process_peak_gib() - before,
    }


def child(entities: int, part: str, variant: str) -> None:
    """Measure one case, and report its figures."""
    keep_allocator_pages()
    if part == "loss":
        report_child(dict(loss_alone(entities, variant)))
    elif part == "training":
        report_child(dict(training(entities, variant)))
    else:
        report_child(dict(ranking(entities)))


CASES = [
    ("loss", "bare products"),
    ("loss", "fused"),
    ("training", "adam"),
    ("training", "adagrad"),
    ("training", "adagrad row-wise"),
    ("ranking", "both sides, filtered"),
]


def main(entities: int, rounds: int) -> None:
    """Measure all cases in turn in each round, and print and write the medians."""
    measured: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in CASES}
    for turn in range(rounds):
        for case, runs in measured.items():
            if turn == 0 or case[0] == "loss":
                found = run_child(NAME, "child", str(entities), *case)
                runs.append({key: float(str(value)) for key, value in found.items()})
                print_table([{"part": case[0], "variant": case[1], **runs[-1]}])
    figures = {
        f"{part}, {variant}, {key}": [run[key] for run in runs]
        for (part, variant), runs in measured.items()
        for key in runs[0]
        if key != "process_peak_gib"
    }
    share = median(figures["loss, bare products, seconds"]) / median(
        figures["loss, fused, seconds"]
    )
    print(f"the fused loss runs at {share:.0%} of the speed of its three products")
    results = {"entities": entities, "batch": BATCH, "loss_speed_of_bare": share}
    write_results(NAME, {**results, "load_average": os.getloadavg()}, figures=figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main(*([int(text) for text in sys.argv[1:]] + [ENTITIES, ROUNDS][len(sys.argv) - 1 :]))
