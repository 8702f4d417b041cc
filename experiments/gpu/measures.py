"""Measures training, losses, explanations and memory on the device, most important first."""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew import names
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import SequenceRegressionModel
from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.language_modeling.model import EigenstateLM
from clew.layers.scan import Multipliers, diagonal_scan, scan, scan_into
from clew.link_prediction.losses.fused_one_vs_all import fused_one_vs_all_loss
from clew.link_prediction.losses.one_vs_all import OneVsAll, one_vs_all_loss
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.memory_plan import MemoryPlanner
from clew.training.precision import apply_tf32
from clew.training.setup import build_trainer, measure_before_training
from experiments.benchmarks.influence_speed import (
    Scorer,
    columns,
    network,
    row_losses,
    run_clew,
    triples,
)
from experiments.benchmarks.language_training import train_step
from experiments.gpu.timing import Bench, Row
from tests.memory_tracker import MemoryTracker

WARM_UP = 10
MIXED = {"optimizations.use_mixed_precision": True}
BFLOAT16 = {**MIXED, "optimizations.mixed_precision_dtype": "bfloat16"}
COMPILED = {"optimizations.torch_compile": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "TF32": {"optimizations.use_tf32": True},
    "half (auto)": MIXED,
    "bfloat16": BFLOAT16,
    "bfloat16, recomputed": {**BFLOAT16, "optimizations.use_gradient_checkpointing": True},
    "float32, recomputed": {"optimizations.use_gradient_checkpointing": True},
    "float32, clean-up each step": {
        "optimizations.enable_memory_cleanup": True,
        "optimizations.memory_cleanup_interval_steps": 1,
    },
}
COMPILED_VARIANTS: dict[str, dict[str, Any]] = {
    "TF32, compiled": {"optimizations.use_tf32": True, **COMPILED},
    "bfloat16, compiled": {**BFLOAT16, **COMPILED},
}
MODELS = {
    "conve": {"training.batch_size": 1024},
    "complex": {"training.batch_size": 1024, "model.embedding_dim": 400},
}


def training(bench: Bench) -> Iterator[Row]:
    """Yield seconds, memory and loss of training with each option, with the same steps."""
    chosen = {"conve": list(VARIANTS), "complex": ["float32", "TF32", "bfloat16"]}
    if bench.small:
        chosen = {"conve": ["float32", "bfloat16, recomputed"], "complex": ["float32"]}
    yield from _variants(bench, chosen)


def compiled_training(bench: Bench) -> Iterator[Row]:
    """Yield the same for compiled models; on a processor nothing, as compilers take minutes."""
    chosen = {"conve": list(COMPILED_VARIANTS), "complex": ["TF32, compiled"]}
    yield from _variants(bench, {} if bench.small else chosen)


def _variants(bench: Bench, chosen: dict[str, list[str]]) -> Iterator[Row]:
    for model, variants in chosen.items():
        for variant in variants:
            settings = {
                "model.kind": model,
                **MODELS[model],
                **(VARIANTS | COMPILED_VARIANTS)[variant],
            }
            yield {"model": model, "variant": variant, **_train(bench, settings)}


def _train(bench: Bench, settings: dict[str, Any]) -> Row:
    steps, warm_up = bench.size(110, 3), bench.size(WARM_UP, 1)
    config = _configuration(bench, settings, steps)
    bench.clear()
    task = LinkPrediction(_graph(bench), config)
    apply_tf32(enabled=config.optimizations.use_tf32)
    predicted = MemoryPlanner(task, bench.device).predict(config).total_gib
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(
            config,
            task,
            tracker := MemoryTracker(),
            device=bench.device,
            world=World(),
            folder=Path(folder),
            origin=Manifest(0, 0, 0.0, "link_prediction", {}, "", ""),
        )
        begin = time.perf_counter()
        measure_before_training(trainer)
        preparing = time.perf_counter() - begin
        times: list[float] = []
        counted = trainer.throughput.step_done

        def step_done(units: dict[str, int]) -> None:
            counted(units)
            if len(times) == warm_up:
                bench.wait()
            times.append(time.perf_counter())

        trainer.throughput.step_done = step_done  # type: ignore[method-assign]
        trainer.train()
        bench.wait()
        end = time.perf_counter()
    losses = [value for key, value, _ in tracker.metric_values if key == names.TRAIN_LOSS]
    apply_tf32(enabled=False)
    return {
        "ms per step": 1e3 * (end - times[warm_up]) / (len(times) - 1 - warm_up),
        "peak GiB": bench.peak_gib(),
        "predicted GiB": predicted,
        "loss": losses[-1],
        "seconds before training": preparing,
    }


def _configuration(bench: Bench, settings: dict[str, Any], steps: int) -> RunConfig:
    changes = {
        "training.max_steps": steps,
        "training.num_epochs": 1000,
        "training.log_every_steps": max(1, steps - 1),
        "training.checkpoint_frequency": 0,
        "training.device": bench.device.type,
        "evaluation.enabled": False,
        **settings,
    }
    if bench.small:
        changes["training.batch_size"] = 64
    return from_mapping({"data": {"name": "generated"}}, changes)


