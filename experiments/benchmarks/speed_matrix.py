"""Measures the speed of losses, training steps, epochs and ranking by size and precision.

    python -m experiments.benchmarks.speed_matrix [quick|full] [part]

The cells combine 14,541 / 100,000 / 1,000,000 entities; batches of 128 / 512 / 1,024 / 4,096;
float32, bfloat16 and, on a GPU, float16; plain and fused loss (on a GPU also the fused loss without
its kernels: "chunked"); eager and compiled models; and PyKEEN if its scores fit into memory. All
use 200 dimensions, binary cross entropy with smoothing .1, and Adam. `quick`, the default on a CPU,
omits the largest graph and the largest batch. Every cell runs in a new process. A cell that would
not fit into memory is not run, and its row says so. If a part (loss, step, epoch, ranking) is
given, only this part is measured, and the other rows of the last result are kept.

This writes results/speed_matrix.json and .png, and a run of the experiment `clew-benchmarks`.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clew.config.graph_models import ConvEModel
from clew.config.services import TrackingConfig
from clew.link_prediction.losses import fused_one_vs_all
from clew.link_prediction.losses.one_vs_all import OneVsAll, one_vs_all_loss
from clew.link_prediction.losses.score_tiles import Slopes
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.ranking import RankingSettings, rank_triples
from clew.link_prediction.triples import FilterIndex
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.runs.mlflow_store import open_tracker
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import (
    COMMIT,
    RESULTS,
    median,
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)
from experiments.benchmarks.wide_graph import graph_of

NAME = "speed_matrix"
RELATIONS, DIMENSIONS, RANKED, EPOCH_QUERIES = 474, 200, 256, 16_384
SECONDS_PER_CELL, MAXIMUM_CALLS = 2.0, 20
SCORES_HELD = {"plain": 5, "PyKEEN 1.11.1": 3 * DIMENSIONS}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {
    "quick": ((14_541, 100_000), (128, 512, 1024)),
    "full": ((14_541, 100_000, 1_000_000), (128, 512, 1024, 4096)),
}


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    part: str
    variant: str
    precision: str
    entities: int
    batch: int

    def words(self) -> list[str]:
        """Return the cell as command-line arguments."""
        return [str(value) for value in asdict(self).values()]

    @classmethod
    def parse(cls, words: list[str]) -> "Cell":
        """Return the cell for the arguments that `words` returned."""
        return cls(words[0], words[1], words[2], int(words[3]), int(words[4]))

    @property
    def held_gib(self) -> float:
        """Predicted memory of the variant's tensors of size (batch, entity), in GiB."""
        return SCORES_HELD.get(self.variant, 0) * self.batch * self.entities * 4 / 2**30


def device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cells(size: str) -> Iterator[Cell]:
    """Yield all cells of the matrix."""
    entities, batches = SIZES[size]
    on_gpu = device().type == "cuda"
    precisions = list(DTYPES) if on_gpu else ["float32", "bfloat16"]
    losses = ["plain", "fused", *(["chunked"] if on_gpu else [])]
    for number, batch, precision in itertools.product(entities, batches, precisions):
        for variant in losses:
            yield Cell("loss", variant, precision, number, batch)
        yield Cell("step", "fused", precision, number, batch)
        if batch == batches[1]:
            yield Cell("step", "plain", precision, number, batch)
            yield Cell("step", "fused, compiled", precision, number, batch)
            yield Cell("epoch", "fused", precision, number, batch)
    for number in entities:
        yield Cell("ranking", "filtered, both sides", "float32", number, RANKED)
    yield Cell("step", "PyKEEN 1.11.1", "float32", entities[0], batches[0])
    yield Cell("step", "PyKEEN 1.11.1", "float32", entities[0], batches[1])


def precision_of(cell: Cell) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    if cell.precision == "float32":
        return nullcontext()
    return torch.autocast(device().type, dtype=DTYPES[cell.precision])


