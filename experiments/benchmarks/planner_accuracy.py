"""Compares the memory that `clew plan` predicts with the peak that a training run measures.

    python -m experiments.benchmarks.planner_accuracy

Each configuration is trained for a few steps by the workflow of `clew train`, in a new process with
its own store, without evaluation. The predicted memory is the run's `memory/predicted_gib`. The
measured memory is its `memory/process_peak_gib` (resident peak) on the CPU, or its
`memory/gpu_peak_allocated_gib` on a GPU. `error_above` is the error after the memory before the
training (interpreter and libraries) is subtracted from both. The data are random texts, graphs and
frames of given sizes, so no data set is needed. The windows of `small_32k` are shorter than in the
preset, because training on a CPU would take hours.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.harness import print_table, report_child, run_child, write_results

NAME = "planner_accuracy"
STEPS = 8
GRAPHS = {
    "small": (2_000, 20, 20_000),
    "middle": (14_541, 237, 100_000),
    "wide": (60_000, 50, 60_000),
    "million": (1_000_000, 100, 1_000_000),
}
TOKENS = 2_000_000
FRAMES, FRAME_SIZE = 160, (96, 128)

MIXED = {"optimizations.use_mixed_precision": True}
CHECKPOINTED = {"optimizations.use_gradient_checkpointing": True}
RETURNED = {"optimizations.keep_allocator_pages": False}
PLAIN = {"loss.implementation": "plain"}
SHORT = {"training.max_steps": 3}
"""Large cases run few steps, because every step reaches the peak."""
LONG = {
    "model.preset": "small_32k",
    "model.max_seq_len": 4096,
    "training.gradient_accumulation": 2,
    **MIXED,
    **SHORT,
}

CASES: dict[str, dict[str, Any]] = {
    "conve small, 128": {"graph": "small", "training.batch_size": 128},
    "conve small, 1024": {"graph": "small", "training.batch_size": 1024},
    "conve middle, 512": {"graph": "middle", "training.batch_size": 512},
    "conve middle, 512, bf16": {"graph": "middle", "training.batch_size": 512, **MIXED},
    "conve middle, 512, recomputed": {
        "graph": "middle",
        "training.batch_size": 512,
        **CHECKPOINTED,
    },
    "conve middle, 512, scores kept": {"graph": "middle", "training.batch_size": 512, **PLAIN},
    "conve middle, 512, pages returned": {
        "graph": "middle",
        "training.batch_size": 512,
        **RETURNED,
    },
    "conve middle, 4096": {"graph": "middle", "training.batch_size": 4096},
    "conve middle, 256 x 4, SGD": {
        "graph": "middle",
        "training.batch_size": 256,
        "training.gradient_accumulation": 4,
        "optimizer.kind": "sgd",
    },
    "conve wide, 256, k-vs-all": {
        "graph": "wide",
        "training.batch_size": 256,
        "loss.kind": "kvs_all",
    },
    "conve middle, 64 channels, 1024": {
        "graph": "middle",
        "training.batch_size": 1024,
        "model.output_channels": 64,
    },
    "text nano, 8": {"training.batch_size": 8},
    "text nano, 8, bf16": {"training.batch_size": 8, **MIXED},
    "text nano, 8, bf16, recomputed": {"training.batch_size": 8, **MIXED, **CHECKPOINTED},
    "text nano, 8, pages returned": {"training.batch_size": 8, **RETURNED},
    "text nano, 4 x 4, 1024 tokens, bf16": {
        "training.batch_size": 4,
        "training.gradient_accumulation": 4,
        "model.max_seq_len": 1024,
        **MIXED,
    },
    "conve million, 1024": {"graph": "million", "training.batch_size": 1024, **SHORT},
    "text small_32k, 1 x 2, 4096 tokens": {**LONG, "training.batch_size": 1},
    "text small_32k, 3 x 2, 4096 tokens": {**LONG, "training.batch_size": 3},
    "text small_32k, 1 x 2, 2048 tokens, kept": {
        **LONG,
        "training.batch_size": 1,
        "model.max_seq_len": 2048,
        "optimizations.use_gradient_checkpointing": False,
    },
    "images transformer, 16": {"architecture": "transformer", "training.batch_size": 16},
    "images transformer, 16, bf16": {
        "architecture": "transformer",
        "training.batch_size": 16,
        **MIXED,
    },
    "images transformer, 12, recomputed": {
        "architecture": "transformer",
        "training.batch_size": 12,
        **CHECKPOINTED,
    },
    "images transformer, 12, bf16, recomputed": {
        "architecture": "transformer",
        "training.batch_size": 12,
        **MIXED,
        **CHECKPOINTED,
    },
    "images cnn, 32, small": {
        "architecture": "cnn",
        "training.batch_size": 32,
        "model.channels": [16, 32, 64],
    },
    "images gnn, 8, small": {
        "architecture": "gnn",
        "training.batch_size": 8,
        "model.channels": [16, 32, 64],
    },
    "images ssm, 8, pages returned": {
        "architecture": "ssm",
        "training.batch_size": 8,
        "model.channels": [32, 64, 128],
        **RETURNED,
    },
}


def configuration(case: str, folder: Path) -> dict[str, Any]:
    """Write the data of a case, and return its settings as a nested mapping."""
    settings = dict(CASES[case])
    graph, architecture = settings.pop("graph", None), settings.pop("architecture", None)
    content: dict[str, Any] = {
        "training": {"max_steps": STEPS, "checkpoint_frequency": 0},
        "evaluation": {"enabled": False},
    }
    if graph is not None:
        content["data"] = {"train": str(_write_graph(folder / "train.txt", *GRAPHS[graph]))}
    elif architecture is not None:
        content["data"] = {"kind": "image_sequences", "path": str(_write_frames(folder / "frames"))}
        content["model"] = {"kind": "sequence_regression", "architecture": architecture}
        content["loss"] = {"kind": "huber"}
        content["evaluation"]["metric"] = "valid/mae"
    else:
        path = folder / "text.txt"
        path.write_bytes(np.random.default_rng(0).integers(97, 123, TOKENS, np.uint8).tobytes())
        content["data"] = {"kind": "tokens", "dataset": str(path), "packed": str(folder / "pack")}
        content["model"] = {"kind": "eigenstate_lm", "preset": "nano"}
        content["evaluation"]["metric"] = "valid/loss"
    for key, value in settings.items():
        section, _, name = key.partition(".")
        content.setdefault(section, {})[name] = value
    return content


def _write_graph(path: Path, entities: int, relations: int, triples: int) -> Path:
    draw = np.random.default_rng(0).integers
    heads, tails = draw(entities, size=triples), draw(entities, size=triples)
    heads[:entities] = np.arange(min(entities, triples))
    kinds = draw(relations, size=triples)
    rows = (f"e{h}\tr{r}\te{t}" for h, r, t in zip(heads, kinds, tails, strict=True))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _write_frames(folder: Path) -> Path:
    draw = np.random.default_rng(0).standard_normal
    folder.mkdir()
    np.save(folder / "images.npy", draw((FRAMES, *FRAME_SIZE), dtype=np.float32))
    np.save(folder / "target.npy", draw(FRAMES))
    np.save(folder / "scalars.npy", draw((FRAMES, 3)))
    np.save(folder / "group.npy", np.arange(FRAMES) * 4 // FRAMES)
    return folder


def child(case: str) -> None:
    """Train a case for a few steps, and report the predicted and the measured memory."""
    from clew import names
    from clew.config.load import from_mapping
    from clew.runs.hardware import process_gib
    from clew.workflows.train import train

    with tempfile.TemporaryDirectory(prefix="clew-planner-") as name:
        folder = Path(name)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        config, before = from_mapping(configuration(case, folder)), process_gib()
        metrics = train(config).metrics
    on_gpu = names.GPU_PEAK_ALLOCATED_GIB in metrics
    before = 0.0 if on_gpu else before
    measured = metrics.get(names.GPU_PEAK_ALLOCATED_GIB, metrics[names.PROCESS_PEAK_GIB])
    predicted = metrics[names.PREDICTED_GIB]
    report_child(
        {
            "case": case,
            "predicted_gib": predicted,
            "measured_gib": measured,
            "error": predicted / measured - 1.0,
            "error_above": (predicted - before) / (measured - before) - 1.0,
        }
    )


def main(*chosen: str) -> None:
    """Train all cases, and print and write the results."""
    rows = [run_child(NAME, "child", case) for case in chosen or CASES]
    print_table(rows)
    errors = [abs(float(str(row["error"]))) for row in rows]
    within = sum(error <= 0.15 for error in errors)
    summary = {"within_15_percent": within, "cases": len(rows), "largest_error": max(errors)}
    print(summary)
    if not chosen:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        write_results(NAME, {"device": device, "rows": rows, **summary}, packages=["torch"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2])
    else:
        main(*sys.argv[1:])
