"""Measures packed triples that are read from the disk: time, memory and mixing of blocks.

    python -m experiments.benchmarks.packed_triples [millions of triples ...]

A generated graph (a million entities, 200 relations, entities drawn by their squared rank) is
written as text, packed, opened and read in batches of 1,024, shuffled in blocks of 4,096. Each step
runs in a new process. Its memory is the peak of its own (anonymous) pages, because pages of mapped
files belong to the system, which reclaims them when memory is short. Reading the file as text is
measured too, for up to 10 million triples.

For several block sizes, the benchmark then measures how well the shuffle mixes. `variance` is the
variance of a batch's mean relative to a full shuffle, for a quantity that is constant within each
block. `bound` is its upper bound, which follows from the order's construction. `distance` is the
largest distance between the distribution of a place in the order and the uniform one, over epochs.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from clew.config.data import TripleData
from clew.config.training import TrainingConfig
from clew.link_prediction.sources import load_graph, pack_graph, read_packed
from clew.link_prediction.triple_batches import OneVsAllExamples
from clew.link_prediction.triple_files import GraphFiles
from clew.runs.hardware import GIB
from clew.training.loaders import (
    BLOCKS_TOGETHER,
    BatchLoader,
    epoch_microbatches,
    order_pieces,
)
from experiments.benchmarks.harness import print_table, report_child, run_child, write_results

NAME = "packed_triples"
ENTITIES, RELATIONS, BATCH, BLOCK = 1_000_000, 200, 1024, 4096
ROWS, BATCHES, PLAIN_MILLIONS = 1_000_000, 2000, 10
MIXED, MIXED_EPOCHS = 2**21, 8


class OwnPeak:
    """Measures the peak of this process's own pages inside a `with` block, in GiB."""

    def __enter__(self) -> "OwnPeak":
        self.gib, self._ended = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(line for line in lines if line.startswith("RssAnon:"))
            self.gib = max(self.gib, int(own.split()[1]) * 1024 / GIB)


def write_text(path: Path, num_triples: int) -> None:
    """Write random triples in which the first entities are more frequent."""
    generator = np.random.default_rng(0)
    with path.open("w") as file:
        for start in range(0, num_triples, ROWS):
            rows = min(ROWS, num_triples - start)
            head, tail = ((generator.random((2, rows)) ** 2) * ENTITIES).astype(int)
            relation = generator.integers(0, RELATIONS, rows)
            lines = zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
            file.writelines(f"entity/{h}\trelation/{r}\tentity/{t}\n" for h, r, t in lines)


def step(name: str, folder: Path) -> dict[str, float]:
    """Run one step, and return its seconds, its memory and the memory of the imports alone."""
    with OwnPeak() as imports:
        time.sleep(0.1)
    began = time.perf_counter()
    with OwnPeak() as peak:
        result = {"pack": _pack, "open": _open, "batches": _batches, "text": _text}[name](folder)
    return {
        "seconds": time.perf_counter() - began,
        "own_gib": peak.gib,
        "imports_gib": imports.gib,
    } | result


def _pack(folder: Path) -> dict[str, float]:
    pack_graph("generated", GraphFiles(folder / "train.txt"), folder / "packed")
    return {"disk_gib": (folder / "packed").stat().st_size / GIB}


def _open(folder: Path) -> dict[str, float]:
    return {"triples": len(read_packed(folder / "packed").train)}


def _batches(folder: Path) -> dict[str, float]:
    graph = read_packed(folder / "packed")
    examples = OneVsAllExamples(graph.train, graph.num_relations, inverse_relations=True)
    loader = BatchLoader(examples, TrainingConfig(batch_size=BATCH, shuffle_block=BLOCK))
    began = time.perf_counter()
    for number, _ in enumerate(loader.epoch(0), start=1):
        if number == BATCHES:
            break
    return {"examples_per_second": number * BATCH / (time.perf_counter() - began)}


def _text(folder: Path) -> dict[str, float]:
    return {"triples": len(load_graph(TripleData(train=str(folder / "train.txt"))).train)}


def mixing(block: int) -> dict[str, float]:
    """Return how far the batches and places of a shuffle in blocks are from a full shuffle."""
    generator = np.random.default_rng(0)
    quantity = np.repeat(generator.standard_normal(-(-MIXED // block)), block)[:MIXED]
    quantity = (quantity - quantity.mean()) / quantity.std()
    settings = TrainingConfig(batch_size=BATCH, shuffle_block=block)
    means, places = [], np.zeros(100)
    is_first = np.arange(MIXED) < MIXED // 100  # the first hundredth of the file
    for epoch in range(MIXED_EPOCHS):
        batches = epoch_microbatches(MIXED, settings, epoch)
        means += [quantity[batch].mean() for batch in batches]
        order = np.concatenate(list(order_pieces(MIXED, seed=0, epoch=epoch, block=block)))
        found = np.flatnonzero(is_first[order])
        places += np.bincount(found * 100 // MIXED, minlength=100) / len(found) / MIXED_EPOCHS
    first = np.concatenate(list(order_pieces(MIXED, seed=0, epoch=0, block=block)))
    return {
        "block": block,
        "variance": float(np.var(means)) * BATCH,
        "bound": 1 + (BATCH - 1) / BLOCKS_TOGETHER,
        "distance": float(np.abs(np.cumsum(places) - np.linspace(0.01, 1, 100)).max()),
        "correlation": float(np.corrcoef(first, np.arange(MIXED))[0, 1]),
    }


def main(millions: list[int]) -> None:
    """Measure each size and then the mixing, and print and write the results."""
    rows = []
    for count in millions:
        with tempfile.TemporaryDirectory() as name:
            write_text(Path(name) / "train.txt", count * 1_000_000)
            steps = ["pack", "open", "batches", *(["text"] if count <= PLAIN_MILLIONS else [])]
            for step_name in steps:
                found = run_child(NAME, "step", step_name, name)
                rows.append({"million_triples": count, "step": step_name} | found)
                print(rows[-1], flush=True)
    mixed = [run_child(NAME, "mixing", str(block)) for block in (64, 512, 4096)]
    print_table(mixed)
    write_results(NAME, {"steps": rows, "mixing": mixed})


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        report_child(step(sys.argv[2], Path(sys.argv[3])))
    elif sys.argv[1:2] == ["mixing"]:
        report_child(mixing(int(sys.argv[2])))
    else:
        main([int(text) for text in sys.argv[1:]] or [10, 50])
