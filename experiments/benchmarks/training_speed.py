"""Measures the training speed and memory of ConvE with FB15k-237's sizes.

    python -m experiments.benchmarks.training_speed [rounds]

The model has 14,541 entities, 474 relations with inverses and 200 dimensions. Training uses batches
of 512 (PyKEEN: 128) and binary cross entropy with label smoothing 0.1 over all entities. Ids are
drawn at random, with head and tail frequencies as uneven as in a real graph, so no data set is
needed. A step includes everything between two batches: indexing and preparing a batch, forward
pass, loss, backward pass and optimizer. `extra_gib` is the peak of a process above that of an
interpreter with torch loaded. Processes take turns. bfloat16 is left out on processors without
instructions for it, where these cases take half an hour.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from clew.config.graph_models import ConvEModel
from clew.config.load import from_mapping
from clew.config.training import TrainingConfig
from clew.layers.products import product
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import OneVsAll, one_vs_all_loss
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.triple_batches import OneVsAllExamples
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.mlflow_store import open_tracker
from clew.training.loaders import BatchLoader
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import (
    median,
    print_table,
    processor,
    report_child,
    run_child,
    write_results,
)
from experiments.benchmarks.steps import timed_steps

NAME = "training_speed"
NUM_ENTITIES, NUM_RELATIONS, NUM_TRIPLES = 14_541, 237, 272_115
WARM_UP_STEPS = 6

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Case:
    """One way to train, measured in a new process."""

    variant: str
    precision: Precision
    batch_size: int
    steps: int
    keep_pages: bool

    def arguments(self) -> list[str]:
        """Return the case as command-line arguments."""
        return [
            self.variant,
            self.precision,
            str(self.batch_size),
            str(self.steps),
            str(int(self.keep_pages)),
        ]

    @classmethod
    def parse(cls, words: list[str]) -> "Case":
        """Return the case for the arguments that `arguments` returned."""
        variant, precision, batch_size, steps, keep = words
        assert precision in ("float32", "bfloat16")
        known: Precision = "float32" if precision == "float32" else "bfloat16"
        return cls(variant, known, int(batch_size), int(steps), bool(int(keep)))

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast("cpu", dtype=torch.bfloat16)


def generated_triples(num_triples: int = NUM_TRIPLES) -> np.ndarray:
    """Draw int32 triples `(triple, 3)`: few entities are frequent, and most are rare."""
    generator = np.random.default_rng(0)
    ends = (NUM_ENTITIES * generator.random((2, num_triples)) ** 2).astype(np.int32)
    relations = (NUM_RELATIONS * generator.random(num_triples) ** 2).astype(np.int32)
    return np.stack([ends[0], relations, ends[1]], axis=1)


def bare_loop(case: Case) -> list[float]:
    """Train ConvE in a plain loop without the trainer, and return the seconds of each step."""
    loss = one_vs_all_loss if "plain" in case.variant else fused_one_vs_all_loss
    settings = OneVsAll(label_smoothing=0.1)
    examples = OneVsAllExamples(generated_triples(), NUM_RELATIONS, inverse_relations=True)
    model = ConvE(NUM_ENTITIES, 2 * NUM_RELATIONS, ConvEModel())
    if "recomputed" in case.variant:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    start = time.perf_counter()
    for batch in BatchLoader(examples, TrainingConfig(batch_size=case.batch_size)).epoch(0):
        with case.autocast():
            queries = model.queries(batch.head, batch.relation)
            table, bias = model.entity.weight, model.entity_bias
            total = loss(queries, table, bias, batch.row, batch.entity, settings=settings)
        (total / batch.count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end = time.perf_counter()
        seconds.append(end - start)
        start = end
        if len(seconds) == case.steps:
            return seconds
    raise ValueError(f"{case.steps} steps were requested, but an epoch has only {len(seconds)}")


def trainer_loop(case: Case) -> list[float]:
    """Train with the trainer and a new tracking store, and return the seconds of each step.

    Data handling, logging, heartbeats and memory clean-up are included, as in `clew train`.
    """
    entities = Vocabulary.from_names("entity", [f"e{i:05}" for i in range(NUM_ENTITIES)])
    relations = Vocabulary.from_names("relation", [f"r{i:03}" for i in range(NUM_RELATIONS)])
    graph = KnowledgeGraph(
        "generated", entities, relations, generated_triples(), no_triples(), no_triples()
    )
    config = from_mapping(
        {"data": {"name": "generated"}},
        {
            "training.batch_size": case.batch_size,
            "training.max_steps": case.steps,
            "training.log_every_steps": 10,
            "training.device": "cpu",
            "optimizations.use_mixed_precision": case.precision == "bfloat16",
            "evaluation.enabled": False,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        with open_tracker(config.tracking, kind="train", run_name="benchmark") as tracker:
            return timed_steps(graph, config, tracker)[1]


def pykeen_loop(case: Case) -> list[float]:
    """Train PyKEEN's ConvE with its LCWA loop, and return the seconds of each step.

    The settings are those that PyKEEN's documentation advises for ConvE: inverse triples, LCWA
    training, binary cross entropy with logits, Adam. PyKEEN trains in float32 and refuses
    sub-batches for a model with batch normalisation. A small graph with all entities and relations
    keeps the set-up short.
    """
    from pykeen.models import ConvE as PyKEENConvE
    from pykeen.training import LCWATrainingLoop
    from pykeen.training.callbacks import TrainingCallback
    from pykeen.triples import CoreTriplesFactory

    triples = torch.from_numpy(generated_triples(case.batch_size * case.steps).astype(np.int64))
    factory = CoreTriplesFactory(triples, NUM_ENTITIES, NUM_RELATIONS, create_inverse_triples=True)
    model = PyKEENConvE(
        triples_factory=factory,
        embedding_dim=200,
        output_channels=32,
        embedding_height=10,
        embedding_width=20,
        loss="bcewithlogits",
        random_seed=0,
    )
    ends = [time.perf_counter()]

    class Clock(TrainingCallback):  # type: ignore[misc,unused-ignore]
        def on_batch(self, *args: object, **kwargs: object) -> None:
            ends.append(time.perf_counter())
            if len(ends) > case.steps:
                raise StopIteration

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loop = LCWATrainingLoop(model=model, triples_factory=factory, optimizer=optimizer)
    with suppress(StopIteration):
        loop.train(
            factory,
            num_epochs=1,
            batch_size=case.batch_size,
            label_smoothing=0.1,
            use_tqdm=False,
            callbacks=Clock(),
        )
    return np.diff(ends).tolist()


def products_loop(case: Case) -> list[float]:
    """Run only the matrix products that every step needs, and return the seconds of each step.

    These are the forward products and both gradients of the projection and of the scores. A step
    would take this long if indexing, convolution, normalisation, dropout, loss and optimizer took
    no time.
    """
    settings = ConvEModel()
    model = ConvE(NUM_ENTITIES, 2 * NUM_RELATIONS, settings)
    kind = torch.float32 if case.precision == "float32" else torch.bfloat16
    weights = [model.projection.weight.detach().to(kind), model.entity.weight.detach().to(kind)]
    inputs = [torch.randn(case.batch_size, weight.shape[1], dtype=kind) for weight in weights]
    outputs = [torch.randn(case.batch_size, weight.shape[0], dtype=kind) for weight in weights]
    seconds = []
    for _ in range(case.steps):
        start = time.perf_counter()
        for weight, given, gradient in zip(weights, inputs, outputs, strict=True):
            product(given, weight.T)
            product(gradient, weight)
            product(gradient.T, given)
        seconds.append(time.perf_counter() - start)
    return seconds


def torch_loaded_gib() -> float:
    """Return the peak memory of an interpreter that has imported only torch."""
    # Not getrusage: a new process inherits its parent's maximum.
    script = "import torch; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    return int(run.stdout) / 2**20


VARIANTS: dict[str, Callable[[Case], list[float]]] = {
    "trainer": trainer_loop,
    "bare loop": bare_loop,
    "bare loop, plain loss": bare_loop,
    "bare loop, recomputed": bare_loop,
    "matrix products alone": products_loop,
    "PyKEEN 1.11.1": pykeen_loop,
}
CASES = [
    Case("trainer", "float32", 512, 40, keep_pages=True),
    Case("bare loop", "float32", 512, 40, keep_pages=True),
    Case("trainer", "bfloat16", 512, 60, keep_pages=True),
    Case("bare loop", "bfloat16", 512, 60, keep_pages=True),
    Case("bare loop, plain loss", "float32", 512, 40, keep_pages=True),
    Case("bare loop, recomputed", "float32", 512, 30, keep_pages=True),
    Case("matrix products alone", "float32", 512, 40, keep_pages=True),
    Case("matrix products alone", "bfloat16", 512, 60, keep_pages=True),
    Case("PyKEEN 1.11.1", "float32", 128, 6, keep_pages=False),
]


def child(case: Case) -> None:
    """Train one case, and report the seconds of its steps after the warm-up."""
    if case.keep_pages:
        assert keep_allocator_pages(), "no glibc allocator"
    torch.manual_seed(0)
    seconds = VARIANTS[case.variant](case)
    warm = min(WARM_UP_STEPS, len(seconds) // 3)
    report_child({"seconds": seconds[warm:]})


def main(rounds: int) -> None:
    """Measure all cases in turn in each round, and print and write the medians."""
    instruction_sets = processor().get("instruction_sets", [])
    assert isinstance(instruction_sets, list)
    has_bfloat16 = any("bf16" in name for name in instruction_sets)
    cases = [case for case in CASES if case.precision == "float32" or has_bfloat16]
    measured: dict[Case, list[dict]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, runs in measured.items():
            runs.append(run_child(NAME, "child", *case.arguments()))
    base_gib = torch_loaded_gib()
    rows = [_row(case, runs, base_gib) for case, runs in measured.items()]
    pykeen = next(r for r in rows if r["variant"].startswith("PyKEEN"))["queries_per_second"]
    limit = {
        row["precision"]: row["queries_per_second"]
        for row in rows
        if row["variant"] == "matrix products alone"
    }
    for row in rows:
        row["times_pykeen"] = row["queries_per_second"] / pykeen
        row["of_products_alone"] = row["queries_per_second"] / limit[row["precision"]]
    print_table(rows)
    results = {"torch_loaded_gib": base_gib, "rounds": rounds, "cases": rows}
    figures = {
        f"{case.variant}, {case.precision}, {unit}": values
        for case, runs in measured.items()
        for unit, values in (
            ("queries/s", [case.batch_size / median(run["seconds"]) for run in runs]),
            ("GiB above torch", [run["process_peak_gib"] - base_gib for run in runs]),
        )
    }
    write_results(NAME, results, figures=figures, packages=["torch", "pykeen"])


def _row(case: Case, runs: list[dict], base_gib: float) -> dict:
    step = median([second for run in runs for second in run["seconds"]])
    return {
        "variant": case.variant,
        "precision": case.precision,
        "batch": case.batch_size,
        "keep_pages": case.keep_pages,
        "step_ms": 1000 * step,
        "queries_per_second": case.batch_size / step,
        "extra_gib": max(run["process_peak_gib"] for run in runs) - base_gib,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Case.parse(sys.argv[2:]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 3)