def _graph(bench: Bench) -> KnowledgeGraph:
    generator, count = np.random.default_rng(0), bench.size(272_115, 2_000)
    num_entities = bench.size(14_541, 500)
    ends = (num_entities * generator.random((2, count)) ** 2).astype(np.int32)  # a few are frequent
    kinds = (237 * generator.random(count) ** 2).astype(np.int32)
    drawn = np.stack([ends[0], kinds, ends[1]], axis=1)
    entities = [f"e{i:05}" for i in range(num_entities)]
    relations = [f"r{i:03}" for i in range(237)]
    return KnowledgeGraph(
        "generated",
        Vocabulary.from_names("entity", entities),
        Vocabulary.from_names("relation", relations),
        drawn,
        no_triples(),
        no_triples(),
    )


def losses(bench: Bench) -> Iterator[Row]:
    """Yield the time and memory of the loss over all entities, beside plain and products."""
    for dtype in (None, torch.bfloat16):
        for entities in (50_000, 200_000, 1_000_000):
            count = bench.size(entities, entities // 100)
            yield _loss(bench, count, dtype)


def _loss(bench: Bench, entities: int, dtype: torch.dtype | None) -> Row:
    batch, dim = bench.size(1_024, 16), 200
    bench.clear()
    queries = torch.randn(batch, dim, device=bench.device)
    table = 0.05 * torch.randn(entities, dim, device=bench.device)
    bias = torch.zeros(entities, device=bench.device)
    row = torch.arange(batch, device=bench.device)
    entity = torch.randint(entities, (batch,), device=bench.device)
    x, w = (t.to(dtype or torch.float32) for t in (queries, table))

    def products() -> None:
        scores = x @ w.T
        _ = scores @ w, scores.T @ x

    def loss(compute: Any) -> None:
        leaves = [t.detach().requires_grad_() for t in (queries, table, bias)]
        with torch.autocast(bench.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            compute(*leaves, row, entity, settings=OneVsAll(label_smoothing=0.1)).backward()

    ways: dict[str, Callable[[], object]] = {
        "products": products,
        "plain": partial(loss, one_vs_all_loss),
        "fused": partial(loss, fused_one_vs_all_loss),
    }
    peaks = {}
    for name, way in ways.items():
        bench.clear()
        before = bench.peak_gib()
        way()
        bench.wait()
        peaks[name] = bench.peak_gib() - before
    found = bench.milliseconds(ways, rounds=5)
    return {
        "entities": entities,
        "batch": batch,
        "precision": "float32" if dtype is None else "bfloat16",
        **{f"{name} ms": value for name, value in found.items()},
        **{f"{name} GiB": value for name, value in peaks.items()},
        "fused / products": found["fused"] / found["products"],
        "fused / plain": found["fused"] / found["plain"],
    }


def explanations(bench: Bench) -> Iterator[Row]:
    """Yield the time of TracIn with every parameter, beside a loop of backward passes."""
    rows, looped = bench.size(32_000, 128), bench.size(128, 4)
    train = triples(rows, 1)
    for tests in (4, 100):
        test = triples(tests, 2)
        found = [run_clew(train, test, device=bench.device)[0] for _ in range(bench.size(3, 1))]
        row: Row = {"rows": rows, "tests": tests, "seconds": sorted(found)[len(found) // 2]}
        if tests == 4:
            loop = _loop_of_backward_passes(bench, looped, tests) * rows / looped
            row |= {"loop, seconds (extrapolated)": loop, "times as long": loop / sorted(found)[0]}
        yield row


def _loop_of_backward_passes(bench: Bench, rows: int, tests: int) -> float:
    model = Scorer(network().to(bench.device))
    parameters = list(model.parameters())

    def gradient(row: Any) -> list[torch.Tensor]:
        head, relation, tail = (x.to(bench.device) for x in columns(row[None]))
        total = row_losses(model(head, relation), tail).sum()
        return list(torch.autograd.grad(total, parameters))

    def whole(count: int) -> None:
        kept = [gradient(row) for row in triples(tests, 2)]
        for row in triples(count, 1):
            own = gradient(row)
            for other in kept:
                torch.stack([(a * b).sum() for a, b in zip(own, other, strict=True)]).sum().item()

    whole(2)
    begin = time.perf_counter()
    whole(rows)
    return time.perf_counter() - begin


def language(bench: Bench) -> Iterator[Row]:
    """Yield tokens per second and memory of `small_32k` on windows of 32,768 tokens."""
    window = bench.size(32_768, 64)
    for precision, recompute, batch in (
        ("bfloat16", True, 1),
        ("bfloat16", True, 4),
        ("bfloat16", False, 1),
        ("TF32", True, 1),
        ("float32", True, 1),
    ):
        bench.clear()
        apply_tf32(enabled=precision == "TF32")
        torch.manual_seed(0)
        preset = "nano" if bench.small else "small_32k"
        model = EigenstateLM(bench.size(50_257, 257), EigenstateLMModel(preset=preset))
        model = model.to(bench.device).train()
        if recompute:
            model.enable_gradient_checkpointing()
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
        tokens = torch.randint(257, (batch, window + 1), device=bench.device)
        half = torch.bfloat16 if precision == "bfloat16" else None
        step = partial(train_step, model, optimizer, tokens, half=half)
        milliseconds = bench.milliseconds({"step": step}, rounds=3, warm_ups=1)["step"]
        yield {
            "precision": precision,
            "recomputed": recompute,
            "windows": batch,
            "ms per step": milliseconds,
            "tokens/s": 1e3 * batch * window / milliseconds,
            "peak GiB": bench.peak_gib(),
        }
        apply_tf32(enabled=False)
        del model, optimizer, step


def scans(bench: Bench) -> Iterator[Row]:
    """Yield the scan's time: kernels, the chunked scan by torch operations, a matrix product."""
    time_steps = bench.size(32_768, 256)
    for states in (64, 128):
        inputs = torch.randn(4, time_steps, states, 2, device=bench.device)
        modulus = 1 - torch.logspace(-4.5, 0, states, device=bench.device)
        angle = torch.rand(states, device=bench.device)
        values = torch.view_as_real(torch.polar(modulus, angle)).unsqueeze(0)
        initial = torch.zeros(4, states, 2, device=bench.device)
        width = 4 * states
        x = torch.randn(4 * time_steps, width, device=bench.device, dtype=torch.bfloat16)
        weight = torch.randn(width, width, device=bench.device, dtype=torch.bfloat16)

        def both(inputs: torch.Tensor = inputs, values: torch.Tensor = values) -> None:
            leaves = [t.detach().requires_grad_() for t in (inputs, values)]
            states_found = scan(*leaves)
            torch.autograd.grad(states_found, leaves, torch.ones_like(states_found))

        def eager(
            inputs: torch.Tensor = inputs,
            values: torch.Tensor = values,
            initial: torch.Tensor = initial,
        ) -> None:
            out = torch.empty_like(inputs)
            scan_into(
                torch.view_as_complex(out),
                torch.view_as_complex(inputs),
                Multipliers(torch.view_as_complex(values), varies=False),
                torch.view_as_complex(initial),
                chunk_size=32,
            )

        found = bench.milliseconds(
            {
                "forward ms": partial(diagonal_scan, inputs, values, initial, 32),
                "forward by torch operations ms": eager,
                "forward and backward ms": both,
                "one product of the block ms": partial(torch.mm, x, weight),
            }
        )
        moved = 2 * inputs.numel() * inputs.element_size()
        rate = moved / (found["forward ms"] / 1e3) / 1e12
        yield {"eigenstates": states, "steps": time_steps, **found, "forward TB/s": rate}


def images(bench: Bench) -> Iterator[Row]:
    """Yield the time and memory of a training step of both presets for image sequences."""
    height, width = (440, 640) if not bench.small else (32, 32)
    frames = 5
    full, half_channels = SequenceRegressionModel(), SequenceRegressionModel(channels=(32, 64, 128))
    for case, settings, windows, half, recompute, compiled in (
        ("64/128/256, float32", full, 20, False, False, False),
        ("64/128/256, float16", full, 20, True, False, False),
        ("64/128/256, float16, recomputed", full, 20, True, True, False),
        ("32/64/128, float32", half_channels, 16, False, False, False),
        ("32/64/128, float16", half_channels, 16, True, False, False),
        ("64/128/256, float16, recomputed, compiled", full, 20, True, True, True),
    ):
        bench.clear()
        torch.manual_seed(0)
        count = bench.size(windows, 1)
        chosen = settings.model_copy(update={"frames_per_checkpoint": 5 if recompute else None})
        model: Any = SequenceRegressor(SequenceShape(frames, 1, 3), chosen).to(bench.device).train()
        if recompute:
            model.enable_gradient_checkpointing()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        given = torch.randn(count, frames, 1, height, width, device=bench.device)
        scalars = torch.randn(count, frames, 3, device=bench.device)
        if compiled and not bench.small:
            model.compile()
        dtype = torch.float16 if bench.device.type == "cuda" else torch.bfloat16

        def step(
            model: Any = model,
            optimizer: torch.optim.Optimizer = optimizer,
            given: torch.Tensor = given,
            scalars: torch.Tensor = scalars,
            half: bool = half,
            dtype: torch.dtype = dtype,
        ) -> None:
            with torch.autocast(bench.device.type, dtype, enabled=half):
                total = model(given, scalars).float().square().mean()
            total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        begin = time.perf_counter()
        step()
        bench.wait()
        first = time.perf_counter() - begin
        milliseconds = bench.milliseconds({"step": step}, rounds=3, warm_ups=1)["step"]
        yield {
            "case": case,
            "windows": count,
            "ms per step": milliseconds,
            "frames/s": 1e3 * count * frames / milliseconds,
            "peak GiB": bench.peak_gib(),
            "first step s": first,
        }
        del model, optimizer, given, scalars, step


logging.getLogger("clew").setLevel(logging.ERROR)
