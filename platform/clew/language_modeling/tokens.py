"""Windows of a packed corpus as training examples.

A window of T tokens is read as T + 1 tokens, so that every token has a target. Unless a stride is
given, window i starts at token i T. The tokens are split by position: training first, then
validation, then test.

Only the end-of-text token separates documents. A window can contain parts of several documents, and
the state of the model continues across documents unless `model.reset_at_documents` is set.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from clew.config.data import PackSettings, TokenData
from clew.errors import ConfigError, DataError
from clew.files import DATA_VARIABLE, cache_folder, check_data_name, data_folder, expanded
from clew.language_modeling.documents import plan_units
from clew.language_modeling.packed_tokens import (
    PackedTokens,
    TokenBytes,
    open_packed,
    read_manifest,
)
from clew.language_modeling.pretokenize import plan_text, pretokenize
from clew.language_modeling.tokenizers import BPE, BYTES, Tokenizer, encode_prompt, load_tokenizer
from clew.training.loaders import TensorBatch

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class TokenBatch(TensorBatch):
    """Windows of tokens with their targets."""

    tokens: Tensor
    """Tokens of the windows and one more each, int64 `(window, time + 1)`."""
    ids: Tensor
    """Indices of the windows, int64 `(window,)`."""
    counted: Tensor | None = None
    """Whether the loss counts each target, bool `(window, time)`; None: all targets count."""

    @property
    def inputs(self) -> Tensor:
        """All tokens except the last, `(window, time)`."""
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Tensor:
        """The token after each input token, `(window, time)`."""
        return self.tokens[:, 1:]

    @property
    def num_examples(self) -> int:
        return len(self.ids)

    @property
    def count(self) -> int:
        if self.counted is not None:
            return int(self.counted.sum())
        return self.num_examples * (self.tokens.shape[1] - 1)

    def units(self) -> dict[str, int]:
        return {"examples": self.num_examples, "tokens": self.count}

    def describe(self) -> str:
        return f"windows {self.ids.tolist()}"


def continuation_batch(tokenizer: Tokenizer, prompt: str, continuation: str) -> TokenBatch:
    """Return a text as one window whose loss counts only the continuation."""
    before, after = (encode_prompt(tokenizer, text) for text in (prompt, continuation))
    tokens = np.concatenate([before, after]).astype(np.int64)
    counted = np.arange(1, len(tokens)) >= len(before)
    window, own = (torch.from_numpy(values).unsqueeze(0) for values in (tokens, counted))
    return TokenBatch(window, torch.zeros(1, dtype=torch.int64), own)


@dataclass(frozen=True, eq=False)
class TokenWindows:
    """The windows of a split of a packed corpus; each worker opens the memory map itself."""

    packed: PackedTokens
    start: int
    """First token of the split; `end` is the token after its last."""
    end: int
    length: int
    stride: int

    def __len__(self) -> int:
        return max(0, (self.end - self.start - 1 - self.length + self.stride) // self.stride)

    def without_overlap(self) -> Self:
        return replace(self, stride=self.length)

    @property
    def stream(self) -> np.ndarray:
        """All tokens of the split, `(token,)`, as a view of the memory map."""
        return self.packed.tokens[self.start : self.end]

    def batch(self, indices: np.ndarray) -> TokenBatch:
        rows = np.empty((len(indices), self.length + 1), dtype=np.int64)
        for row, index in zip(rows, indices.tolist(), strict=True):
            start = self.start + index * self.stride
            row[:] = self.packed.tokens[start : start + self.length + 1]
        self.require_known(rows)
        return TokenBatch(torch.from_numpy(rows), torch.from_numpy(indices.astype(np.int64)))

    def require_known(self, tokens: np.ndarray) -> None:
        size = self.packed.manifest.vocabulary_size
        if tokens.size and tokens.max() >= size:
            raise DataError(
                f"{self.packed.folder}: found token {tokens.max()}, but the vocabulary has "
                f"{size:,} tokens; the file is damaged; pack again with force"
            )


@dataclass(frozen=True)
class TokenSplits:
    """A packed corpus, divided into training, validation and test windows."""

    packed: PackedTokens
    tokenizer: Tokenizer
    windows: dict[str, TokenWindows]

    def num_bytes(self, start: int, end: int) -> int:
        packed = self.packed
        counted = TokenBytes(packed.tokens, self.tokenizer.byte_lengths(), packed.lengths)
        return counted.total(start, end)


def load_tokens(config: TokenData, *, window: int) -> TokenSplits:
    """Open the packed corpus of a configuration, and pack it first if necessary."""
    folder = pack(config, window=window)
    own = BYTES if read_manifest(folder).tokenizer == BYTES else BPE
    tokenizer = load_tokenizer(config.tokenizer or own, folder)
    packed = open_packed(folder, tokenizer)
    size = packed.manifest.num_tokens
    test = size - round(size * config.test_fraction)
    valid = _end_of_training(packed, test, round(size * config.valid_fraction))
    bounds = zip(SPLITS, (0, valid, test), (valid, test, size), strict=True)
    strides = {"train": config.stride or window}
    windows = {
        name: TokenWindows(packed, start, end, window, strides.get(name, window))
        for name, start, end in bounds
    }
    if not len(windows["train"]):
        raise DataError(
            f"{folder}: {valid:,} training tokens, but one window needs {window:,} tokens and one "
            "more as its last target; lower model.max_seq_len or use a longer text"
        )
    return TokenSplits(packed, tokenizer, windows)


def _end_of_training(packed: PackedTokens, test: int, num_valid: int) -> int:
    """Return where validation starts: before the test and after the tokenizer's training text."""
    by_share, seen = test - num_valid, packed.manifest.tokenizer_tokens
    if seen > by_share and seen >= test:
        raise DataError(
            f"{packed.folder}: its BPE vocabulary was trained on the first {seen:,} of "
            f"{packed.manifest.num_tokens:,} tokens, and the test text begins at {test:,}; lower "
            "data.valid_fraction and data.test_fraction, or pack again with a larger "
            "held_out_fraction"
        )
    return max(by_share, seen)


def pack(config: TokenData, *, window: int) -> Path:
    """Return the folder of the packed corpus, and pack it first if necessary."""
    dataset = find_text(config.name) if config.name else config.dataset
    if dataset is None:
        return expanded(str(config.packed))
    settings = PackSettings(
        dataset=str(dataset),
        chunk_size=window,
        tokenizer=config.tokenizer or BYTES,
        vocabulary_size=config.vocabulary_size,
        text_column=config.text_column,
        max_chunks=config.max_chunks,
        held_out_fraction=config.valid_fraction + config.test_fraction,
    )
    if config.packed:
        folder = expanded(config.packed)
    else:
        plan = plan_text(settings, plan_units(settings.dataset))
        digest = hashlib.sha256(plan.encode()).hexdigest()[:12]
        folder = cache_folder("tokens") / f"{Path(settings.dataset).stem or 'text'}-{digest}"
    pretokenize(settings, folder, num_proc=config.num_proc)
    return folder


def find_text(name: str) -> Path:
    root = data_folder()
    check_data_name(name)
    if root is None or not (root / name).is_dir():
        where = f"{DATA_VARIABLE} is {root}" if root else f"{DATA_VARIABLE} is not set"
        raise ConfigError(
            f"data.name is {name!r}; expected a folder of text with this name under "
            f"${DATA_VARIABLE} ({where}); or set data.dataset, or set data.name=null to read "
            "only data.packed"
        )
    return root / name
