"""Measures how seconds grow with size: the exponent of a power law for each part and axis.

    python -m experiments.benchmarks.growth [curve ...]

Each curve has four sizes, each twice the one before (of runs: ten times), in a new process in each
round. The exponent of a round is the slope of the logarithm of the seconds over the logarithm of
the size: 1 is in proportion, 2 quadratic. `last step` is the slope between the two largest sizes,
where fixed costs count least. Sizes that a curve does not name are those of FB15k-237.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from clew.config.graph_models import ConvEModel
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.prediction import Query
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.subject import load_predictor
from clew.link_prediction.triples import FilterIndex
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks import influence_speed, load_triples, serving_speed, wide_graph
from experiments.benchmarks.harness import (
    interleaved_seconds,
    median,
    print_table,
    report_child,
    run_child,
    write_results,
)
from experiments.benchmarks.steps import timed_steps

NAME = "growth"
ROUNDS = 3
ENTITIES = influence_speed.ENTITIES
Measured = dict[int, float]
"""The seconds of each size."""


def training(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of a step of ConvE, batch 512, over so many entities."""
    config = configured("training.max_steps", 8)
    graphs = {size: wide_graph.graph_of(size) for size in sizes}
    return {size: median(timed_steps(graph, config)[1][3:]) for size, graph in graphs.items()}


