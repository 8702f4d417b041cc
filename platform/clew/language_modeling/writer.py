"""Continues texts with a model, from a prompt or from where an earlier text paused.

A model folder has what this needs, so that the training text is not needed:

    model.safetensors  manifest.json      the checkpoint
    tokens.json                           the manifest of the packed text of the training
    tokenizer.json                        the tokenizer, unless tokens are bytes

A paused text is a safetensors file: the state of the model, the random generator and the shown
tokens. Its metadata has the digest of the model's weights, because another model cannot use it.
"""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils import _pytree as pytree

from clew.config.eigenstate import EigenstateLMModel
from clew.config.load import from_mapping
from clew.errors import CheckpointError, DataError, quoted, refusing
from clew.files import replacing, write_json
from clew.language_modeling.model import (
    CarriedState,
    EigenstateLM,
    Sampling,
    TextState,
    read_text,
    write_text,
)
from clew.language_modeling.packed_tokens import PackedTokens, PackManifest
from clew.language_modeling.packed_tokens import read_manifest as read_pack_manifest
from clew.language_modeling.tokenizers import (
    BPE,
    BYTES,
    TOKENIZER_FILE,
    Tokenizer,
    encode_prompt,
    load_tokenizer,
)
from clew.layers.eigenstate import LayerState
from clew.training.checkpoints import read_model
from clew.training.manifest import MANIFEST_FILE, read_manifest

TOKENS_FILE = "tokens.json"
SCHEMA_VERSION = "2"
VERSION_KEY, WEIGHTS_KEY = "clew.text_state", "clew.weights"
DEFAULT_SEED = 0
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 4
"""Tokens of the prompt for decoding the first piece, because some tokenizers' spaces need them."""


@dataclass(frozen=True)
class TextModel:
    """A language model with the tokenizer that it was trained with."""

    model: EigenstateLM
    tokenizer: Tokenizer


def write_tokens(folder: Path, packed: PackedTokens) -> None:
    """Write the manifest of a packed text, and its tokenizer if it is a file."""
    write_json(folder / TOKENS_FILE, asdict(packed.manifest))
    if packed.manifest.tokenizer != BYTES:
        shutil.copy2(packed.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)


def load_text_folder(folder: Path) -> TextModel:
    text = read_pack_manifest(folder, TOKENS_FILE)
    tokenizer = load_tokenizer(BYTES if text.tokenizer == BYTES else BPE, folder)
    return load_text_model(folder, text, tokenizer)


def load_text_model(checkpoint: Path, text: PackManifest, tokenizer: Tokenizer) -> TextModel:
    """Load the model of a checkpoint, which was trained on the packed text of this manifest."""
    manifest = read_manifest(checkpoint)
    config = from_mapping(manifest.config, source=str(checkpoint / MANIFEST_FILE))
    if not isinstance(config.model, EigenstateLMModel):
        raise CheckpointError(
            f"{checkpoint}: has a {config.model.kind} model, but expected eigenstate_lm; only "
            "language models continue texts"
        )
    if text.fingerprint != manifest.data_fingerprint:
        raise CheckpointError(
            f"{checkpoint}: was trained on text {manifest.data_fingerprint}, but the given tokens "
            f"are of text {text.fingerprint}; use the checkpoint and the tokens of one run"
        )
    settings, size = config.model, text.vocabulary_size
    model = read_model(
        checkpoint, lambda: EigenstateLM(size, settings, end_of_text=text.end_of_text)
    )
    return TextModel(model.eval(), tokenizer)


@dataclass(frozen=True)
class PausedText:
    """Everything that the rest of a text depends on."""

    state: TextState
    draws: Tensor
    """State of the random generator, uint8."""
    tokens: Tensor
    """The last tokens of the text, `(token,)`, int64."""
    num_shown: int
    """Number of `tokens` that have been shown; the others end inside a character."""

    def write(self, path: Path, weights: str) -> None:
        """Write the state and the digest of the model's weights to a file, atomically."""
        tensors = {n: t.detach().cpu().contiguous().clone() for n, t in _tensors(self).items()}
        metadata = {VERSION_KEY: SCHEMA_VERSION, WEIGHTS_KEY: weights}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)


for _part in (LayerState, CarriedState, TextState, PausedText):
    pytree.register_dataclass(_part)


