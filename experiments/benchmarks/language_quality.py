"""Compares the bits per byte of fixed and gated eigenstate layers and of a transformer.

    CLEW_DATA=... python -m experiments.benchmarks.language_quality DOCUMENTATION

There are two texts: Shakespeare's plays (the last tenth is the test split, the tenth before it the
validation split) and the folder that `python -m experiments.language_modeling.documentation` wrote.
Tokens are bytes, a step has four windows of 256, and training uses float32, AdamW with a warm-up
and cosine schedule, and one thread. The models have about 0.7 million parameters, so that many
runs fit into an hour: the blocks of `nano` at a quarter of its width.

All models are tuned in the same way. Each has the same number of trials from the same grid of
learning rates and weight decays, each for the same processor time, with seed 0. The trial with the
lowest validation loss is selected. Then seeds 1 to 3 train with its settings, once for the same
time and once for the same number of tokens, and are tested. Processor time includes only training.
Finished runs are saved in `runs/language_quality`.
"""

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clew.config.eigenstate import EigenstateLMModel
from clew.files import write_whole
from clew.influence.outcomes import measured
from clew.language_modeling.model import EigenstateLM
from clew.training.memory import keep_allocator_pages
from clew.training.setup import count_parameters
from experiments.benchmarks.harness import SHORT_COMMIT, print_table, write_results
from experiments.language_modeling.transformer import Transformer

NAME = "language_quality"
KEPT = Path("runs") / NAME
END_OF_TEXT, VOCABULARY = 256, 257
WINDOW, BATCH = 256, 4
TRAINING_SECONDS, TRAINING_TOKENS = 60.0, 400_000
WARM_UP = 0.05
RATES, DECAYS = (0.001, 0.003, 0.009), (0.1, 1.0)
TUNING_SEED, SEEDS = 0, (1, 2, 3)
EVALUATED_BYTES, EVALUATED_AT_ONCE = 262_144, 32
Model = EigenstateLM | Transformer
Split = Literal["train", "valid", "test"]
Row = dict[str, Any]


def eigenstate_layers(transition: Literal["fixed", "gated"]) -> EigenstateLM:
    """Build a model with `nano`'s blocks at a quarter of its width."""
    config = EigenstateLMModel(
        d_model=128,
        n_layers=4,
        num_eigenstates=32,
        num_gates=128,
        max_seq_len=WINDOW,
        longest_time_constant=16,
        convolution_width=4,
        transition=transition,
    )
    return EigenstateLM(VOCABULARY, config)


MODELS: dict[str, Callable[[], Model]] = {
    "fixed": lambda: eigenstate_layers("fixed"),
    "gated": lambda: eigenstate_layers("gated"),
    "transformer": lambda: Transformer(VOCABULARY, dim=128, num_layers=4, num_heads=4),
}


@dataclass(frozen=True)
class Cell:
    """One training: its text, its model, its settings and how it ends."""

    text: str
    model: str
    rate: float
    decay: float
    seed: int
    ends_by: Literal["seconds", "tokens"]

    @property
    def name(self) -> str:
        """Name of the cell in its result file's name."""
        return "-".join(str(value) for value in asdict(self).values())


def plays() -> dict[Split, Tensor]:
    """Return the splits of Shakespeare's plays by position, `(token,)` each."""
    file = Path(os.environ["CLEW_DATA"]) / "tinyshakespeare" / "input.txt"
    tokens = torch.from_numpy(np.fromfile(file, dtype=np.uint8).astype(np.int64))
    tenth = len(tokens) // 10
    return {
        "train": tokens[: -2 * tenth],
        "valid": tokens[-2 * tenth : -tenth],
        "test": tokens[-tenth:],
    }


def documentation(folder: Path) -> dict[Split, Tensor]:
    """Return the documents of each split, `(token,)`, with an end-of-text token after each."""
    splits: dict[Split, Tensor] = {}
    names: tuple[Split, ...] = ("train", "valid", "test")
    for split in names:
        parts: list[np.ndarray] = []
        for file in sorted((folder / split).iterdir()):
            parts += [np.fromfile(file, dtype=np.uint8).astype(np.int16), np.array([END_OF_TEXT])]
        splits[split] = torch.from_numpy(np.concatenate(parts, dtype=np.int64))
    return splits


def batches(tokens: Tensor, seed: int) -> Iterator[Tensor]:
    """Yield windows `(batch, WINDOW + 1)` at random positions, the same for each model."""
    generator = torch.Generator().manual_seed(seed)
    windows = tokens.unfold(0, WINDOW + 1, 1)
    while True:
        yield windows[torch.randint(len(windows), (BATCH,), generator=generator)]


