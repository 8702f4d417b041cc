"""A real training step of `small_32k` at 32,768 tokens: its peak memory beside the predicted one.

    python -m experiments.benchmarks.language_memory [preset]

Batch 1, 50,257 tokens in the vocabulary, bfloat16 products, activations recomputed, AdamW; one
forward and backward pass and one optimizer step on random tokens, in a process of its own.
`nano` at 4,096 tokens, with activations kept and recomputed, comes before it.
"""

import sys
import time

import torch

from clew.config.eigenstate import EigenstateLMModel, PresetName
from clew.models.eigenstate_lm import EigenstateLM, count_parameters
from clew.models.memory_budget import predict_memory
from clew.tracking.hardware import process_peak_gib, reset_process_peak
from clew.training.memory import keep_allocator_pages
from experiments.benchmarks.harness import (
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)
from experiments.benchmarks.language_training import train_step

NAME = "language_memory"
VOCABULARY = 50_257


def child(preset: PresetName, batch_tokens: int, recompute: bool) -> None:
    """Take one step; report seconds, loss, measured and predicted memory."""
    keep_allocator_pages()
    warm = EigenstateLM(8, EigenstateLMModel(d_model=8, num_eigenstates=8, n_layers=1))
    train_step(warm, torch.optim.AdamW(warm.parameters(), fused=True), torch.ones(1, 9).long())
    before = resident_gib()
    reset_process_peak()
    torch.manual_seed(0)
    config = EigenstateLMModel(preset=preset)
    model = EigenstateLM(VOCABULARY, config).train()
    if recompute:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(VOCABULARY, (1, batch_tokens + 1))
    started = time.perf_counter()
    train_step(model, optimizer, tokens)
    seconds = time.perf_counter() - started
    budget = predict_memory(
        config,
        num_parameters=count_parameters(model),
        vocabulary_size=VOCABULARY,
        batch_tokens=batch_tokens,
        recompute=recompute,
    )
    measured = process_peak_gib() - before
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    report_child(
        {
            "preset": preset,
            "tokens": batch_tokens,
            "recompute": recompute,
            "parameters": count_parameters(model),
            "seconds": seconds,
            "measured_gib": measured,
            "predicted_gib": budget.total_gib,
            "predicted_state_gib": budget.state_gib,
            "predicted_kept_gib": budget.kept_gib,
            "predicted_live_gib": budget.live_gib,
            "finite": finite,
        }
    )


def main(preset: str = "small_32k") -> None:
    """Measure, print, write."""
    cases = [("nano", 4096, 0), ("nano", 4096, 1), (preset, 32_768, 1)]
    rows = [run_child(NAME, "child", *map(str, case)) for case in cases]
    print_table(rows)
    print(write_results(NAME, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        name = sys.argv[2]
        assert name in ("nano", "small_32k", "medium_32k", "large_32k")
        child(name, int(sys.argv[3]), bool(int(sys.argv[4])))
    else:
        main(*sys.argv[1:])
