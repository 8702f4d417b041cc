"""Measures the training speed of eigenstate layers and a transformer on short and long windows.

    python -m experiments.benchmarks.language_training [repeats]

The models are `nano` (10.1 million parameters) and a transformer of 10.7 million, with byte tokens,
bfloat16 products and AdamW. A step is a forward and a backward pass and an optimizer step, on 4,096
tokens or on one window if this is longer. The longest windows of the transformer have 4,096 tokens,
because its step on 32,768 tokens takes minutes. `products` repeats only the matrix products of one
step of `nano`, recorded with their sizes, strides and types: this is the rate that a step could
reach. No data set is needed. Each case runs in a new process, and its first step is not counted.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.loss import summed_loss
from clew.language_modeling.model import EigenstateLM
from clew.layers.products import products_in
from clew.training.memory import keep_allocator_pages
from clew.training.setup import count_parameters
from experiments.benchmarks.harness import (
    median,
    print_table,
    report_child,
    run_child,
    write_results,
)
from experiments.language_modeling.transformer import Transformer

NAME = "language_training"
VOCABULARY = 257
STEP_TOKENS = 4096
LONG = 32_768
CASES = (
    ("nano", 512, 8),
    ("products", 512, 8),
    ("transformer", 512, 8),
    ("nano", 4096, 4),
    ("transformer", 4096, 4),
    ("nano", LONG, 2),
)
"""Model, tokens per window, number of counted steps."""


PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_linear_pointwise"}


class RecordedProducts(TorchDispatchMode):
    """Records the matrix products that torch computes, and repeats them on random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, and record it if it is a product."""
        if operator.overloadpacket.__name__ in PRODUCTS:
            form = tree_map_only(Tensor, _same_form, (args, kwargs or {}))
            self._calls.append(partial(operator, *form[0], **form[1]))
        return operator(*args, **(kwargs or {}))

    def __len__(self) -> int:
        return len(self._calls)

    def again(self) -> None:
        """Run all recorded products again."""
        for call in self._calls:
            call()


def _same_form(tensor: Tensor) -> Tensor:
    with _disable_current_modes():
        form = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return form.normal_()


def build(name: str) -> EigenstateLM | Transformer:
    """Build the model of a case."""
    if name == "transformer":
        return Transformer(VOCABULARY)
    return EigenstateLM(VOCABULARY, EigenstateLMModel(preset="nano"))


def child(name: str, window: int, steps: int) -> None:
    """Train on random tokens, and report the seconds of each step."""
    keep_allocator_pages()
    torch.manual_seed(0)
    model = build(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = max(1, STEP_TOKENS // window)
    tokens = torch.randint(VOCABULARY, (batch, window + 1))
    step = partial(train_step, model, optimizer, tokens)
    if name == "products":
        with RecordedProducts() as products:
            step()
        assert len(products) > 0
        step = products.again
    seconds = []
    for _ in range(1 + steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    report_child(
        {
            "parameters": count_parameters(model),
            "seconds": seconds[1:],
            "tokens_per_second": batch * window / median(seconds[1:]),
        }
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    *,
    half: torch.dtype | None = torch.bfloat16,
    max_grad_norm: float | None = None,
) -> None:
    """Take one optimizer step on windows `(batch, window + 1)`."""
    assert isinstance(model.embedding, nn.Embedding)
    device = tokens.device
    with products_in(half, device):
        with torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            total = summed_loss(
                model(tokens[:, :-1]),
                model.embedding.weight,
                tokens[:, 1:].contiguous(),
                chunk_bytes=64 * 2**20,
            )
        (total / tokens[:, 1:].numel()).backward()
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main(repeats: int = 3) -> None:
    """Measure all cases, and print and write the results."""
    started = time.perf_counter()
    rows: list[dict[str, object]] = []
    for _ in range(repeats):
        for name, window, steps in CASES:
            found = run_child(NAME, "child", name, str(window), str(steps))
            rows.append(
                {
                    "model": name,
                    "window": window,
                    "parameters": found["parameters"],
                    "tokens_per_second": found["tokens_per_second"],
                    "process_peak_gib": found["process_peak_gib"],
                }
            )
    print_table(rows)
    figures = {
        f"{name}, windows of {window}, tokens/s": [
            float(str(row["tokens_per_second"]))
            for row in rows
            if (row["model"], row["window"]) == (name, window)
        ]
        for name, window, _ in CASES
    }
    write_results(NAME, {"cases": rows}, figures=figures)
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(*map(int, sys.argv[1:]))
