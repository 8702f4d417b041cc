"""Measures training steps with sampled entities on a graph that is too large for all of them.

    python -m experiments.benchmarks.sampled_graph [entities] [triples] [steps]

ComplEx with 100 dimensions is trained on batches of 4,096 queries in both directions, with one
sample of 4,096 entities per batch, softmax cross entropy and row-wise Adagrad. Samples are uniform
or by degree. The graph is generated, and its entities have uneven frequencies. Each case runs in a
new process, whose peak includes everything: triples, order of the examples, table, optimizer state,
and the checkpoint at the end. The loss over all entities is measured too if the graph has at most
1,000,000 entities.
"""

import sys

import numpy as np
import pyarrow as pa

from clew.config.load import from_mapping
from clew.link_prediction.triples import KnowledgeGraph, Triples, no_triples
from clew.link_prediction.vocabulary import Vocabulary
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

NAME = "sampled_graph"
ENTITIES, TRIPLES, STEPS = 200_000, 2_000_000, 60
RELATIONS, DIMENSIONS, BATCH, NEGATIVES = 1000, 100, 4096, 4096
MOST_ENTITIES_FOR_ALL = 1_000_000
BLOCK = 5_000_000
CASES: dict[str, dict[str, object]] = {
    "uniform": {"loss.negatives": NEGATIVES},
    "degree": {"loss.negatives": NEGATIVES, "loss.negative_sampling": "degree"},
    "all entities": {},
}


def names_of(count: int) -> pa.StringArray:
    """Return numbers as names, without creating a Python object for each."""
    return pa.array(np.arange(count)).cast(pa.string())


def triples_of(entities: int, count: int) -> Triples:
    """Return triples with uneven entity frequencies, generated block by block."""
    generator, triples = np.random.default_rng(0), np.empty((count, 3), np.int32)
    for start in range(0, count, BLOCK):
        block = triples[start : start + BLOCK]
        for column in (0, 2):
            block[:, column] = entities * generator.random(len(block)) ** 2
        block[:, 1] = generator.integers(0, RELATIONS, len(block))
    return triples


def graph_of(entities: int, count: int) -> KnowledgeGraph:
    """Return a generated graph without validation and test triples."""
    return KnowledgeGraph(
        "generated",
        Vocabulary("entity", names_of(entities)),
        Vocabulary("relation", names_of(RELATIONS)),
        triples_of(entities, count),
        no_triples(),
        no_triples(),
    )


def child(entities: int, triples: int, steps: int, case: str) -> None:
    """Train some steps, and report seconds, losses and memory."""
    keep_allocator_pages()
    settings = {
        "model.kind": "complex",
        "model.embedding_dim": DIMENSIONS,
        "loss.function": "softmax_cross_entropy",
        "loss.label_smoothing": 0.0,
        "optimizer.kind": "adagrad",
        "optimizer.row_wise": True,
        "optimizer.learning_rate": 0.1,
        "training.batch_size": BATCH,
        "training.max_steps": steps if "all" not in case else min(steps, 6),
        "training.log_every_steps": 1,
        "training.device": "cpu",
        "evaluation.enabled": False,
    }
    config = from_mapping({"data": {"name": "generated"}}, settings | CASES[case])
    graph = graph_of(entities, triples)
    data_gib = resident_gib()
    trainer, seconds = timed_steps(graph, config)
    losses = [e.value for e in trainer.history.entries if e.key == "train/loss"]
    step = median(seconds[2:])
    report_child(
        {
            "step_seconds": step,
            "queries_per_second": BATCH / step,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "data_gib": data_gib,
        }
    )


def main(entities: int, triples: int, steps: int) -> None:
    """Measure all cases, and print and write the results."""
    rows = []
    for case in CASES:
        if case == "all entities" and entities > MOST_ENTITIES_FOR_ALL:
            continue
        found = run_child(NAME, "child", str(entities), str(triples), str(steps), case)
        rows.append({"case": case, **found})
        print_table(rows[-1:])
    figures = {
        f"{row['case']}, {key}": [float(str(value))]
        for row in rows
        for key, value in row.items()
        if key != "case"
    }
    sizes = {"entities": entities, "triples": triples, "steps": steps, "dimensions": DIMENSIONS}
    write_results(NAME, {**sizes, "batch": BATCH, "negatives": NEGATIVES}, figures=figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*(given + [ENTITIES, TRIPLES, STEPS][len(given) :]))