def losses(model: Model, windows: Tensor) -> Tensor:
    """Return the loss of each token, `(window * time,)`, in nats."""
    logits = model(windows[:, :-1]) @ model.embedding.weight.T
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")


def train(cell: Cell, tokens: Tensor) -> tuple[Model, int, float]:
    """Return the trained model, the number of its training tokens and its processor seconds."""
    torch.manual_seed(cell.seed)
    model = MODELS[cell.model]().train()
    plain = {id(parameter) for parameter in model.parameters_without_decay()}
    decayed = [p for p in model.parameters() if id(p) not in plain]
    groups = [
        {"params": decayed, "weight_decay": cell.decay},
        {"params": model.parameters_without_decay(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=cell.rate, betas=(0.9, 0.99), fused=True)
    began, seen, progress = time.process_time(), 0, 0.0
    for windows in batches(tokens, cell.seed):
        factor = min(progress / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = cell.rate * factor
        losses(model, windows).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += BATCH * WINDOW
        seconds = time.process_time() - began
        progress = (
            seconds / TRAINING_SECONDS if cell.ends_by == "seconds" else seen / TRAINING_TOKENS
        )
        if progress >= 1:
            return model.eval(), seen, seconds
    raise AssertionError("batches never end")


@torch.no_grad()
def bits_per_byte(model: Model, tokens: Tensor) -> float:
    """Return the loss on windows without overlap, in bits per byte of text."""
    windows = tokens[:EVALUATED_BYTES].unfold(0, WINDOW + 1, WINDOW)
    parts = torch.split(windows, EVALUATED_AT_ONCE)
    total = math.fsum(float(losses(model, part).sum()) for part in parts)
    return total / math.log(2) / int((windows[:, 1:] != END_OF_TEXT).sum())


def run(cell: Cell, text: dict[Split, Tensor], measured: Split) -> Row:
    """Train and measure a cell, or return the saved result of this commit if there is one."""
    kept = KEPT / f"{cell.name}-{measured}-{SHORT_COMMIT}.json"
    if kept.is_file():
        found: Row = json.loads(kept.read_text(encoding="utf-8"))
        return found
    model, seen, seconds = train(cell, text["train"])
    row = asdict(cell) | {
        "parameters": count_parameters(model),
        "training_tokens": seen,
        "training_seconds": seconds,
        f"{measured}_bits_per_byte": bits_per_byte(model, text[measured]),
    }
    write_whole(kept, json.dumps(row))
    print(row, flush=True)
    return row


def tuned(text: str, splits: dict[Split, Tensor]) -> tuple[list[Row], Row]:
    """Return all trials on a text, and each model's best trial by validation."""
    trials = [
        run(Cell(text, model, rate, decay, TUNING_SEED, "seconds"), splits, "valid")
        for rate, decay, model in itertools.product(RATES, DECAYS, MODELS)
    ]
    best = {
        model: min(
            (trial for trial in trials if trial["model"] == model),
            key=lambda trial: float(trial["valid_bits_per_byte"]),
        )
        for model in MODELS
    }
    return trials, best


def compared(text: str, splits: dict[Split, Tensor], best: Row) -> tuple[list[Row], list[Row]]:
    """Return the tested runs, and each model's mean with its lead over the transformer."""
    rows = [
        run(Cell(text, model, found["rate"], found["decay"], seed, ends_by), splits, "test")
        for seed in SEEDS
        for ends_by in ("seconds", "tokens")
        for model, found in best.items()
    ]
    summary = []
    for ends_by, model in itertools.product(("seconds", "tokens"), MODELS):
        own, others = (
            np.array(
                [
                    row["test_bits_per_byte"]
                    for row in rows
                    if (row["ends_by"], row["model"]) == (ends_by, name)
                ]
            )
            for name in (model, "transformer")
        )
        mean, lead = measured(own), measured(others - own)
        summary.append(
            {
                "text": text,
                "ends_by": ends_by,
                "model": model,
                "test_bits_per_byte": mean.mean,
                "±": mean.half_width,
                "below_transformer": lead.mean,
                "± of that": lead.half_width,
            }
        )
    return rows, summary


def main(folder: str) -> None:
    """Tune, train and test all models, and print and write the results."""
    torch.set_num_threads(1)
    keep_allocator_pages()
    KEPT.mkdir(parents=True, exist_ok=True)
    trials: list[Row] = []
    tests: list[Row] = []
    summary: list[Row] = []
    for text, splits in {"plays": plays(), "documentation": documentation(Path(folder))}.items():
        tried, best = tuned(text, splits)
        rows, means = compared(text, splits, best)
        trials, tests, summary = trials + tried, tests + rows, summary + means
    print_table(summary)
    write_results(NAME, {"summary": summary, "tests": tests, "trials": trials}, packages=["torch"])


if __name__ == "__main__":
    main(sys.argv[1])
