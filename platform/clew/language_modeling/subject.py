"""Text as a subject: requests are prompts, answers are the texts that follow."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from clew import names
from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.language_modeling.model import Sampling
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.text_batch import TextBatch
from clew.language_modeling.tokens import load_tokens
from clew.language_modeling.writer import load_text_folder
from clew.subject import Forms, Row, Settings, Subject
from clew.training.checkpoints import copy_weights

NUM_PROMPTS, PROMPT_TOKENS = 4, 32
"""Number of prompts that a candidate must continue before it is promoted, and their length."""
COUNTED_TOKENS = 10_000_000
"""Most tokens of a text whose frequencies are counted."""

BYTES_OF_TOKEN = 20
"""Number of bytes of a prompt that are read in the time that one token is written."""


class TextSettings(Settings):
    """Length of the text, and how its tokens are drawn."""

    max_tokens: Annotated[int, Field(ge=0, le=10_000)] = 200
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Texts(Subject[LanguageModeling, TextBatch, TextSettings]):
    """Language modelling; the same seed gives the same text."""

    asked_with = "--prompt or --prompt-file"
    examples = "tokens"
    uncalibrated = "text that is drawn has no probabilities to fit"
    packages = ("tokenizers",)
    expects = (
        "rows with the text prompt, and among params max_tokens (0 to 10000), temperature (0 or "
        "more), top_p (above 0, at most 1) and seed (0 or more)"
    )
    intended_use = (
        "continues text of the kind that it was trained on; what it writes is not checked for truth"
    )
    columns: ClassVar[Mapping[str, str]] = {"token": "long"}
    inputs: ClassVar[Forms] = {"prompt": "string"}
    outputs: ClassVar[Forms] = {"text": "string"}
    settings = TextSettings
    shares_work = True
    most_work = 20_000
    unit_of_work = f"tokens (rows x max_tokens, and one for {BYTES_OF_TOKEN} bytes read)"

    def build_task(self, config: RunConfig) -> LanguageModeling:
        assert isinstance(config.data, TokenData)
        assert isinstance(config.model, EigenstateLMModel)
        tokens = load_tokens(config.data, window=config.model.max_seq_len)
        return LanguageModeling(tokens, config)

    def describe_data(self, task: LanguageModeling) -> str:
        sizes = {split: len(windows.stream) for split, windows in task.splits.windows.items()}
        return (
            f"{sizes['train']:,} tokens to train in {len(task.train_examples()):,} windows, "
            f"{sizes['valid']:,} to validate, {sizes['test']:,} to test; a vocabulary of "
            f"{task.vocabulary_size:,}"
        )

    def summary(
        self, task: LanguageModeling, metrics: Mapping[str, float], split: str
    ) -> list[str]:
        bits, loss, perplexity = (
            metrics[names.metric(split, name)]
            for name in (names.BITS_PER_BYTE, names.LOSS, names.PERPLEXITY)
        )
        guessed = bits / loss * frequency_loss(task, split)
        share = 1 - bits / guessed
        worth = f"{share:.0%} less" if share > 0 else "no better: do not use this model"
        return [
            f"quality: {bits:.3f} bits ({bits * math.log(2):.3f} nats) per byte of the {split} "
            f"text, perplexity {perplexity:.1f} per token",
            f"against the frequencies of single tokens, {guessed:.3f} bits per byte: {worth}",
        ]

    def verbs(self, task: LanguageModeling) -> list[list[str]]:
        rows = self.example_rows(task)
        prompt = " ".join(rows[0]["prompt"].split()[:4]) if rows else ""
        return [[verb, "--prompt", prompt] for verb in ("predict", "trace-text")]

    def num_test_examples(self, task: LanguageModeling) -> int:
        return len(task.splits.windows["test"].stream) - 1

    def calibrate(self, task: LanguageModeling, model: Any) -> None:
        """Return None: nothing is fitted."""

    def write_folder(
        self, task: LanguageModeling, folder: Path, checkpoint: Path, calibration: None
    ) -> None:
        folder.mkdir(parents=True)
        copy_weights(checkpoint, folder)
        task.write_artifacts(folder)

    def example_rows(self, task: LanguageModeling) -> list[dict[str, Any]]:
        """Return pieces of the training text that are evenly spaced."""
        stream, tokenizer = task.splits.windows["train"].stream, task.splits.tokenizer
        starts = range(0, len(stream), -(-len(stream) // NUM_PROMPTS))
        pieces = [stream[start : start + PROMPT_TOKENS] for start in starts]
        # A prompt is text of one document: it cannot contain the end of another.
        cut = [np.split(p, np.flatnonzero(p == tokenizer.end_of_text)) for p in pieces]
        parts = [max(each, key=len) for each in cut]
        texts = [tokenizer.decode(part[part != tokenizer.end_of_text]) for part in parts]
        # Text with the token for unknown text cannot be used as a prompt.
        return [{"prompt": text} for text in texts if text and not tokenizer.first_unknown(text)]

    def load(self, folder: Path) -> TextBatch:
        return TextBatch(load_text_folder(folder))

    def work(self, loaded: TextBatch, num_rows: int, num_bytes: int, settings: TextSettings) -> int:
        return max(num_rows * settings.max_tokens + num_bytes // BYTES_OF_TOKEN, 1)

    def answer(
        self, loaded: TextBatch, rows: Sequence[Row], settings: TextSettings
    ) -> list[dict[str, Any]]:
        if any(not isinstance(row.get("prompt"), str) for row in rows):
            raise ConfigError(f"a row has no prompt; expected {self.expects}")
        texts = loaded.continuations(
            [row["prompt"] for row in rows],
            max_tokens=settings.max_tokens,
            sampling=Sampling(settings.temperature, top_p=settings.top_p),
            seed=settings.seed,
        )
        return [{"text": text} for text in texts]


def frequency_loss(task: LanguageModeling, split: str) -> float:
    """Return the loss per token of a split if each token has the probability of its frequency."""
    size, streams = task.vocabulary_size, (task.splits.windows[s].stream for s in ("train", split))
    train, text = (np.bincount(stream[:COUNTED_TOKENS], minlength=size) for stream in streams)
    probability = (train + 1.0) / (train + 1.0).sum()
    return float(-(text * np.log(probability)).sum() / text.sum())
