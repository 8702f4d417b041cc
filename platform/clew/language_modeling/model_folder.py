"""Writes and loads folders with everything that is needed to continue texts.

    model.safetensors  manifest.json      the checkpoint
    tokens.json                           the manifest of the packed text of the training
    tokenizer.json                        the tokenizer, unless tokens are bytes

A run keeps the last two files next to its checkpoints, so the training text is not needed.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from clew.config.eigenstate import EigenstateLMModel
from clew.config.load import from_mapping
from clew.errors import CheckpointError
from clew.language_modeling.model import EigenstateLM
from clew.language_modeling.packed_tokens import PackedTokens, PackManifest
from clew.language_modeling.packed_tokens import read_manifest as read_pack_manifest
from clew.language_modeling.tokenizers import (
    BPE,
    BYTES,
    TOKENIZER_FILE,
    Tokenizer,
    load_tokenizer,
)
from clew.training.checkpoints import copy_weights, read_model
from clew.training.manifest import MANIFEST_FILE, read_manifest

TOKENS_FILE = "tokens.json"


@dataclass(frozen=True)
class TextModel:
    """A language model with the tokenizer that it was trained with."""

    model: EigenstateLM
    tokenizer: Tokenizer


def write_tokens(folder: Path, packed: PackedTokens) -> None:
    """Write the manifest of a packed text, and its tokenizer if it is a file."""
    text = json.dumps(asdict(packed.manifest), indent=1) + "\n"
    (folder / TOKENS_FILE).write_text(text, encoding="utf-8")
    if packed.manifest.tokenizer != BYTES:
        shutil.copy2(packed.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)


def write_model_folder(folder: Path, *, checkpoint: Path, packed: PackedTokens) -> Path:
    folder.mkdir(parents=True)
    copy_weights(checkpoint, folder)
    write_tokens(folder, packed)
    return folder


def load_text_folder(folder: Path) -> TextModel:
    """Load a folder that `write_model_folder` has written.

    Raises:
        UsageError: A file is missing or cannot be read.
    """
    text = read_pack_manifest(folder, TOKENS_FILE)
    tokenizer = load_tokenizer(BYTES if text.tokenizer == BYTES else BPE, folder)
    return load_text_model(folder, text, tokenizer)


def load_text_model(checkpoint: Path, text: PackManifest, tokenizer: Tokenizer) -> TextModel:
    """Load the model of a checkpoint, ready to continue texts.

    Args:
        checkpoint: The folder of the checkpoint.
        text: The manifest of the packed text that the model was trained on.
        tokenizer: The tokenizer of this text.

    Raises:
        CheckpointError: The checkpoint belongs to another task or another text, or is incomplete.
    """
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