def loss_of(cell: Cell) -> Callable[..., Tensor]:
    """Return the loss function; `chunked` is the fused loss with PyTorch's operations."""
    if cell.variant == "chunked":
        fused_one_vs_all.slopes_for = (  # type: ignore[attr-defined]
            lambda workspace, exact, operand, gain: Slopes(workspace, operand, gain)
        )
    loss = one_vs_all_loss if cell.variant == "plain" else fused_one_vs_all.fused_one_vs_all_loss
    return partial(loss, settings=OneVsAll(label_smoothing=0.1))


def loss_call(cell: Cell) -> Callable[[], object]:
    """Return a function that computes one loss with its gradients."""
    on = device()
    queries = torch.randn(cell.batch, DIMENSIONS, device=on, requires_grad=True)
    table = (torch.randn(cell.entities, DIMENSIONS, device=on) / 14).requires_grad_()
    bias = torch.zeros(cell.entities, device=on, requires_grad=True)
    row = torch.arange(cell.batch, device=on)
    entity = torch.randint(cell.entities, (cell.batch,), device=on)
    compare = loss_of(cell)

    def call() -> None:
        for leaf in (queries, table, bias):
            leaf.grad = None
        with precision_of(cell):
            loss = compare(queries, table, bias, row, entity)
        (loss / cell.batch).backward()

    return call


