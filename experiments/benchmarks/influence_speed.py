"""Measures TracIn with FB15k-237's sizes: 32,000 training rows on 1, 4 and 100 tests.

    python -m experiments.benchmarks.influence_speed [rows]

The alternatives are a loop of backward passes, captum 0.9 (TracInCP) and dattri 0.3
(TracInAttributor). They are measured in the same run, each in a new process with the same allocator
settings. They would take hours, so they get fewer rows and their time is extrapolated linearly,
because they process one row after the other. All get the same model, rows and loss, and their
scores are compared with Clew's. An alternative that is not installed is skipped with a message
(`pip install --no-deps captum==0.9.0 dattri==0.3.0`).
"""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clew.config.graph_models import ConvEModel
from clew.influence.link_prediction.rows import Directions, LossForm, own_rows, training_rows
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
)
from clew.influence.link_prediction.tracin import plan_tiles, tiles
from clew.influence.summation import Summation, explain_in_tiles
from clew.layers import products
from clew.layers.products import MatrixProduct
from clew.link_prediction.models.conve import ConvE
from clew.training.memory import MemoryCleanup, keep_allocator_pages
from experiments.benchmarks.harness import (
    median,
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)

NAME = "influence_speed"
CPU = torch.device("cpu")
ENTITIES, RELATIONS, ROWS = 14_541, 237, 32_000
BUDGET_MIB = 512.0
SMOOTHING = 0.1
COMPARED = 64
"""Number of rows whose scores are compared."""
ROUNDS = 3
ALTERNATIVES = {"loop": (256, 4), "captum": (128, 4), "dattri": (32, 4)}
"""Number of rows and tests that each alternative computes."""


def triples(count: int, seed: int, entities: int = ENTITIES) -> np.ndarray:
    """Return random triples."""
    bounds = (entities, RELATIONS, entities)
    return np.random.default_rng(seed).integers(0, bounds, (count, 3)).astype(np.int32)


def network(entities: int = ENTITIES) -> ConvE:
    """Return ConvE with FB15k-237's sizes, and running statistics from some forward passes."""
    torch.manual_seed(0)
    model = ConvE(entities, RELATIONS, ConvEModel()).train()
    rows = torch.from_numpy(triples(2048, 7, entities).astype(np.int64))
    with torch.no_grad():
        for _ in range(20):
            model.queries(rows[:, 0], rows[:, 1])
    return model.eval()


def row_losses(scores: Tensor, tail: Tensor) -> Tensor:
    """Return each row's loss: binary cross entropy over all entities with smoothed labels."""
    positive = (1 - SMOOTHING) * scores.gather(1, tail[:, None])[:, 0]
    return F.softplus(scores).sum(1) - positive - SMOOTHING * scores.mean(1)


class Scorer(nn.Module):
    """ConvE with the scores of all entities as output, as the other tools require."""

    def __init__(self, model: ConvE) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        """Return the scores of all entities."""
        weight, bias = self.model.entity.weight, self.model.entity_bias
        return F.linear(self.model.queries(head, relation), weight, bias)


