"""Text as a subject: requests are prompts, answers are the texts that follow."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.utils._pytree import tree_map

from clew import names
from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.schema import RunConfig
from clew.errors import ConfigError, NonFiniteLossError
from clew.language_modeling.model import Sampling, TextState, read_text
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokenizers import encode_prompt
from clew.language_modeling.tokens import load_tokens
from clew.language_modeling.writer import TextModel, TextPieces, load_text_folder
from clew.subject import Forms, Row, Settings, Subject, Waiting, current_request
from clew.training.checkpoints import copy_weights

NUM_PROMPTS, PROMPT_TOKENS = 4, 32
"""Number of prompts that a candidate must continue before it is promoted, and their length."""
COUNTED_TOKENS = 10_000_000
"""Most tokens of a text whose frequencies are counted."""

BYTES_OF_TOKEN = 20
"""Number of bytes of a prompt that are read in the time that one token is written."""

MOST_TEXTS = 64
"""Most texts that are written at once; others wait."""
SEGMENT = 512
"""Tokens of prompts after which the texts that are being written get their next token."""


@dataclass(eq=False)
class _Text:
    """A text that is read, and then written."""

    unread: Int[Tensor, "1 time"]
    num_tokens: int
    sampling: Sampling
    generator: torch.Generator
    client: Waiting
    state: TextState
    tokens: list[int] = field(default_factory=list)
    answer: "Future[list[int]]" = field(default_factory=Future)

    def draw(self, logits: Float[Tensor, "1 token"]) -> None:
        try:
            self.tokens.append(int(self.sampling.draw(logits, self.generator)))
        except NonFiniteLossError as error:
            self.answer.set_exception(error)
        else:
            if len(self.tokens) == self.num_tokens:
                self.answer.set_result(self.tokens)


class TextBatch:
    """A language model that any number of threads may ask at the same time.

    One pass through the model gives each of many texts its next token.

    A server's requests come in threads of their own. Threads that all called the model would wait
    for each other's processors, and a pass for ten texts takes little longer than a pass for one.
    So one thread does the work of all, as long as there is any: in turn, it reads waiting prompts,
    the shortest first, and draws a token for each text. A text joins when its prompt has been read
    and leaves with its last token, so that a short one never waits for the end of a long one.

    Each text has its own random generator, and becomes the text that `continuation` writes. Beside
    others, logits differ from those alone by rounding, as products of matrices do with their sizes.
    """

    def __init__(self, text_model: TextModel) -> None:
        self._model, self._tokenizer = text_model.model, text_model.tokenizer
        self._lock, self._coming, self._has_thread = Lock(), list[_Text](), False
        # What follows belongs to the thread; row i of the state is that of text i.
        self._reading, self._writing = list[_Text](), list[_Text]()
        self._state: TextState | None = None
        # The first pass imports torch._dynamo, for seconds; no client should wait for that.
        after = read_text(self._model, torch.zeros(1, 1, dtype=torch.long))
        self._start: TextState = tree_map(
            lambda t: None if t is None else torch.zeros_like(t), after
        )

    def continuations(
        self, prompts: Sequence[str], *, max_tokens: int, sampling: Sampling, seed: int
    ) -> list[str]:
        """Return the text after each prompt, as `continuation` does."""
        starts = [encode_prompt(self._tokenizer, prompt) for prompt in prompts]
        if not max_tokens:
            return [""] * len(starts)
        client, texts = current_request.get() or Waiting(), list[_Text]()
        for start in starts:
            unread = torch.from_numpy(start.astype(np.int64)).unsqueeze(0)
            generator = torch.Generator().manual_seed(seed)
            texts.append(_Text(unread, max_tokens, sampling, generator, client, self._start))
        self._add(texts)
        try:
            written = [text.answer.result() for text in texts]
        except KeyboardInterrupt:
            client.is_over = True
            raise
        found = list[str]()
        for start, tokens in zip(starts, written, strict=True):
            pieces = TextPieces.after(self._tokenizer, start)
            found.append("".join(map(pieces.add, tokens)) + pieces.rest())
        return found

    def _add(self, texts: list[_Text]) -> None:
        with self._lock:
            self._coming += texts
            if self._has_thread:
                return
            self._has_thread = True
        Thread(target=self._work, name="texts").start()

    def _work(self) -> None:
        """Read and write until no text is left."""
        while self._has_texts():
            try:
                self._read()
                self._write()
            except Exception as error:  # those who wait must hear of it, whatever it is
                for text in (*self._reading, *self._writing):
                    if not text.answer.done():
                        text.answer.set_exception(error)
                self._reading, self._writing, self._state = [], [], None

    def _has_texts(self) -> bool:
        with self._lock:
            self._reading += self._coming
            self._coming = []
            self._has_thread = bool(self._reading or self._writing)
            return self._has_thread

    def _read(self) -> None:
        """Read prompts, the shortest first, until they have a segment's number of tokens.

        As many tokens as the shortest prompt has are read of all of them in one pass.
        """
        for text in (*self._reading, *self._writing):
            if text.client.is_over:
                text.answer.set_exception(InterruptedError("nobody waits for the text"))
        self._reading = [text for text in self._reading if not text.answer.done()]
        left = SEGMENT
        while left > 0 and self._reading and len(self._writing) < MOST_TEXTS:
            self._reading.sort(key=lambda text: text.unread.shape[1])
            length = min(self._reading[0].unread.shape[1], SEGMENT)
            together = self._reading[: min(max(left // length, 1), MOST_TEXTS - len(self._writing))]
            parts = torch.cat([text.unread[:, :length] for text in together])
            state = read_text(
                self._model, parts, tree_map(_stacked, *(text.state for text in together))
            )
            for row, text in enumerate(together):
                text.unread, text.state = text.unread[:, length:], _rows_of(state, [row])
            left -= parts.numel()
            if done := [text for text in together if not text.unread.shape[1]]:
                before = [self._state] if self._state else []
                self._state = tree_map(_stacked, *before, *(text.state for text in done))
                self._writing += done
                self._reading = [text for text in self._reading if text not in done]

    def _write(self) -> None:
        """Draw a token for each text, and advance the state of those that go on."""
        self._leave()
        if self._state is None:
            return
        with torch.no_grad():
            logits = self._model.logits(self._state.hidden)[:, 0].float()
        for text, row in zip(self._writing, torch.split(logits, 1), strict=True):
            text.draw(row)
        self._leave()
        if self._state is not None:
            tokens = torch.tensor([text.tokens[-1:] for text in self._writing])
            self._state = read_text(self._model, tokens, self._state)

    def _leave(self) -> None:
        """Take texts out that have ended."""
        rows = [i for i, text in enumerate(self._writing) if not text.answer.done()]
        if len(rows) < len(self._writing):
            self._writing = [self._writing[i] for i in rows]
            self._state = _rows_of(self._state, rows) if self._state and rows else None


def _stacked(*parts: Tensor | None) -> Tensor | None:
    """Return the rows of the same part of some states, which all have it or none."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _rows_of(state: TextState, rows: list[int]) -> TextState:
    found: TextState = tree_map(lambda part: None if part is None else part[rows], state)
    return found


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
        return [[verb, "--prompt", prompt or "TEXT"] for verb in ("predict", "trace-text")]

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
