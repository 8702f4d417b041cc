"""What is enough to continue texts: a checkpoint, and what its tokens are.

    model.safetensors  manifest.json      the checkpoint
    tokens.json                           the manifest of the packed text that it was trained on
    tokenizer.json                        the tokenizer, unless tokens are bytes

A run keeps the last two beside its checkpoints, so that its text need not be there.
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
    """Write what the tokens of a packed text are, and their tokenizer if it is a file."""
    text = json.dumps(asdict(packed.manifest), indent=1) + "\n"
    (folder / TOKENS_FILE).write_text(text, encoding="utf-8")
    if packed.manifest.tokenizer != BYTES:
        shutil.copy2(packed.folder / TOKENIZER_FILE, folder / TOKENIZER_FILE)


def write_model_folder(folder: Path, *, checkpoint: Path, packed: PackedTokens) -> Path:
    """Copy a checkpoint and everything else that continuing texts needs into a new folder."""
    folder.mkdir(parents=True)
    copy_weights(checkpoint, folder)
    write_tokens(folder, packed)
    return folder


def load_text_folder(folder: Path) -> TextModel:
    """Load a folder that `write_model_folder` has written.

    Raises:
        UsageError: something in it is missing or cannot be read.
    """
    text = read_pack_manifest(folder, TOKENS_FILE)
    tokenizer = load_tokenizer(BYTES if text.tokenizer == BYTES else BPE, folder)
    return load_text_model(folder, text, tokenizer)


def load_text_model(checkpoint: Path, text: PackManifest, tokenizer: Tokenizer) -> TextModel:
    """Load the model of a checkpoint, ready to continue texts.

    Args:
        checkpoint: Its folder.
        text: What the text that it was trained on says of itself.
        tokenizer: That text's.

    Raises:
        CheckpointError: the checkpoint belongs to another task or another text, or is incomplete.
    """
    manifest = read_manifest(checkpoint)
    config = from_mapping(manifest.config, source=str(checkpoint / MANIFEST_FILE))
    if not isinstance(config.model, EigenstateLMModel):
        raise CheckpointError(
            f"{checkpoint}: a {config.model.kind} model, expected eigenstate_lm; only language "
            "models continue texts"
        )
    if text.fingerprint != manifest.data_fingerprint:
        raise CheckpointError(
            f"{checkpoint}: was trained on text {manifest.data_fingerprint}, the tokens given are "
            f"of {text.fingerprint}; take both from one run"
        )
    settings, size = config.model, text.vocabulary_size
    model = read_model(
        checkpoint, lambda: EigenstateLM(size, settings, end_of_text=text.end_of_text)
    )
    return TextModel(model.eval(), tokenizer)
