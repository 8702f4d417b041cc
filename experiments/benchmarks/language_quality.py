"""Bits per byte after the same tokens: `nano` and a transformer of its size, on Shakespeare.

    CLEW_DATA=... python -m experiments.benchmarks.language_quality [steps] [seed]

Configuration `experiments/language_modeling/nano.yaml` with fewer steps (1,000 of 1,024 tokens by
default): the same windows in the same order for both, AdamW, warm-up and cosine over these steps,
bfloat16 products, the next token alone, no average of the parameters. Each model has its own rate,
decay and dropout: `nano` those of its configuration, the transformer those of nanoGPT's run on this
text (.001, .1, .2). Both are tested on the last tenth of the text in windows of 512 tokens that
share nothing, also on the way. Data of `tinyshakespeare` under `$CLEW_DATA`.
"""

import math
import sys
import time
from dataclasses import dataclass

import torch

from clew.config.load import load
from clew.config.schema import RunConfig
from clew.config.training import TrainingConfig
from clew.language_modeling.loss import token_losses
from clew.language_modeling.model import EigenstateLM
from clew.language_modeling.task import LanguageModeling
from clew.training.loaders import BatchLoader
from clew.training.memory import keep_allocator_pages
from clew.training.optimizer import build_optimizer
from clew.training.schedule import build_schedule
from clew.training.setup import count_parameters
from clew.workflows.tasks import build_task
from experiments.benchmarks.harness import ROOT, median, print_table, write_results
from experiments.benchmarks.language_training import train_step
from experiments.language_modeling.transformer import Transformer

NAME = "language_quality"
CONFIGURATION = ROOT / "experiments/language_modeling/nano.yaml"
STEPS, STEPS_BETWEEN_TESTS = 1000, 125
TRANSFORMER_RATE, TRANSFORMER_DECAY, TRANSFORMER_DROPOUT = 1e-3, 0.1, 0.2
EVALUATED_AT_ONCE = 32


def build(name: str, task: LanguageModeling) -> EigenstateLM | Transformer:
    """Build a model by name."""
    if name == "nano":
        return task.build_model()
    return Transformer(task.vocabulary_size, dropout=TRANSFORMER_DROPOUT)


@dataclass(frozen=True)
class Trained:
    """A model, how fast it was trained, and how it did on the way."""

    model: EigenstateLM | Transformer
    tokens_per_second: float
    curve: dict[int, float]
    """Training tokens seen to bits per byte on the test text."""


def train(name: str, task: LanguageModeling, config: RunConfig, steps: int) -> Trained:
    """Train, with a test every `STEPS_BETWEEN_TESTS` steps."""
    torch.manual_seed(config.training.seed)
    model = build(name, task).train()
    own = {"learning_rate": TRANSFORMER_RATE, "weight_decay": TRANSFORMER_DECAY}
    settings = config.optimizer.model_copy(update={} if name == "nano" else own)
    optimizer, peak = build_optimizer(settings, model), settings.learning_rate
    schedule = build_schedule(config.schedule, total_steps=steps, evaluation=config.evaluation)
    seconds: list[float] = []
    step_tokens = config.training.batch_size * task.train_examples().length
    curve: dict[int, float] = {}
    order = TrainingConfig(batch_size=config.training.batch_size, seed=config.training.seed)
    loader = BatchLoader(task.train_examples(), order)
    epoch = 0
    while len(seconds) < steps:
        for batch in loader.epoch(epoch):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = peak * schedule.factor(step=len(seconds), epoch=epoch)
            train_step(model, optimizer, batch.tokens, max_grad_norm=config.training.max_grad_norm)
            seconds.append(time.perf_counter() - started)
            if len(seconds) % STEPS_BETWEEN_TESTS == 0 or len(seconds) == steps:
                found = bits_per_byte(model.eval(), task)
                model.train()
                curve[len(seconds) * step_tokens] = found
                print(f"{name}: {len(seconds) / steps:.0%}, {found:.3f} bits a byte", flush=True)
            if len(seconds) == steps:
                break
        epoch += 1
    return Trained(model.eval(), step_tokens / median(seconds), curve)


@torch.no_grad()
def bits_per_byte(model: EigenstateLM | Transformer, task: LanguageModeling) -> float:
    """Return the loss on windows of the test text that share nothing, in bits a byte."""
    window = task.train_examples().length
    test = task.splits.windows["test"]
    stream = torch.from_numpy(test.stream.astype("int64"))
    whole = (len(stream) - 1) // window
    tokens = stream[: whole * window + 1].unfold(0, window + 1, window)
    total = 0.0
    for part in tokens.split(EVALUATED_AT_ONCE):
        hidden = model(part[:, :-1])
        losses = token_losses(hidden, model.embedding.weight, part[:, 1:].contiguous())
        total += float(losses.sum(dtype=torch.float64))
    num_bytes = task.splits.num_bytes(test.start + 1, test.start + 1 + whole * window)
    return total / math.log(2) / num_bytes


def main(steps: int = STEPS, seed: int = 1) -> None:
    """Train both, test, print, write."""
    keep_allocator_pages()
    config = load(CONFIGURATION, {"training.seed": seed, "model.further_tokens": 0})
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    rows: list[dict[str, object]] = []
    for name in ("nano", "transformer"):
        trained = train(name, task, config, steps)
        row: dict[str, object] = {
            "model": name,
            "parameters": count_parameters(trained.model),
            "training_tokens": max(trained.curve),
            "test_bits_per_byte": trained.curve[max(trained.curve)],
            "best_bits_per_byte": min(trained.curve.values()),
            "tokens_per_second": trained.tokens_per_second,
        }
        print_table([row])
        rows.append({**row, "curve": trained.curve})
    write_results(NAME, {"seed": seed, "models": rows})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
