"""Compares the predicted and the measured memory peak of training `small_32k` on 32,768 tokens.

    python -m experiments.benchmarks.language_memory [preset]

Each case runs two optimizer steps in the workflow of `clew train`: one window per step, a
vocabulary of 50,257 tokens, bfloat16 products, recomputed activations and AdamW. The optimizer's
state exists during the whole second step. `nano` with 4,096 tokens is measured first, with
activations kept and recomputed. The text consists of random words. Each case runs in a new process.
The predicted and the measured peak are the run's `memory/predicted_gib` and
`memory/process_peak_gib`, both for the whole process.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.harness import print_table, report_child, run_child, write_results

NAME = "language_memory"
VOCABULARY = 50_257
STEPS = 2


def write_text(folder: Path, window: int) -> tuple[Path, Path]:
    """Write a text of random words, long enough for a few windows, and a tokenizer for it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = ["<|endoftext|>", *(f"w{number}" for number in range(1, VOCABULARY))]
    tokenizer = Tokenizer(WordLevel(dict(zip(words, range(VOCABULARY), strict=True)), words[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer_path, text_path = folder / "tokenizer.json", folder / "text.txt"
    tokenizer.save(str(tokenizer_path))
    chosen = np.random.default_rng(0).integers(1, VOCABULARY, 5 * window)
    text_path.write_text(" ".join(words[number] for number in chosen), encoding="utf-8")
    return text_path, tokenizer_path


def configuration(preset: str, window: int, recompute: bool, folder: Path) -> dict[str, Any]:
    """Return the settings of a case as a nested mapping."""
    text, tokenizer = write_text(folder, window)
    return {
        "data": {
            "kind": "tokens",
            "dataset": str(text),
            "packed": str(folder / "packed"),
            "tokenizer": str(tokenizer),
        },
        "model": {"kind": "eigenstate_lm", "preset": preset, "max_seq_len": window},
        "loss": {"kind": "language"},
        "optimizer": {"kind": "adamw"},
        "training": {
            "max_steps": STEPS,
            "batch_size": 1,
            "gradient_accumulation": 1,
            "checkpoint_frequency": 0,
        },
        "optimizations": {
            "use_mixed_precision": True,
            "use_gradient_checkpointing": recompute,
        },
        "evaluation": {"enabled": False, "metric": "valid/loss"},
        "tracking": {"log_checkpoints": False},
    }


def child(preset: str, window: int, recompute: bool) -> None:
    """Train for two steps, and report the predicted and the measured peak."""
    from clew import names
    from clew.config.load import from_mapping
    from clew.training.trainer import Trainer
    from clew.workflows.train import train

    losses: list[float] = []
    log = Trainer._log

    def spy(trainer: Trainer[Any], total: float, count: float, *rest: Any) -> None:
        losses.append(total / count)
        log(trainer, total, count, *rest)

    Trainer._log = spy  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="clew-language-") as name:
        folder = Path(name)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        metrics = train(from_mapping(configuration(preset, window, recompute, folder))).metrics
    measured, predicted = metrics[names.PROCESS_PEAK_GIB], metrics[names.PREDICTED_GIB]
    report_child(
        {
            "preset": preset,
            "tokens": window,
            "recompute": recompute,
            "predicted_gib": predicted,
            "measured_gib": measured,
            "error": predicted / measured - 1.0,
            "losses": losses,
        }
    )


def main(preset: str = "small_32k") -> None:
    """Measure all cases, and print and write the results."""
    cases = [("nano", 4096, 0), ("nano", 4096, 1), (preset, 32_768, 1)]
    rows = [run_child(NAME, "child", *map(str, case)) for case in cases]
    print_table(rows)
    write_results(NAME, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]), bool(int(sys.argv[4])))
    else:
        main(*sys.argv[1:])
