"""Measures delayed recall: how far back can a model remember one symbol before a lot of noise?

    python -m experiments.benchmarks.language_recall [steps]

A sequence starts with one of eight symbols. Noise over four other symbols follows, with a query in
its place at the distances 16, 32, 64 and so on up to 30,000. At each query the model must predict
the first symbol. Training starts with distance 16. When nine of ten answers at the longest distance
are right, the next longer distance is added. Three models differ only in their memory: initial time
constants are log-uniform up to 32,768 tokens; up to 64, which is the memory of layers with |lambda|
below 0.985; or up to 32,768 with gated transitions. All models are tested on every distance,
including those that they were not trained on. Chance is 0.125.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.model import EigenstateLM
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import print_table, write_results

NAME = "language_recall"
STEPS = 1000
NUM_SYMBOLS, NUM_NOISE = 8, 4
QUERY = NUM_SYMBOLS + NUM_NOISE
DISTANCES = (*(16 * 2**i for i in range(11)), 30_000)
STEP_TOKENS, LARGEST_BATCH, SMALLEST_BATCH = 32_768, 128, 8
LEARNED = 0.9
MODELS: dict[str, dict[str, Any]] = {
    "constants up to 32,768": {"longest_time_constant": 32_768},
    "constants up to 64": {"longest_time_constant": 64},
    "gated": {"longest_time_constant": 32_768, "transition": "gated"},
}
LEARNING_RATE, WARM_UP_STEPS = 0.005, 20
TESTS, TESTED_AT_ONCE = 128, 16


@dataclass(frozen=True)
class Recall:
    """Sequences `(batch, longest + 1)`, their symbols `(batch,)` and the queries' positions."""

    tokens: Tensor
    symbols: Tensor
    queries: Tensor


def sequences(longest: int, batch: int, generator: torch.Generator) -> Recall:
    """Draw random sequences with a query at every distance up to `longest`."""
    tokens = torch.randint(
        NUM_SYMBOLS, NUM_SYMBOLS + NUM_NOISE, (batch, longest + 1), generator=generator
    )
    symbols = torch.randint(NUM_SYMBOLS, (batch,), generator=generator)
    queries = torch.tensor([distance for distance in DISTANCES if distance <= longest])
    tokens[:, 0], tokens[:, queries] = symbols, QUERY
    return Recall(tokens, symbols, queries)


def answers(model: EigenstateLM, recall: Recall) -> Tensor:
    """Return the logits of the answers, `(batch, query, token)`."""
    return model.logits(model(recall.tokens)[:, recall.queries])


@dataclass(frozen=True)
class Trained:
    """A trained model, and the number of steps that each distance took to learn."""

    model: EigenstateLM
    steps_by_distance: dict[int, int]


def train(memory: dict[str, Any], steps: int) -> Trained:
    """Train a model, and add the next longer distance each time the longest is learned."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    config = EigenstateLMModel(
        d_model=32,
        n_layers=2,
        num_eigenstates=32,
        chunk_size=64,
        **memory,
    )
    model = EigenstateLM(QUERY + 1, config).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    learned: dict[int, int] = {}
    level, right, since = 0, 0.0, 0
    for step in range(steps):
        factor = min(1.0, (step + 1) / WARM_UP_STEPS, 4 * (steps - step) / steps)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * factor
        longest = DISTANCES[level]
        batch = max(SMALLEST_BATCH, min(LARGEST_BATCH, STEP_TOKENS // longest))
        recall = sequences(longest, batch, generator)
        logits = answers(model, recall)
        wanted = recall.symbols.repeat_interleave(len(recall.queries))
        F.cross_entropy(logits.flatten(0, 1), wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found = (logits.detach()[:, -1].argmax(-1) == recall.symbols).float().mean()
        right = 0.8 * right + 0.2 * float(found)
        if right >= LEARNED and longest not in learned:
            learned[longest] = step + 1 - since
            print(f"{longest:,} learned after {step + 1} steps", flush=True)
            if longest < DISTANCES[-1]:
                level, right, since = level + 1, 0.0, step + 1
    return Trained(model.eval(), learned)


@torch.no_grad()
def accuracy(model: EigenstateLM) -> dict[int, float]:
    """Return the share of symbols that are recalled at each distance."""
    generator = torch.Generator().manual_seed(2)
    right = torch.zeros(len(DISTANCES))
    for _ in range(TESTS // TESTED_AT_ONCE):
        recall = sequences(DISTANCES[-1], TESTED_AT_ONCE, generator)
        right += (answers(model, recall).argmax(-1) == recall.symbols[:, None]).sum(0)
    return dict(zip(DISTANCES, (right / TESTS).tolist(), strict=True))


def main(steps: int = STEPS) -> None:
    """Train and test all models, and print and write the results."""
    keep_allocator_pages()
    rows: list[dict[str, Any]] = []
    for name, memory in MODELS.items():
        trained = train(memory, steps)
        found = {f"{distance:,}": share for distance, share in accuracy(trained.model).items()}
        row = {"model": name}
        rows.append({**row, "steps_by_distance": trained.steps_by_distance, "recalled": found})
        print_table([{**row, **found}])
    write_results(NAME, {"steps": steps, "chance": 1 / NUM_SYMBOLS, "models": rows})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
