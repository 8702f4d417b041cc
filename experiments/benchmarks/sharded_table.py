"""Measures training with a sharded entity table: memory, received bytes and seconds per step.

    python -m experiments.benchmarks.sharded_table [entities] [processes,processes,...]

DistMult with 100 dimensions is trained with Adam and binary cross entropy over all entities, with
64 queries per step in total. The processes communicate with gloo on one machine and share its
cores, so only memory and traffic are meaningful. `table_and_state_gib` is the sum of the largest
process's table, bias and optimizer state. `growth_gib` is the peak of the largest process above its
memory before the training.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from clew.config.load import from_mapping
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.base import Tracker
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.training.distributed import joined_world
from clew.training.manifest import Manifest
from clew.training.memory import keep_allocator_pages
from clew.training.optimizer import optimizer_tensors
from clew.training.setup import build_trainer
from experiments.benchmarks.harness import (
    median,
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)

NAME = "sharded_table"
ENTITIES, PROCESSES = 1_000_000, "1,2,4"
RELATIONS, DIMENSIONS, QUERIES, STEPS = 50, 100, 64, 4


def graph_of(entities: int) -> KnowledgeGraph:
    """Return a generated graph with few triples."""
    generator = np.random.default_rng(0)
    columns = [generator.integers(0, n, 5000) for n in (entities, RELATIONS, entities)]
    return KnowledgeGraph(
        "generated",
        Vocabulary("entity", pa.array(np.arange(entities)).cast(pa.string())),
        Vocabulary("relation", pa.array(np.arange(RELATIONS)).cast(pa.string())),
        np.stack(columns, axis=1).astype(np.int32),
        no_triples(),
        no_triples(),
    )


def train(graph: KnowledgeGraph, processes: int, folder: Path) -> dict[str, float]:
    """Train some steps as one of the processes, and return the process's figures."""
    settings = {
        "model.kind": "distmult",
        "model.embedding_dim": DIMENSIONS,
        "training.batch_size": QUERIES // processes,
        "training.max_steps": STEPS,
        "training.device": "cpu",
        "training.shard_entities": processes > 1,
        "evaluation.enabled": False,
    }
    config = from_mapping({"data": {"name": "generated"}}, settings)
    keep_allocator_pages()
    with joined_world() as joined:
        world = joined.sharing_tables() if processes > 1 else joined
        task = LinkPrediction(graph, config)
        before = resident_gib()
        reset_process_peak()
        trainer = build_trainer(
            config,
            task,
            Tracker(),
            device=torch.device("cpu"),
            world=world,
            folder=folder,
            origin=Manifest(0, 0, 0.0, task.kind, {}, "", ""),
        )
        ends = [time.perf_counter()]
        trainer.throughput.step_done = (  # type: ignore[method-assign]
            lambda units: ends.append(time.perf_counter())
        )
        trainer.train()
        growth = process_peak_gib() - before
    state = optimizer_tensors(trainer.optimizer, trainer.model)
    tensors = [*trainer.model.parameters(), *state.values()]
    received = world.exchange.received_bytes if world.exchange else {}
    return {
        "table_and_state_gib": sum(t.numel() * t.element_size() for t in tensors) / 2**30,
        "growth_gib": growth,
        "step_seconds": median(np.diff(ends)[1:].tolist()),
        "received_kib_per_step": sum(received.values()) / STEPS / 1024,
    }


def largest_figures(
    processes: int, measure: Callable[[Path], dict[str, float]]
) -> dict[str, float]:
    """Measure in several processes with one folder, and return the maximum of each figure."""
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(processes):
            if os.fork():
                continue
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": "0"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            figures = measure(Path(folder) / "run")
            (Path(folder) / f"{rank}.json").write_text(json.dumps(figures))
            os._exit(0)
        for _ in range(processes):
            os.wait()
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {key: max(figures[key] for figures in found) for key in found[0]}


def main(entities: int, processes: str) -> None:
    """Measure every number of processes, and print and write the figures."""
    rows = []
    for count in processes.split(","):
        found = run_child(NAME, "child", str(entities), count)
        found.pop("process_peak_gib")  # the peak of the parent process
        rows.append({"processes": int(count), **found})
        share = float(str(found["table_and_state_gib"])) / rows[0]["table_and_state_gib"]
        rows[-1]["share_of_one"] = share
        print_table(rows[-1:])
    figures = {
        f"{row['processes']} processes, {key}": [float(str(value))]
        for row in rows
        for key, value in row.items()
        if key != "processes"
    }
    write_results(NAME, {"entities": entities, "dimensions": DIMENSIONS}, figures=figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        graph, count = graph_of(int(sys.argv[2])), int(sys.argv[3])
        report_child(largest_figures(count, lambda folder: train(graph, count, folder)))
    else:
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else ENTITIES,
            sys.argv[2] if len(sys.argv) > 2 else PROCESSES,
        )
