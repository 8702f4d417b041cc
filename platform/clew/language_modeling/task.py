"""The language modelling task: packed text, an eigenstate model, and the next-token loss."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clew import names
from clew.config.data import TokenData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.loss import LanguageLoss
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import ConfigError
from clew.files import write_json
from clew.language_modeling.loss import (
    SEGMENT_TOKENS,
    PositionBucket,
    loss_by_position,
    measure_perplexity,
    segment_losses,
    summed_loss,
    token_losses,
)
from clew.language_modeling.model import EigenstateLM, Sampling, generate
from clew.language_modeling.tokens import TokenBatch, TokenSplits, TokenWindows
from clew.language_modeling.writer import write_tokens
from clew.training.task import ExampleValues, LossSum

POSITION_WINDOWS = 16
"""Maximum number of windows over which the loss by position is averaged."""
NUM_STRETCHES = 300
"""Least number of stretches in which the losses of a text are given, if it has as many tokens."""
NUM_SAMPLES, SAMPLE_TOKENS, PROMPT_TOKENS = 3, 400, 64
POSITIONS_FILE = "loss_by_position.json"
SAMPLES_FILE = "samples.txt"


class LanguageModeling:
    """The task of predicting each token of a text from all tokens before it."""

    kind = TASK_KINDS["tokens"].task

    def __init__(self, splits: TokenSplits, config: RunConfig) -> None:
        data, model, loss = config.data, config.model, config.loss
        if not isinstance(data, TokenData):
            raise ConfigError(f"language modelling needs data.kind=tokens, not {data.kind}")
        assert isinstance(model, EigenstateLMModel)  # the configuration refuses others for tokens
        assert isinstance(loss, LanguageLoss)
        manifest = splits.packed.manifest
        self.splits = splits
        self.model_config = model
        self.dataset = Path(data.name or manifest.dataset).stem
        self.data_fingerprint = manifest.fingerprint
        self.vocabulary_size = manifest.vocabulary_size
        self._chunked = loss.implementation == "chunked"
        self._chunk_bytes = int(loss.chunk_mib * 2**20)
        self._further_weight = loss.further_weight
        self._positions: dict[str, list[PositionBucket]] = {}
        self._samples: dict[str, list[str]] = {}

    def describe(self) -> dict[str, str]:
        """Return tags for the tokenizer and the size of the vocabulary."""
        return {
            "clew.tokenizer": self.splits.packed.manifest.tokenizer,
            "clew.vocabulary_size": str(self.vocabulary_size),
        }

    def build_model(self) -> EigenstateLM:
        end_of_text = self.splits.packed.manifest.end_of_text
        return EigenstateLM(self.vocabulary_size, self.model_config, end_of_text=end_of_text)

    @staticmethod
    def as_model(model: nn.Module) -> EigenstateLM:
        if not isinstance(model, EigenstateLM):
            raise TypeError(f"expected an EigenstateLM, {type(model).__name__} given")
        return model

    def train_examples(self) -> TokenWindows:
        return self.splits.windows["train"]

    def loss(self, model: nn.Module, batch: TokenBatch) -> LossSum:
        """Return the loss summed over the tokens of the batch.

        The weighted loss of further tokens is added, unless the batch counts only some targets.
        """
        if not self._chunked or batch.counted is not None:
            return LossSum(self.example_losses(model, batch).sum(), batch.count)
        head = self.as_model(model).embedding.weight
        totals = [
            weight * summed_loss(hidden, head, targets, chunk_bytes=self._chunk_bytes)
            for weight, hidden, targets in self._predictions(model, batch)
        ]
        return LossSum(torch.stack(totals).sum(), batch.count)

    def example_losses(self, model: nn.Module, batch: TokenBatch) -> Tensor:
        """Return the loss of each window, summed over its counted tokens, from full logits."""
        head = self.as_model(model).embedding.weight
        losses = [
            weight * token_losses(hidden, head, targets)
            for weight, hidden, targets in self._predictions(model, batch)
        ]
        if batch.counted is not None:
            (following,) = losses
            return (following * batch.counted).sum(1)
        return torch.stack([part.sum(1) for part in losses]).sum(0)

    def _predictions(
        self, model: nn.Module, batch: TokenBatch
    ) -> Iterator[tuple[float, Tensor, Tensor]]:
        language_model = self.as_model(model)
        hidden = language_model(batch.inputs)
        yield 1.0, hidden, batch.targets.contiguous()
        if batch.counted is not None:
            return
        for distance, ahead in enumerate(language_model.further, 1):
            targets = batch.targets[:, distance:].contiguous()
            yield self._further_weight, ahead(hidden)[:, :-distance], targets

    def has_examples(self, split: str) -> bool:
        """Return whether a split has text to predict, and not only empty documents."""
        return self._num_bytes(split) > 0

    def _num_bytes(self, split: str) -> int:
        """Return the number of bytes of text of all tokens of a split except the first."""
        windows = self.splits.windows[split]
        windows.require_known(windows.stream)
        return self.splits.num_bytes(windows.start + 1, windows.end)

    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        """Return loss, perplexity, bits per byte, and the loss by position in a window."""
        windows = self.splits.windows[split]
        text, size = windows.stream, self._num_bytes(split)
        if not size:
            return {}
        language_model, chunk_bytes = self.as_model(model), self._chunk_bytes
        quality = measure_perplexity(
            language_model, text, num_bytes=size, device=device, chunk_bytes=chunk_bytes
        )
        values = {
            names.metric(split, names.LOSS): quality.loss,
            names.metric(split, names.PERPLEXITY): quality.perplexity,
            names.metric(split, names.BITS_PER_BYTE): quality.bits_per_byte,
        }
        if len(windows):
            chosen = np.arange(len(windows))[:: -(-len(windows) // POSITION_WINDOWS)]
            tokens = windows.batch(chosen).tokens.to(device)
            buckets = loss_by_position(language_model, tokens, chunk_bytes=chunk_bytes)
            self._positions[split] = buckets
            values |= {
                names.metric(split, names.LOSS_AT.format(k=f"{bucket.first:05d}")): bucket.loss
                for bucket in buckets
            }
        if split == "test":
            self._samples[split] = self.sample(language_model, split, device)
        return values

    @torch.no_grad()
    def example_values(
        self, model: nn.Module, split: str, name: str, device: torch.device
    ) -> ExampleValues | None:
        """Return the loss of each stretch of the text, as a multiple of an equal share of it."""
        windows = self.splits.windows[split]
        num_tokens = len(windows.stream) - 1
        of_text = math.log(2) * self._num_bytes(split)
        divisors = {names.LOSS: num_tokens, names.BITS_PER_BYTE: of_text}
        if name not in divisors:
            return None
        size, text = min(SEGMENT_TOKENS, -(-num_tokens // NUM_STRETCHES)), windows.stream
        network, chunk_bytes = self.as_model(model), self._chunk_bytes
        nats = segment_losses(
            network, text, device=device, chunk_bytes=chunk_bytes, segment_tokens=size
        )
        values = np.array(list(nats)) / divisors[name]
        return ExampleValues(values * len(values), "stretches of text", in_sequence=True)

    def sample(self, model: EigenstateLM, split: str, device: torch.device) -> list[str]:
        """Generate text after a few fixed prompts from a split, always with the same seed."""
        text = self.splits.windows[split].stream
        starts = np.linspace(0, len(text) - 1, NUM_SAMPLES, endpoint=False).astype(int)
        length = min(PROMPT_TOKENS, len(text) - int(starts[-1]))
        prompts = np.stack([text[start : start + length] for start in starts]).astype(np.int64)
        given, generator = torch.from_numpy(prompts).to(device), torch.Generator(device)
        sampling = Sampling(temperature=0.8)
        tokens = generate(model, given, SAMPLE_TOKENS, sampling, generator.manual_seed(0))
        decode = self.splits.tokenizer.decode
        pairs = zip(prompts, tokens.cpu().numpy(), strict=True)
        return [f"{decode(prompt)}⟶{decode(continuation)}" for prompt, continuation in pairs]

    def write_artifacts(self, folder: Path) -> None:
        write_tokens(folder, self.splits.packed)

    def write_report(self, split: str, folder: Path) -> None:
        """Write the loss by position and the samples of the last evaluation of a split."""
        if split in self._positions:
            folder.mkdir(parents=True, exist_ok=True)
            rows = [asdict(bucket) for bucket in self._positions[split]]
            write_json(folder / f"{split}_{POSITIONS_FILE}", rows)
        if split in self._samples:
            folder.mkdir(parents=True, exist_ok=True)
            text = f"\n\n{'─' * 40}\n\n".join(self._samples[split])
            (folder / f"{split}_{SAMPLES_FILE}").write_text(text + "\n", encoding="utf-8")
