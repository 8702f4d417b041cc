"""Measures predictions and explanations with a sharded entity table: memory, traffic and time.

    python -m experiments.benchmarks.sharded_answers [entities] [processes,processes,...]

The model is an untrained DistMult with 100 dimensions. Its whole table is in one file, and each
process reads its own rows. Together, the processes find the best ten answers to 64 queries, and raw
TracIn of 500 training triples (both directions) on one test triple, over all entities. They
communicate with gloo on one machine and share its cores, so only memory and traffic are meaningful.
`*_growth_gib` is the peak of the largest process above its memory before it read the model.
"""

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.model_folder import load_graph_model
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.training.checkpoints import write_checkpoint
from clew.training.distributed import joined_world
from clew.training.manifest import Manifest, read_record
from clew.training.memory import keep_allocator_pages
from clew.training.sharding.table import sharded_tables
from experiments.benchmarks.harness import (
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)
from experiments.benchmarks.sharded_table import DIMENSIONS, graph_of, largest_figures

NAME = "sharded_answers"
ENTITIES, PROCESSES = 1_000_000, "1,2,4"
QUERIES, TRAIN, BUDGET_MIB = 64, 500, 512


def few(entities: int) -> KnowledgeGraph:
    """Return a generated graph with few training triples; the first one will be explained."""
    graph = graph_of(entities)
    return replace(graph, train=graph.train[:TRAIN])


def configuration() -> RunConfig:
    """Return the configuration of the model and of its explanation."""
    settings = {
        "model.kind": "distmult",
        "model.embedding_dim": DIMENSIONS,
        "influence.score": "raw",
        "influence.memory_budget_mib": BUDGET_MIB,
    }
    return from_mapping({"data": {"name": "generated"}}, settings)


def write(graph: KnowledgeGraph, folder: Path) -> None:
    """Write a checkpoint of an untrained model, in one process."""
    config = configuration()
    task = LinkPrediction(graph, config)
    content = config.model_dump(mode="json")
    write_checkpoint(folder, task.build_model(), Manifest(1, 1, 1.0, task.kind, content, "", ""))


def measure(graph: KnowledgeGraph, model: Path) -> dict[str, float]:
    """Answer and explain as one of the processes, and return the process's figures."""
    figures: dict[str, float] = {}
    with joined_world() as joined:
        world = joined.sharing_tables() if joined.size > 1 else joined
        with sharded_tables(world.exchange):
            for name, work in (("predict", answer), ("trace", explain)):
                before, began = resident_gib(), time.perf_counter()
                reset_process_peak()
                if world.exchange is not None:
                    world.exchange.received_bytes.clear()
                figures["table_gib"] = work(graph, model)
                received = world.exchange.received_bytes if world.exchange else {}
                figures[f"{name}_growth_gib"] = process_peak_gib() - before
                figures[f"{name}_seconds"] = time.perf_counter() - began
                figures[f"{name}_received_kib"] = sum(received.values()) / 1024
    return figures


def answer(graph: KnowledgeGraph, folder: Path) -> float:
    """Answer queries, and return the size of the process's table in GiB."""
    model = load_graph_model(folder, graph.num_entities, graph.num_relations)
    predictor = Predictor(model, graph.entities, graph.relations)
    queries = [Query("0", head=str(entity)) for entity in range(QUERIES)]
    assert len(predictor.predict(queries)) == QUERIES
    return model.entity.weight.numel() * model.entity.weight.element_size() / 2**30


def explain(graph: KnowledgeGraph, folder: Path) -> float:
    """Explain a triple, and return the size of the process's table in GiB."""
    keep_allocator_pages()  # as `clew tracin` does
    config = configuration()
    tracer = Tracer(
        LinkPrediction(graph, config),
        config,
        settings=config.influence,
        checkpoints=[read_record(folder)],
        device=torch.device("cpu"),
    )
    tracer.explain(graph.train[:1])
    weight = tracer.models[0].entity.weight
    return weight.numel() * weight.element_size() / 2**30


def main(entities: int, processes: str) -> None:
    """Measure every number of processes, and print and write the figures."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model")
        run_child(NAME, "write", str(entities), model)
        for count in processes.split(","):
            found = run_child(NAME, "child", str(entities), model, count)
            found.pop("process_peak_gib")  # the peak of the parent process
            rows.append({"processes": int(count), **found})
            print_table(rows[-1:])
    figures = {
        f"{row['processes']} processes, {key}": [float(str(value))]
        for row in rows
        for key, value in row.items()
        if key != "processes"
    }
    write_results(NAME, {"entities": entities, "dimensions": DIMENSIONS}, figures=figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(few(int(sys.argv[2])), Path(sys.argv[3]))
        report_child({})
    elif sys.argv[1:2] == ["child"]:
        graph, model = few(int(sys.argv[2])), Path(sys.argv[3])
        graph.entities.id_of_text("0")  # build the index of names once, before the forks
        report_child(largest_figures(int(sys.argv[4]), lambda _: measure(graph, model)))
    else:
        main(
            int(sys.argv[1]) if len(sys.argv) > 1 else ENTITIES,
            sys.argv[2] if len(sys.argv) > 2 else PROCESSES,
        )
