"""Trains the presets for image sequences for one epoch: time, predicted and measured memory.

    python -m experiments.benchmarks.image_presets                       # both
    python -m experiments.benchmarks.image_presets colab_optimized_full  # one, writes no result

The data are random frames of 440 x 640 pixels: two groups for training, one for validation and one
for the test. Each preset is trained and evaluated by the workflow of `clew train`. Only the data
and the number of epochs are changed, and the compiler's cache is empty. On a processor without
bfloat16 instructions the compiled preset is trained in float32, because two passes over a
microbatch had not finished there after nine minutes. Predicted and measured memory are the run's
`memory/predicted_gib` and `memory/process_peak_gib` (on a GPU `memory/gpu_peak_allocated_gib`).
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from experiments.benchmarks.harness import print_table, report_child, run_child, write_results

NAME = "image_presets"
PRESETS = ("colab_optimized", "colab_optimized_full")
GROUPS, FRAMES_PER_GROUP, FRAME_SIZE, NUM_SCALARS = 4, 54, (440, 640), 3


def write_frames(path: Path) -> Path:
    """Write an HDF5 file of random frames. The target of a frame is the mean of its pixels."""
    rng = np.random.default_rng(0)
    count = GROUPS * FRAMES_PER_GROUP
    level = rng.standard_normal(count)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (count, *FRAME_SIZE), dtype=np.float32)
        for place in range(count):
            images[place] = level[place] + rng.standard_normal(FRAME_SIZE, dtype=np.float32)
        file["target"] = level
        file["scalars"] = rng.standard_normal((count, NUM_SCALARS))
        file["group"] = np.repeat(np.arange(GROUPS), FRAMES_PER_GROUP)
    return path


def child(preset: str) -> None:
    """Train a preset for one epoch, and report its time and memory."""
    import torch

    from clew import names
    from clew.config.load import load
    from clew.layers.products import has_bfloat16_products
    from clew.workflows.train import train

    with tempfile.TemporaryDirectory(prefix="clew-presets-") as name:
        folder = Path(name)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
        data = write_frames(folder / "frames.h5")
        changes = {"data.path": str(data), "training.num_epochs": 1}
        config = load(preset, changes)
        has_half = torch.cuda.is_available() or has_bfloat16_products()
        if config.optimizations.torch_compile and not has_half:
            config = load(preset, changes | {"optimizations.use_mixed_precision": False})
        started = time.perf_counter()
        metrics = train(config).metrics
        seconds = time.perf_counter() - started
    measured = metrics.get(names.GPU_PEAK_ALLOCATED_GIB, metrics[names.PROCESS_PEAK_GIB])
    predicted = metrics[names.PREDICTED_GIB]
    report_child(
        {
            "preset": preset,
            "windows": 2 * (FRAMES_PER_GROUP - config.data.temporal_frames + 1),  # type: ignore[union-attr]
            "batch_size": config.training.batch_size,
            "precision": "half" if config.optimizations.use_mixed_precision else "float32",
            "seconds, all": seconds,
            "seconds, epoch": metrics[names.TIME_EPOCH_SECONDS],
            "seconds, compilation": metrics.get(names.TIME_COMPILE_SECONDS, 0.0),
            "predicted_gib": predicted,
            "measured_gib": measured,
            "error": predicted / measured - 1.0,
        }
    )


def main(*chosen: str) -> None:
    """Train the presets, and print and write the results."""
    rows = [run_child(NAME, "child", preset) for preset in chosen or PRESETS]
    print_table(rows)
    if not chosen:
        write_results(NAME, rows, packages=["torch", "h5py"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2])
    else:
        main(*sys.argv[1:])
