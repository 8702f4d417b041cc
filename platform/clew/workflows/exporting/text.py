"""Exports a language model as its token embeddings and a program that returns logits and state.

    tokens.parquet      id, text (null for the end of a text), embedding (shared with the head)
    logits.pt2          (tokens, state) -> (logits, state); the initial state is zeros
    tokenizer.json      the tokenizer, unless tokens are bytes

The program can process a text in parts of any length up to the longest that it was traced for.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from clew.language_modeling.model import CarriedState, EigenstateLM
from clew.language_modeling.tokenizers import BYTES, TOKENIZER_FILE, Tokenizer
from clew.layers.eigenstate import LayerState
from clew.workflows.exporting.program import Exported, Inputs, rows_of, write_program
from clew.workflows.model_source import ModelSource
from clew.workflows.predicting.text import open_text_model

TOKENS_FILE = "tokens.parquet"
PROGRAM_FILE = "logits.pt2"
MIN_LONGEST = 64
NUM_CHECKED, MOST_CHECKED = 5, 512
"""Number of texts for the comparison, and the maximum tokens of each."""


class ExportedText(nn.Module):
    """A language model with its state as plain tensors."""

    def __init__(self, model: EigenstateLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, eigenstates: Tensor, filtered: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the logits `(batch, time, token)` and the state after the tokens."""
        config = self.model.config
        before = tuple(
            LayerState(eigenstates[layer], filtered[layer, 0], filtered[layer, 1])
            for layer in range(config.n_layers)
        )
        known = position if config.reset_at_documents else None
        hidden, after = self.model.advance(tokens, CarriedState(before, known))
        kept = [(layer.eigenstates, layer.mixer_inputs, layer.mlp_inputs) for layer in after.layers]
        return (
            self.model.logits(hidden),
            torch.stack([_kept(states) for states, _, _ in kept]),
            torch.stack([torch.stack([_kept(one), _kept(other)]) for _, one, other in kept]),
            position + tokens.shape[1] if after.position is None else after.position,
        )

    def fresh(self, batch: int) -> Inputs:
        """Return the state before the first token."""
        config = self.model.config
        before = (2, batch, config.convolution_width - 1, config.d_model)
        return (
            torch.zeros(config.n_layers, batch, config.num_eigenstates, 2),
            torch.zeros(config.n_layers, *before),
            torch.zeros(batch, dtype=torch.int64),
        )


def _kept(state: Tensor | None) -> Tensor:
    assert state is not None
    return state


def export_text(source: ModelSource, folder: Path) -> Exported:
    """Write a language model into a folder."""
    opened = open_text_model(source)
    model, tokenizer = opened.model.cpu(), opened.tokenizer
    pq.write_table(_token_table(model, tokenizer), folder / TOKENS_FILE)
    files = {TOKENS_FILE: f"{tokenizer.vocabulary_size:,} rows of {model.config.d_model}"}
    if tokenizer.file_content is not None:
        (folder / TOKENIZER_FILE).write_text(tokenizer.file_content, encoding="utf-8")
        files[TOKENIZER_FILE] = "for the package tokenizers"
    longest = _longest(model)
    batch, time = torch.export.Dim("batch", min=1), torch.export.Dim("time", min=1, max=longest)
    module = ExportedText(model)
    return Exported(
        files=files,
        program_file=PROGRAM_FILE,
        program=write_program(
            module,
            folder / PROGRAM_FILE,
            _examples(module, longest),
            dynamic={
                "tokens": {0: batch, 1: time},
                "eigenstates": {1: batch},
                "filtered": {2: batch},
                "position": {0: batch},
            },
            longest=longest,
        ),
        said={
            "inputs": _inputs(module, longest),
            "outputs": {
                "logits": "(batch, time, token) float32: for the token that follows each one",
                "eigenstates, filtered, position": "state after these tokens, shaped as the inputs",
            },
            "tokenizer": BYTES if tokenizer.file_content is None else TOKENIZER_FILE,
            "end_of_text": tokenizer.end_of_text,
        },
    )


def _inputs(module: ExportedText, longest: int) -> dict[str, str]:
    layers, _, states, _ = module.fresh(1)[0].shape
    _, _, _, before, dim = module.fresh(1)[1].shape
    return {
        "tokens": f"(batch, time) int64: ids of tokens, time at most {longest}",
        "eigenstates": f"({layers}, batch, {states}, 2) float32: state; zeros before a text",
        "filtered": f"({layers}, 2, batch, {before}, {dim}) float32: state; zeros before a text",
        "position": "(batch,) int64: state; zeros before a text",
    }


def _longest(model: EigenstateLM) -> int:
    return max(MIN_LONGEST, 1 << (model.config.max_seq_len - 1).bit_length())


def _examples(module: ExportedText, longest: int) -> list[Inputs]:
    generator = torch.Generator().manual_seed(0)
    size = module.model.embedding.num_embeddings
    time = min(longest, MOST_CHECKED)
    texts = torch.randint(size, (NUM_CHECKED, time), generator=generator)
    with torch.no_grad():
        _, *state = module(texts[:2], *module.fresh(2))
    return [
        (texts, *module.fresh(NUM_CHECKED)),
        (texts[:1, :1], *module.fresh(1)),
        (texts[2:4, 1:], *state),
    ]


def _token_table(model: EigenstateLM, tokenizer: Tokenizer) -> pa.Table:
    ids = np.arange(model.embedding.num_embeddings)
    texts = [None if i == tokenizer.end_of_text else tokenizer.decode(ids[i : i + 1]) for i in ids]
    columns = {"id": pa.array(ids.astype(np.int32)), "text": pa.array(texts, pa.string())}
    return pa.table(columns | {"embedding": rows_of(model.embedding)})