def read_paused(path: Path, model: EigenstateLM, weights: str) -> PausedText:
    """Read a state that was written with the model, whose weights have this digest."""
    what, kinds = f"{path}: not a readable state", (SafetensorError, ValueError, RuntimeError)
    advice = "; expected a file written by --state, or the name of a new file"
    with refusing(what, OSError, *kinds, advice=advice):
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
        tensors = load_file(path)
    if said.get(VERSION_KEY) != SCHEMA_VERSION:
        raise DataError(
            f"{path}: a safetensors file, but not the state of a text (version "
            f"{quoted(said.get(VERSION_KEY))}, this version of Clew reads {SCHEMA_VERSION}); give "
            "another file"
        )
    if said.get(WEIGHTS_KEY) != weights:
        raise CheckpointError(
            f"{path}: the state of a model with weights {quoted(said.get(WEIGHTS_KEY))}, but this "
            f"model has {weights}; use the model that wrote the state, or give another file"
        )
    device = model.embedding.weight.device
    pattern = PausedText(
        read_text(model, torch.zeros(1, 1, dtype=torch.long, device=device)),
        draws=torch.Generator().get_state(),
        tokens=tensors.get(".tokens", torch.zeros(0, dtype=torch.long)),
        num_shown=0,
    )
    expected = {name: (t.shape, t.dtype) for name, t in _tensors(pattern).items()}
    if expected != {name: (t.shape, t.dtype) for name, t in tensors.items()}:
        raise DataError(f"{path}: damaged; its tensors do not have the form of this model's state")

    def saved(place: pytree.KeyPath, leaf: Tensor | int | None) -> Tensor | int | None:
        if leaf is None:
            return None
        tensor = tensors[pytree.keystr(place)]
        return int(tensor) if isinstance(leaf, int) else tensor.to(leaf.device)

    found: PausedText = pytree.tree_map_with_path(saved, pattern)
    if not _is_usable(found, num_tokens=len(model.embedding.weight)):
        raise DataError(f"{path}: damaged; it contains values that are not valid for this model")
    return found


def _is_usable(paused: PausedText, num_tokens: int) -> bool:
    try:
        torch.Generator().set_state(paused.draws)
    except RuntimeError:
        return False
    tokens = paused.tokens
    return (
        bool(((tokens >= 0) & (tokens < num_tokens)).all())
        and 0 <= paused.num_shown <= len(tokens)
        and all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(paused).values())
    )


def _tensors(paused: PausedText) -> dict[str, Tensor]:
    leaves, _ = pytree.tree_flatten_with_path(paused)
    return {pytree.keystr(path): torch.as_tensor(leaf) for path, leaf in leaves if leaf is not None}


class TextWriter:
    """Reads and continues one text, with its state and its random generator.

    Without a seed, the generator of `start` continues; a new text has `DEFAULT_SEED`.
    """

    def __init__(
        self, text_model: TextModel, start: PausedText | None = None, *, seed: int | None = None
    ) -> None:
        self._model, self._tokenizer = text_model.model, text_model.tokenizer
        self._generator = torch.Generator().manual_seed(DEFAULT_SEED if seed is None else seed)
        self._state: TextState | None = None
        self._pieces = TextPieces(self._tokenizer)
        if start is not None:
            self._state = start.state
            self._pieces = TextPieces(self._tokenizer, start.tokens.tolist(), start.num_shown)
            if seed is None:
                self._generator.set_state(start.draws)

    def read(
        self, prompt: str, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        tokens = encode_prompt(self._tokenizer, prompt)
        inputs = torch.from_numpy(tokens.astype(np.int64)).unsqueeze(0)
        device = self._model.embedding.weight.device
        self._state = read_text(self._model, inputs.to(device), self._state, progress=progress)
        self._pieces = TextPieces.after(self._tokenizer, tokens)

    def write(self, max_tokens: int, sampling: Sampling) -> Iterator[str]:
        """Yield one piece of text per token; incomplete characters are held back."""
        assert self._state is not None
        written = write_text(self._model, self._state, sampling, self._generator)
        for token, state in itertools.islice(written, max_tokens):
            self._state = state
            yield self._pieces.add(int(token))

    def rest(self) -> str:
        """Return the text of a character that was held back and did not become complete."""
        return self._pieces.rest()

    def paused(self) -> PausedText:
        assert self._state is not None
        tokens = torch.tensor(self._pieces.tokens, dtype=torch.int64)
        return PausedText(self._state, self._generator.get_state(), tokens, self._pieces.num_shown)


class TextPieces:
    """Converts tokens to pieces of text, whose concatenation is the text of all tokens.

    It keeps tokens of which the first `num_shown` have been shown, and the others held back.
    """

    def __init__(
        self, tokenizer: Tokenizer, tokens: Sequence[int] = (), num_shown: int = 0
    ) -> None:
        self._tokenizer = tokenizer
        self.tokens, self.num_shown = list(tokens), num_shown

    @classmethod
    def after(cls, tokenizer: Tokenizer, prompt: np.ndarray) -> "TextPieces":
        """Return an instance for the tokens after a prompt `(token,)`."""
        context = prompt[-CONTEXT_TOKENS:].tolist()
        return cls(tokenizer, context, len(context))

    def add(self, token: int) -> str:
        """Return the text that one more token adds; empty while a character is incomplete."""
        self.tokens.append(token)
        return "" if self._decode(self.tokens).endswith(REPLACEMENT) else self.rest()

    def rest(self) -> str:
        """Return the text that was held back, which can be empty."""
        text = self._decode(self.tokens)[len(self._decode(self.tokens[: self.num_shown])) :]
        self.tokens = self.tokens[self.num_shown :] or self.tokens
        self.num_shown = len(self.tokens)
        return text

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(np.array(tokens, dtype=np.int64))


def continuation(
    text_model: TextModel,
    prompt: str,
    *,
    max_tokens: int = 200,
    sampling: Sampling | None = None,
    seed: int = DEFAULT_SEED,
) -> str:
    writer = TextWriter(text_model, seed=seed)
    writer.read(prompt)
    return "".join(writer.write(max_tokens, sampling or Sampling())) + writer.rest()