def epoch(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of an epoch of so many triples of the same 5,000 entities."""
    config = configured("training.num_epochs", 1)
    graphs = {size: wide_graph.graph_of(5_000, size) for size in sizes}
    return {size: sum(timed_steps(graph, config)[1]) for size, graph in graphs.items()}


def configured(limit: str, value: int) -> RunConfig:
    """Return the configuration of a training run with batches of 512 that ends at a limit."""
    settings = {
        limit: value,
        "training.batch_size": 512,
        "training.device": "cpu",
        "evaluation.enabled": False,
    }
    return from_mapping({"data": {"name": "generated"}}, settings)


def loss(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of the fused loss with its gradients over so many entities."""
    return {size: wide_graph.loss_alone(size, "fused")["seconds"] for size in sizes}


def ranking_entities(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of ranking 1,000 triples' heads and tails among so many entities."""
    return {size: wide_graph.ranking(size)["seconds"] for size in sizes}


def ranking_triples(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of ranking the heads and tails of so many triples."""
    graph = wide_graph.graph_of(ENTITIES)
    model = ConvE(ENTITIES, 2 * graph.num_relations, ConvEModel())
    known = FilterIndex.from_graph(graph)

    def rank(size: int) -> None:
        rank_triples(model, graph.train[:size], known, settings=RankingSettings())

    rank(64)
    return timed(rank, sizes)


def tracing(
    *, rows: int = 16_000, tests: int = 50, num_checkpoints: int = 1, entities: int = ENTITIES
) -> float:
    """Return the seconds of TracIn with every parameter, without reading and loading."""
    train = influence_speed.triples(rows, 1, entities)
    test = influence_speed.triples(tests, 2, entities)
    return influence_speed.run_clew(
        train, test, entities=entities, num_checkpoints=num_checkpoints
    )[0]


def tracing_along(axis: str) -> Callable[[tuple[int, ...]], Measured]:
    """Return the function that measures `tracing` with several sizes of one axis."""
    return lambda sizes: {size: tracing(**{axis: size}) for size in sizes}


def reading(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of reading so many triples of names, of a tenth as many entities."""
    found = {}
    for size in sizes:
        path = Path(f"{size} triples")
        if not path.is_dir():
            path.mkdir()
            load_triples.generate(path, size, size // 10)
        start = time.perf_counter()
        load_triples.load_with_clew(path / "names.txt")
        found[size] = time.perf_counter() - start
    return found


def answers(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of a served model's answers to so many questions in one request."""
    with tempfile.TemporaryDirectory() as folder:
        predictor = load_predictor(serving_speed.make_model(Path(folder)))
    questions = [Query(**row) for row in serving_speed.random_rows(max(sizes), random.Random(0))]
    return timed(lambda size: predictor.predict(questions[:size]), sizes)


def table_of_runs(sizes: tuple[int, ...]) -> Measured:
    """Return the seconds of what the dashboard reads for a search among so many runs."""
    from clew.runs.reading import search
    from tests.recorded import record
    from tests.ui.seed_many import large_store

    query = search.RunQuery(text="seed=1 mrr>0.1")

    def page(_: int) -> None:
        search.known_keys()
        search.search_runs(query)
        search.count_runs(query)

    recorded = record(Path("recorded").resolve(), num_epochs=2)
    found: Measured = {}
    for size in sizes:
        folder = Path(f"{size} runs").resolve()
        if not folder.is_dir():
            large_store(recorded, folder, size)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        found |= timed(page, (size,))
    return found


def timed(function: Callable[[int], object], sizes: tuple[int, ...]) -> Measured:
    """Return the median seconds of three calls with each size, in turns."""
    calls = {str(size): partial(function, size) for size in sizes}
    return {int(size): median(s) for size, s in interleaved_seconds(calls, repeats=3).items()}


@dataclass(frozen=True)
class Curve:
    """What grows, along which axis, measured with which function."""

    measure: Callable[[tuple[int, ...]], Measured]
    sizes: tuple[int, ...]


def doubled(first: int, times: int = 4) -> tuple[int, ...]:
    """Return sizes, each twice the one before."""
    return tuple(first * 2**i for i in range(times))


# Part and axis of each curve.
CURVES = {
    "a training step, entities": Curve(training, doubled(10_000)),
    "an epoch, triples": Curve(epoch, doubled(10_000)),
    "the loss, entities": Curve(loss, doubled(25_000)),
    "ranking, entities": Curve(ranking_entities, doubled(10_000)),
    "ranking, triples": Curve(ranking_triples, doubled(1_000)),
    "TracIn, training rows": Curve(tracing_along("rows"), doubled(8_000)),
    "TracIn, tests": Curve(tracing_along("tests"), doubled(25)),
    "TracIn, checkpoints": Curve(tracing_along("num_checkpoints"), doubled(1)),
    "TracIn, entities": Curve(tracing_along("entities"), doubled(10_000)),
    "reading, triples": Curve(reading, doubled(250_000)),
    "answers, questions in a request": Curve(answers, doubled(32)),
    "the table of runs, runs": Curve(table_of_runs, (300, 3_000, 30_000)),
}


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Return the exponent of the power law through the points, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def child(name: str, folder: str) -> None:
    """Measure a curve once, in a folder that all rounds share, and report its seconds."""
    keep_allocator_pages()
    os.chdir(folder)
    curve = CURVES[name]
    report_child({"seconds": curve.measure(curve.sizes)})


def main(names: list[str]) -> None:
    """Measure all curves in turn in each round, and print and write exponents and medians."""
    rounds: dict[str, list[list[float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="clew-growth-") as folder:
        for _ in range(ROUNDS):
            for name, found in rounds.items():
                measured = run_child(NAME, "child", name, folder)["seconds"]
                found.append([measured[str(size)] for size in CURVES[name].sizes])
    exponents, rows = {}, []
    for name, found in rounds.items():
        part, axis = name.split(", ")
        sizes = list(CURVES[name].sizes)
        exponents[name] = [slope(sizes, seconds) for seconds in found]
        last = [slope(sizes[-2:], seconds[-2:]) for seconds in found]
        rows.append(
            {
                "curve": part,
                "axis": axis,
                "exponent": median(exponents[name]),
                "last step": median(last),
                "sizes": sizes,
                "seconds": [median(column) for column in zip(*found, strict=True)],
            }
        )
    print_table(rows)
    write_results(NAME, {"curves": rows}, figures=exponents)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1:] or list(CURVES))
