"""Measures the memory and time of recomputing the frames in a training step on images.

    python -m experiments.benchmarks.image_memory

The model is the full one (64/128/256 channels), on windows of 5 frames of 440 x 640 pixels. Each
row of memory is measured in a new process: the resident peak of one step above the resident size
before the first forward pass, which includes weights, gradients and optimizer state. Times are
medians of steps with the frames kept and with the frames computed again, in turns.
"""

import sys
import time
from functools import partial

import torch

from clew.config.image_sequences import ArchitectureName, SequenceRegressionModel
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.runs.hardware import process_peak_gib, reset_process_peak
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import (
    interleaved_seconds,
    median,
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)

NAME = "image_memory"
NUM_FRAMES, HEIGHT, WIDTH, NUM_SCALARS = 5, 440, 640, 3
REPEATS = 3
Step = tuple[SequenceRegressor, torch.optim.Optimizer, torch.Tensor, torch.Tensor]


def build(
    windows: int, frames: int, recompute: bool, architecture: ArchitectureName, size: int
) -> Step:
    """Return the model, an optimizer that has its state already, and the inputs."""
    torch.manual_seed(0)
    config = SequenceRegressionModel(
        architecture=architecture, frames_per_checkpoint=frames or None
    )
    model = SequenceRegressor(SequenceShape(NUM_FRAMES, 1, NUM_SCALARS), config).train()
    if recompute:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    images = torch.randn(windows, NUM_FRAMES, 1, HEIGHT // size, WIDTH // size)
    return model, optimizer, images, torch.randn(windows, NUM_FRAMES, NUM_SCALARS)


def step(parts: Step) -> None:
    """Take one training step."""
    model, optimizer, images, scalars = parts
    model(images, scalars).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def measure_memory(windows: int, frames: int, recompute: bool, architecture: str) -> None:
    """Report the resident peak of one step above the resident size before it."""
    keep_allocator_pages()
    step(build(1, 1, recompute, _name(architecture), 16))
    parts = build(windows, frames, recompute, _name(architecture), 1)
    before = resident_gib()
    reset_process_peak()
    started = time.perf_counter()
    step(parts)
    report_child(
        {
            "architecture": architecture,
            "windows": windows,
            "frames_per_checkpoint": frames or windows,
            "recompute": recompute,
            "activations_gib": process_peak_gib() - before,
            "first_step_seconds": time.perf_counter() - started,
        }
    )


def measure_time(windows: int, frames: int, architecture: str) -> None:
    """Report the seconds of a step in both forms, measured in turns."""
    keep_allocator_pages()
    forms = {
        name: build(windows, frames, name == "again", _name(architecture), 1)
        for name in ("kept", "again")
    }
    seconds = interleaved_seconds(
        {name: partial(step, parts) for name, parts in forms.items()}, repeats=REPEATS
    )
    kept, again = median(seconds["kept"]), median(seconds["again"])
    report_child(
        {
            "architecture": architecture,
            "windows": windows,
            "frames_per_checkpoint": frames or windows,
            "kept_seconds": kept,
            "again_seconds": again,
            "slower": again / kept,
        }
    )


def _name(text: str) -> ArchitectureName:
    names: tuple[ArchitectureName, ...] = ("transformer", "ssm", "gnn", "cnn")
    return next(name for name in names if name == text)


def main(windows: str = "4") -> None:
    """Measure memory and time, and print and write the results."""
    memory = [
        run_child(NAME, "memory", windows, frames, recompute, architecture)
        for architecture in ("transformer", "gnn")
        for frames, recompute in (("0", "0"), ("0", "1"), ("1", "1"))
    ]
    speed = [run_child(NAME, "time", windows, frames, "transformer") for frames in ("0", "1")]
    print_table(memory)
    print_table(speed)
    plain, again = (memory[i]["activations_gib"] for i in (0, 1))
    assert isinstance(plain, float)
    assert isinstance(again, float)
    print(f"activations kept {plain:.2f} GiB, computed again {again:.2f} GiB: {plain / again:.1f}x")
    write_results(NAME, {"memory": memory, "time": speed}, packages=["torch"])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["memory", windows, frames, recompute, architecture]:
            measure_memory(int(windows), int(frames), recompute == "1", architecture)
        case ["time", windows, frames, architecture]:
            measure_time(int(windows), int(frames), architecture)
        case arguments:
            main(*arguments)
