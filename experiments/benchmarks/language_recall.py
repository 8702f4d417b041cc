"""Delayed recall: one symbol, a long stretch of noise, a question; how far does memory reach?

    python -m experiments.benchmarks.language_recall [steps]

A sequence is one of eight symbols, noise over four others, and a query token; the model must name
the symbol. It is trained on distances from 16 to 30,000, log-uniform, and tested at fixed ones.
Two models differ in nothing but their initial time constants: log-uniform up to the window of
32,768 tokens, or up to 64 tokens, the memory of layers whose |lambda| is kept below .985.
Chance is .125.
"""

import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.models.eigenstate_lm import EigenstateLM
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import print_table, write_results

NAME = "language_recall"
NUM_SYMBOLS, NUM_NOISE = 8, 4
QUERY = NUM_SYMBOLS + NUM_NOISE
DISTANCES = (16, 64, 256, 1024, 4096, 16_384, 30_000)
BATCH_TOKENS = 65_536
TESTS = 64


def sequences(distance: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return sequences `(batch, distance + 1)` and the symbols asked for `(batch,)`."""
    noise = torch.randint(
        NUM_SYMBOLS, NUM_SYMBOLS + NUM_NOISE, (batch, distance + 1), generator=generator
    )
    symbols = torch.randint(NUM_SYMBOLS, (batch,), generator=generator)
    noise[:, 0], noise[:, -1] = symbols, QUERY
    return noise, symbols


def answers(model: EigenstateLM, tokens: Tensor) -> Tensor:
    """Return the logits of the answer to each query, `(batch, token)`."""
    logits: Tensor = model.logits(model(tokens)[:, -1:])[:, 0]
    return logits


def train(longest_constant: int, steps: int) -> EigenstateLM:
    """Train on distances drawn log-uniformly."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    config = EigenstateLMModel(
        d_model=32, n_layers=2, num_eigenstates=32, max_seq_len=longest_constant, chunk_size=64
    )
    model = EigenstateLM(QUERY + 1, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    shortest, longest = DISTANCES[0], DISTANCES[-1]
    for _ in range(steps):
        share = torch.rand((), generator=generator).item()
        distance = round(shortest * (longest / shortest) ** share)
        batch = min(64, max(2, BATCH_TOKENS // distance))
        tokens, symbols = sequences(distance, batch, generator)
        F.cross_entropy(answers(model, tokens), symbols).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model.eval()


@torch.no_grad()
def accuracy(model: EigenstateLM, distance: int) -> float:
    """Return the share of symbols recalled over a distance."""
    generator = torch.Generator().manual_seed(distance)
    right = 0
    for _ in range(TESTS // 8):
        tokens, symbols = sequences(distance, 8, generator)
        right += int((answers(model, tokens).argmax(-1) == symbols).sum())
    return right / TESTS


def main(steps: int = 400) -> None:
    """Train both, print, write."""
    started = time.perf_counter()
    keep_allocator_pages()
    rows: list[dict[str, Any]] = []
    for constant in (32_768, 64):
        model = train(constant, steps)
        found = {f"at {distance:,}": accuracy(model, distance) for distance in DISTANCES}
        rows.append({"longest initial time constant": constant, **found})
    print_table(rows)
    print(f"{write_results(NAME, rows)}, {time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