def columns(rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Return the head, relation and tail of each row."""
    head, relation, tail = torch.from_numpy(rows.astype(np.int64)).T
    return head, relation, tail


def run_clew(
    train: np.ndarray,
    test: np.ndarray,
    *,
    entities: int = ENTITIES,
    num_checkpoints: int = 1,
    half: bool = False,
    cosine: bool = False,
    device: torch.device = CPU,
) -> tuple[float, np.ndarray]:
    """Return the seconds to find the top ten of each test, and the scores of the first rows."""
    form = LossForm("binary_cross_entropy", SMOOTHING, one_query_a_row=False)
    kind = Directions(RELATIONS, inverse_relations=False)
    to = (device, torch.float32)
    rows = TripleRows(
        form, training_rows(train, form, kind).to(*to), own_rows(test, form, kind).to(*to)
    )
    models = [network(entities).to(device) for _ in range(num_checkpoints)]
    options = KernelOptions(product=MatrixProduct(torch.bfloat16 if half else None))
    plan = plan_tiles(
        models[0],
        num_tests=len(test),
        num_checkpoints=num_checkpoints,
        num_directions=1,
        num_parts=6,
        keep_features=True,
        budget_mib=BUDGET_MIB,
    )

    def once(chosen: np.ndarray) -> Summation:
        kernels = [GraphModelCheckpoint(model, rows, options) for model in models]
        summation = Summation(kernels, [1.0] * num_checkpoints, cosine=cosine)
        explain_in_tiles(
            summation,
            tiles(train, chosen, plan.tile_triples),
            len(chosen),
            top_k=10,
            numbers_per_pair=0,
            cleanup=MemoryCleanup(enabled=False, interval_steps=1, device=device),
            progress=lambda done, total: None,
        )
        return summation

    once(np.arange(min(1024, len(train))))
    start = time.perf_counter()
    summation = once(np.arange(len(train)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    return seconds, summation.tile(np.arange(COMPARED)).influence.cpu().numpy()


def run_loop(train: np.ndarray, test: np.ndarray) -> tuple[float, np.ndarray]:
    """Run one backward pass per row, and take inner products with the stored test gradients."""
    model = Scorer(network())
    parameters = list(model.parameters())

    def gradient(row: np.ndarray) -> list[Tensor]:
        head, relation, tail = columns(row[None])
        loss = row_losses(model(head, relation), tail).sum()
        return list(torch.autograd.grad(loss, parameters))

    start = time.perf_counter()
    tests = [gradient(row) for row in test]
    scores = np.empty((len(test), len(train)))
    for i, row in enumerate(train):
        own = gradient(row)
        for j, other in enumerate(tests):
            scores[j, i] = sum(float((a * b).sum()) for a, b in zip(own, other, strict=True))
    return time.perf_counter() - start, scores


def run_captum(train: np.ndarray, test: np.ndarray) -> tuple[float, np.ndarray]:
    """Run TracInCP with every parameter; its fast variants use only the last layer."""
    from captum.influence import TracInCP

    model = Scorer(network())
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.safetensors")
        save_file(model.state_dict(), path)

        def load(module: nn.Module, file: str) -> float:
            module.load_state_dict(load_file(file))
            return 1.0

        tracin = TracInCP(
            model,
            TensorDataset(*columns(train)),
            [path],
            checkpoints_load_func=load,
            loss_fn=row_losses,
            batch_size=16,
            sample_wise_grads_per_batch=False,
        )
        start = time.perf_counter()
        scores = tracin.influence(columns(test), k=None)
        return time.perf_counter() - start, scores.detach().numpy()


def run_dattri(train: np.ndarray, test: np.ndarray) -> tuple[float, np.ndarray]:
    """Run TracInAttributor, which computes flattened per-example gradients with vmap."""
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.task import AttributionTask

    # TracInAttributor differentiates under vmap, which Clew's oneDNN products do not support.
    products.onednn_is_faster = lambda: False  # type: ignore[assignment]
    model = Scorer(network())

    def loss(parameters: dict[str, Tensor], data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        head, relation, tail = (part.reshape(1) for part in data)
        return row_losses(torch.func.functional_call(model, parameters, (head, relation)), tail)[0]

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    attributor = TracInAttributor(
        task=task, weight_list=torch.ones(1), normalized_grad=False, device="cpu"
    )
    loaders = (
        DataLoader(TensorDataset(*columns(rows)), batch_size=4, shuffle=False)
        for rows in (train, test)
    )
    start = time.perf_counter()
    scores = attributor.attribute(*loaders)
    return time.perf_counter() - start, scores.numpy().T


RUNNERS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]] = {
    "loop": run_loop,
    "captum": run_captum,
    "dattri": run_dattri,
}


def child(engine: str, rows: str, tests: str, checkpoints: str, folder: str, options: str) -> None:
    """Measure one engine, and report its seconds and memory."""
    keep_allocator_pages()
    train, test = triples(int(rows), 1), triples(int(tests), 2)
    network()
    before = resident_gib()
    if engine == "clew":
        flags: dict[str, Any] = {name: True for name in options.split("+") if name}
        seconds, scores = run_clew(train, test, num_checkpoints=int(checkpoints), **flags)
    else:
        seconds, scores = RUNNERS[engine](train, test)
    np.save(Path(folder) / f"{engine}.npy", scores[:, : min(COMPARED, len(train))])
    report_child({"seconds": seconds, "resident_before_gib": before})


def measure(
    engine: str, rows: int, tests: int, folder: str, *, checkpoints: int = 1, options: str = ""
) -> dict[str, float]:
    """Run a child process; return its seconds and its memory beyond that of the model."""
    found = run_child(
        NAME, "child", engine, str(rows), str(tests), str(checkpoints), folder, options
    )
    peak, before = float(str(found["process_peak_gib"])), float(str(found["resident_before_gib"]))
    return {"seconds": float(str(found["seconds"])), "gib_above_model": peak - before}


def compare(folder: str, rows: int) -> tuple[list[dict[str, object]], dict[str, list[float]]]:
    """Measure Clew and the alternatives with four tests.

    Returns:
        A table, and for each alternative and round how many times as long it takes as Clew.
    """
    engines = [name for name in ALTERNATIVES if name == "loop" or importlib.util.find_spec(name)]
    for engine in ALTERNATIVES.keys() - engines:
        print(f"{engine} is not installed and is skipped")
    ours: list[float] = []
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for _ in range(ROUNDS):
        ours.append(measure("clew", rows, 4, folder)["seconds"])
        for engine, found in runs.items():
            found.append(measure(engine, *ALTERNATIVES[engine], folder))
    exact = np.load(Path(folder) / "clew.npy")
    table: list[dict[str, object]] = [
        {"engine": "clew", "tests": 4, "rows computed": rows, "s for all rows": median(ours)}
    ]
    times_clew: dict[str, list[float]] = {}
    for engine, found in runs.items():
        computed, tests = ALTERNATIVES[engine]
        whole = [run["seconds"] * rows / computed for run in found]
        slower = [theirs / own for theirs, own in zip(whole, ours, strict=True)]
        times_clew[f"{engine}, times as long, 4 tests"] = slower
        theirs = np.load(Path(folder) / f"{engine}.npy")
        width = min(exact.shape[1], theirs.shape[1])
        error = np.abs(theirs[:, :width] - exact[:, :width]).max() / np.abs(exact).max()
        table.append(
            {
                "engine": engine,
                "tests": tests,
                "rows computed": computed,
                "s for all rows": median(whole),
                "times clew": median(slower),
                "largest difference": float(error),
                "gib_above_model": max(run["gib_above_model"] for run in found),
            }
        )
    return table, times_clew


def main(rows: int) -> None:
    """Measure Clew and the alternatives, and print and write the results."""
    results: dict[str, object] = {"load_average_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder:
        table = []
        figures: dict[str, list[float]] = {}
        for tests, checkpoints, options, size in (
            (1, 1, "", rows),
            (4, 1, "", rows),
            (4, 1, "half", rows),
            (100, 1, "", rows),
            (100, 1, "cosine", rows),
            (100, 1, "half", rows),
            (100, 2, "", rows),
        ):
            runs = [
                measure("clew", size, tests, folder, checkpoints=checkpoints, options=options)
                for _ in range(ROUNDS)
            ]
            seconds = [run["seconds"] for run in runs]
            table.append(
                {
                    "rows": size,
                    "tests": tests,
                    "checkpoints": checkpoints,
                    "options": options or "-",
                    "seconds": median(seconds),
                    "fastest": min(seconds),
                    "GiB above model": max(run["gib_above_model"] for run in runs),
                    "pairs/s": size * tests * checkpoints / median(seconds),
                }
            )
            case = f"{size:,} rows, {tests} tests, {checkpoints} checkpoints, {options or 'raw'}"
            figures[f"{case}, seconds"] = seconds
            figures[f"{case}, GiB"] = [run["gib_above_model"] for run in runs]
            print_table(table[-1:])
        results["clew"] = table
        print()
        print_table(table)
        results["alternatives"], slower = compare(folder, rows)
        figures |= slower
        print_table(_even(results["alternatives"]))
    results["load_average_after"] = os.getloadavg()
    packages = [name for name in ("captum", "dattri") if importlib.util.find_spec(name)]
    write_results(NAME, results, figures=figures, packages=packages)


def _even(rows: object) -> list[dict[str, object]]:
    """Give every row all columns."""
    assert isinstance(rows, list)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key, "-") for key in keys} for row in rows]


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
