"""Bits per byte after the same tokens: `nano` and a transformer of its size, on Shakespeare.

    CLEW_DATA=... python -m experiments.benchmarks.language_quality [steps] [seed]

Configuration `experiments/language_modeling/nano.yaml` with fewer steps (1,000 of 2,048 tokens by
default): the same windows in the same order for both, AdamW, warm-up and cosine over these steps,
bfloat16 products. Each model has its own rate and dropout: `nano` those of its configuration, the
transformer those of nanoGPT's run on this text (.001, .2). Both are tested on the last tenth of
the text in windows of 512 tokens that share nothing, and `nano` also with its state carried
through. Data of `tinyshakespeare` under `$CLEW_DATA`.
"""

import math
import sys
import time

import torch

from clew.config.eigenstate import EigenstateLMModel
from clew.config.load import load
from clew.config.schema import RunConfig
from clew.data.loaders import iterate_batches
from clew.losses.language import token_losses
from clew.models.eigenstate_lm import EigenstateLM, count_parameters
from clew.tasks.language_modeling import LanguageModeling
from clew.training.memory import keep_allocator_pages
from clew.training.optimizer import build_optimizer, set_learning_rate
from clew.training.schedule import build_schedule
from clew.workflows.tasks import build_task
from experiments.benchmarks.harness import ROOT, median, print_table, write_results
from experiments.benchmarks.language_training import train_step
from experiments.language_modeling.transformer import Transformer

NAME = "language_quality"
CONFIGURATION = ROOT / "experiments/language_modeling/nano.yaml"
STEPS = 1000
TRANSFORMER_RATE, TRANSFORMER_DROPOUT = 1e-3, 0.2
EVALUATED_AT_ONCE = 32


def build(name: str, task: LanguageModeling) -> EigenstateLM | Transformer:
    """Build a model by name."""
    if name == "nano":
        return task.build_model()
    return Transformer(task.vocabulary_size, dropout=TRANSFORMER_DROPOUT)


def train(
    name: str, task: LanguageModeling, config: RunConfig, steps: int
) -> tuple[EigenstateLM | Transformer, float]:
    """Train; return the model and the median of tokens a second."""
    torch.manual_seed(config.training.seed)
    model = build(name, task).train()
    optimizer = build_optimizer(config.optimizer, model)
    peak = config.optimizer.learning_rate if name == "nano" else TRANSFORMER_RATE
    schedule = build_schedule(config.schedule, total_steps=steps, evaluation=config.evaluation)
    seconds: list[float] = []
    epoch = 0
    while len(seconds) < steps:
        for batch in iterate_batches(
            task.train_examples(),
            batch_size=config.training.batch_size,
            seed=config.training.seed,
            epoch=epoch,
        ):
            started = time.perf_counter()
            set_learning_rate(optimizer, peak * schedule.factor(step=len(seconds), epoch=epoch))
            train_step(model, optimizer, batch.tokens, max_grad_norm=config.training.max_grad_norm)
            seconds.append(time.perf_counter() - started)
            if len(seconds) % 50 == 0:
                done = len(seconds) / steps
                print(f"\r{name}: {done:.0%}", end="", file=sys.stderr, flush=True)
            if len(seconds) == steps:
                break
        epoch += 1
    print(file=sys.stderr)
    return model.eval(), batch.tokens[:, 1:].numel() / median(seconds)


@torch.no_grad()
def bits_per_byte(model: EigenstateLM | Transformer, task: LanguageModeling, window: int) -> float:
    """Return the loss on windows of the test text that share nothing, in bits a byte."""
    stream = torch.from_numpy(task.splits.windows["test"].stream.astype("int64"))
    whole = (len(stream) - 1) // window
    tokens = stream[: whole * window + 1].unfold(0, window + 1, window)
    total = 0.0
    for part in tokens.split(EVALUATED_AT_ONCE):
        hidden = model(part[:, :-1])
        losses = token_losses(hidden, model.embedding.weight, part[:, 1:].contiguous())
        total += float(losses.sum(dtype=torch.float64))
    return total / math.log(2) / task.splits.num_bytes(stream[1 : whole * window + 1].numpy())


def main(steps: int = STEPS, seed: int = 1) -> None:
    """Train both, test, print, write."""
    keep_allocator_pages()
    config = load(CONFIGURATION, {"training.seed": seed})
    task = build_task(config)
    assert isinstance(task, LanguageModeling)
    assert isinstance(config.model, EigenstateLMModel)
    window = config.model.max_seq_len
    rows: list[dict[str, object]] = []
    for name in ("nano", "transformer"):
        model, speed = train(name, task, config, steps)
        row = {
            "model": name,
            "parameters": count_parameters(model),
            "training_tokens": steps * config.training.batch_size * window,
            "test_bits_per_byte": bits_per_byte(model, task, window),
            "tokens_per_second": speed,
        }
        if isinstance(model, EigenstateLM):
            carried = task.metrics(model, "test", torch.device("cpu"))["test/bits_per_byte"]
            row["test_bits_per_byte_state_carried"] = carried
        rows.append(row)
        print_table([row])
    print(write_results(NAME, {"seed": seed, "models": rows}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