def step_call(cell: Cell, batches: int = 1) -> Callable[[], object]:
    """Return a function that runs optimizer steps of ConvE."""
    on, compare = device(), loss_of(cell)
    model = ConvE(cell.entities, RELATIONS, ConvEModel()).to(on)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    row = torch.arange(cell.batch, device=on)
    if "compiled" in cell.variant:
        model.compile()

    def call() -> None:
        for _ in range(batches):
            head, entity = torch.randint(cell.entities, (2, cell.batch), device=on)
            relation = torch.randint(RELATIONS, (cell.batch,), device=on)
            with precision_of(cell):
                queries = model.queries(head, relation)
                table, bias = model.entity.weight, model.entity_bias
                loss = compare(queries, table, bias, row, entity)
            (loss / cell.batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return call


def pykeen_call(cell: Cell) -> Callable[[], object]:
    """Return a function that runs an optimizer step of PyKEEN's ConvE with Adam."""
    from pykeen.models import ConvE as PyKEENConvE
    from pykeen.triples import CoreTriplesFactory

    triples = torch.from_numpy(graph_of(cell.entities).train.astype(np.int64))
    factory = CoreTriplesFactory(
        triples, cell.entities, RELATIONS // 2, create_inverse_triples=True
    )
    model = PyKEENConvE(triples_factory=factory, embedding_dim=DIMENSIONS, random_seed=0)
    model.to(device()).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def call() -> None:
        pairs = triples[torch.randint(len(triples), (cell.batch,)), :2].to(device())
        scores = model.score_t(pairs)
        labels = torch.zeros_like(scores)
        torch.nn.functional.binary_cross_entropy_with_logits(scores, labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def ranking_call(cell: Cell) -> Callable[[], object]:
    """Return a function that ranks the heads and tails of some test triples."""
    graph = graph_of(cell.entities)
    # Without inverse relations, heads would be ranked one candidate after the other.
    model = ConvE(cell.entities, 2 * len(graph.relations), ConvEModel()).to(device())
    known, tests = FilterIndex.from_graph(graph), graph.test[:RANKED]
    return lambda: rank_triples(model, tests, known, settings=RankingSettings())


def call_of(cell: Cell) -> tuple[Callable[[], object], int]:
    """Return the function to time, and the number of queries in a call."""
    if cell.part == "loss":
        return loss_call(cell), cell.batch
    if cell.part == "ranking":
        return ranking_call(cell), 2 * RANKED
    if cell.part == "epoch":
        batches = EPOCH_QUERIES // cell.batch
        return step_call(cell, batches), batches * cell.batch
    return (pykeen_call if "PyKEEN" in cell.variant else step_call)(cell), cell.batch


def child(cell: Cell) -> None:
    """Measure one cell, and report its figures."""
    keep_allocator_pages()
    torch.manual_seed(0)
    on_gpu = device().type == "cuda"

    def timed() -> float:
        start = time.perf_counter()
        call()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    call, queries = call_of(cell)
    before = resident_gib()
    reset_process_peak()
    first = timed()
    second = timed()
    repeats = min(MAXIMUM_CALLS, max(1, int(SECONDS_PER_CELL / second)))
    seconds = median([second, *(timed() for _ in range(repeats))])
    extra = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else process_peak_gib() - before
    report_child(
        {
            "seconds": seconds,
            "first_call_seconds": first,
            "queries_per_second": queries / seconds,
            "extra_gib": extra,
        }
    )


def memory_gib() -> float:
    """Return the memory that is available for a cell."""
    if device().type == "cuda":
        return torch.cuda.mem_get_info()[0] / 2**30
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) / 2**20


def measure(cell: Cell) -> dict[str, object]:
    """Run a cell, and return a row with its figures, or with the reason if there are none."""
    row: dict[str, object] = asdict(cell)
    if cell.held_gib > 0.6 * memory_gib():
        return {**row, "note": f"does not fit: about {cell.held_gib:.0f} GiB of scores"}
    try:
        found = run_child(NAME, "child", *cell.words())
    except RuntimeError as error:
        return {**row, "note": str(error).strip().splitlines()[-1][:200]}
    found.pop("process_peak_gib", None)
    return {**row, **found}


def draw(table: list[dict[str, object]], path: Path) -> None:
    """Draw queries per second by batch, with one panel per part and number of entities."""
    from matplotlib.figure import Figure

    shown = [row for row in table if "seconds" in row and row["part"] in {"loss", "step"}]
    panels = sorted({(str(row["part"]), int(str(row["entities"]))) for row in shown})
    figure = Figure(figsize=(4 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        rows = [row for row in shown if (row["part"], row["entities"]) == panel]
        for key in sorted({(str(row["variant"]), str(row["precision"])) for row in rows}):
            own = [row for row in rows if (row["variant"], row["precision"]) == key]
            axis.plot(
                [row["batch"] for row in own],
                [row["queries_per_second"] for row in own],
                marker="o",
                linestyle="--" if key[0] == "plain" else "-",
                label=", ".join(key),
            )
        axis.set(title=f"{panel[0]}, {panel[1]:,} entities", xlabel="batch", xscale="log")
        axis.set(yscale="log", ylabel="queries/s")
        batches = sorted({int(str(row["batch"])) for row in rows})
        axis.set_xticks(batches, [str(batch) for batch in batches])
        axis.minorticks_off()
        axis.legend(fontsize=6)
    figure.savefig(path, dpi=110)


def earlier_rows() -> dict[Cell, dict[str, object]]:
    """Return the rows of the last result if it is from this commit."""
    path = RESULTS / f"{NAME}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if content.get("commit") != COMMIT:
        return {}
    keys = [field.name for field in fields(Cell)]
    return {Cell(*(row[key] for key in keys)): row for row in content["results"]["cells"]}


def main(size: str, part: str | None = None) -> None:
    """Measure all cells or those of a part; print, draw, write and record the results."""
    kept = earlier_rows() if part else {}
    table = []
    for cell in cells(size):
        if cell in kept and cell.part != part:
            table.append(kept[cell])
            continue
        table.append(measure(cell))
        print(table[-1], flush=True)
    keys = list(dict.fromkeys(key for row in table for key in row))
    print_table([{key: row.get(key, "-") for key in keys} for row in table])
    path = write_results(NAME, {"size": size, "device": str(device()), "cells": table})
    if path is None:
        return
    picture = path.with_suffix(".png")
    draw(table, picture)
    tracking = TrackingConfig(experiment="clew-benchmarks")
    with open_tracker(tracking, kind="benchmark", run_name=f"{NAME} {size}") as tracker:
        for row in table:
            if "seconds" in row:
                words = [str(row[k]) for k in ("part", "variant", "precision", "entities", "batch")]
                key = "benchmark/" + "/".join(words).replace(",", "").replace(" ", "_")
                tracker.metrics({key: float(str(row["queries_per_second"]))}, 0)
        for file in (path, picture):
            tracker.artifact(file)
    print(f"written to {picture}, and recorded as a run")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Cell.parse(sys.argv[2:]))
    else:
        automatic = "full" if device().type == "cuda" else "quick"
        main(*(sys.argv[1:] or [automatic]))
