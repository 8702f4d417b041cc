"""Compares the chunked scan with sequential loops over 32,768 steps, forward and backward.

    python -m experiments.benchmarks.language_scan [repeats]

Three ways compute the same states and gradients: the chunked scan, a Python loop with autograd, and
the same loop in TorchScript. Sizes are those of a layer of `nano` (64 eigenstates) and of
`small_32k` (128), with batch size 1 and complex64. The benchmark also measures the scan's share of
a training step of `small_32k`'s layers (one block, bfloat16 products, forward and backward), and
the memory that the scan needs beyond its inputs at increasing lengths.
"""

import functools
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from clew.config.eigenstate import EigenstateLMModel
from clew.layers.eigenstate import EigenstateBlock
from clew.layers.scan import DEFAULT_CHUNK_SIZE, scan, scan_by_loop
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

NAME = "language_scan"
TIME = 32_768
GIB = 1024**3


@torch.jit.script
def scripted_loop(inputs: Tensor, eigenvalues: Tensor) -> Tensor:
    """Return the same states as `scan`, by a TorchScript loop over complex numbers."""
    state = torch.zeros_like(inputs[:, 0])
    states: list[Tensor] = []
    for step in inputs.unbind(1):
        state = eigenvalues * state + step
        states.append(state)
    return torch.stack(states, 1)


def problem(num_states: int, time_steps: int = TIME) -> tuple[Tensor, Tensor]:
    """Return inputs `(1, time, state, 2)` and eigenvalues `(1, state, 2)`, with gradients."""
    modulus = 1 - torch.logspace(-4.5, 0, num_states)
    eigenvalues = torch.view_as_real(torch.polar(modulus, torch.rand(num_states))).unsqueeze(0)
    inputs = torch.randn(1, time_steps, num_states, 2)
    return inputs.requires_grad_(), eigenvalues.requires_grad_()


def chunked(inputs: Tensor, eigenvalues: Tensor) -> Tensor:
    """Scan in chunks."""
    return scan(inputs, eigenvalues, chunk_size=DEFAULT_CHUNK_SIZE)


def scripted(inputs: Tensor, eigenvalues: Tensor) -> Tensor:
    """Loop in TorchScript."""
    states = scripted_loop(torch.view_as_complex(inputs), torch.view_as_complex(eigenvalues))
    return torch.view_as_real(states)


def forward_and_backward(
    function: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, eigenvalues: Tensor
) -> None:
    """Run the forward and the backward pass of a scan."""
    states = function(inputs, eigenvalues)
    torch.autograd.grad(states, (inputs, eigenvalues), torch.ones_like(states))


def compare_speed(repeats: int) -> list[dict[str, object]]:
    """Time the three ways in turns."""
    rows: list[dict[str, object]] = []
    ways = {"chunked scan": chunked, "TorchScript loop": scripted, "Python loop": scan_by_loop}
    for num_states in (64, 128):
        tensors = problem(num_states)
        calls = {
            name: functools.partial(forward_and_backward, way, *tensors)
            for name, way in ways.items()
        }
        seconds = interleaved_seconds(calls, repeats=repeats)
        fastest = median(seconds["chunked scan"])
        rows += [
            {
                "eigenstates": num_states,
                "way": name,
                "milliseconds": 1e3 * median(values),
                "times the scan": median(values) / fastest,
            }
            for name, values in seconds.items()
        ]
    return rows


def share_of_step(repeats: int) -> dict[str, object]:
    """Return the scan's share of a block of `small_32k` at 32,768 tokens."""
    config = EigenstateLMModel(preset="small_32k")
    block = EigenstateBlock(config)
    x = torch.randn(1, TIME, config.d_model, requires_grad=True)
    inputs, eigenvalues = problem(config.num_eigenstates)

    def whole_block() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = block(x)[0]
        out.backward(torch.ones_like(out))
        block.zero_grad()
        x.grad = None

    def scan_alone() -> None:
        with torch.no_grad():
            given = (inputs.detach().requires_grad_(), eigenvalues.detach().requires_grad_())
        forward_and_backward(lambda a, b: scan(a, b, chunk_size=config.chunk_size), *given)

    seconds = interleaved_seconds({"block": whole_block, "scan": scan_alone}, repeats=repeats)
    step, alone = median(seconds["block"]), median(seconds["scan"])
    return {"block_seconds": step, "scan_seconds": alone, "share": alone / step}


def memory_child(time_steps: int, num_states: int = 128) -> None:
    """Report the memory of a forward and backward scan beyond its inputs and gradient."""
    inputs, eigenvalues = problem(num_states, time_steps)
    gradient = torch.ones_like(inputs)
    forward_and_backward(chunked, *problem(num_states, 256))
    before = resident_gib()
    reset_process_peak()
    states = chunked(inputs, eigenvalues)
    forward = process_peak_gib() - before
    torch.autograd.grad(states, (inputs, eigenvalues), gradient)
    output = states.numel() * states.element_size() / GIB
    both = process_peak_gib() - before
    report_child({"output_gib": output, "forward_gib": forward, "forward_backward_gib": both})


def compare_memory() -> list[dict[str, object]]:
    """Measure the memory of the scan at increasing lengths, each in a new process."""
    rows: list[dict[str, object]] = []
    for time_steps in (TIME, 4 * TIME, 16 * TIME):
        found = run_child(NAME, "memory", str(time_steps))
        output = float(str(found["output_gib"]))
        forward = float(str(found["forward_gib"])) / output
        both = float(str(found["forward_backward_gib"])) / output
        rows.append(
            {
                "steps": time_steps,
                "output_gib": output,
                "forward / output": forward,
                "forward and backward / output": both,
            }
        )
    return rows


def main(repeats: int = 5) -> None:
    """Measure everything, and print and write the results."""
    started = time.perf_counter()
    keep_allocator_pages()
    memory = compare_memory()
    share = share_of_step(repeats)
    speed = compare_speed(repeats)
    print_table(speed)
    print_table([share])
    print_table(memory)
    results = {"speed": speed, "share_of_step": share, "memory": memory}
    write_results(NAME, results)
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory_child(int(sys.argv[2]))
    else:
        main(*map(int, sys.argv[1:]))
