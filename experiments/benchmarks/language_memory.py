"""Training steps of `small_32k` at 32,768 tokens: the peak of memory beside the predicted one.

    python -m experiments.benchmarks.language_memory [preset]

Two optimizer steps by `clew train`'s own workflow: one window a step, 50,257 tokens in the
vocabulary, bfloat16 products, activations recomputed, AdamW; the second step holds the optimizer's
state throughout. `nano` at 4,096 tokens, with activations kept and recomputed, comes before it.
Random words stand for text. Each case has a process of its own; predicted and measured are the
run's `memory/predicted_gib` and `memory/process_peak_gib`, the whole process's.
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
    """Write a text of random words, long enough for some windows, and a tokenizer that has them."""
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
    """Train for two steps; report what was predicted and measured."""
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
    """Measure, print, write."""
    cases = [("nano", 4096, 0), ("nano", 4096, 1), (preset, 32_768, 1)]
    rows = [run_child(NAME, "child", *map(str, case)) for case in cases]
    print_table(rows)
    write_results(NAME, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]), bool(int(sys.argv[4])))
    else:
        main(*sys.argv[1:])
