"""Settings of a packed corpus, and a plan that identifies the pack in a folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clew.language_modeling.documents import Unit
from clew.language_modeling.tokenizers import BPE, BYTES

PLAN_VERSION = 2
"""Increased when the same settings lead to other tokens or other files."""


@dataclass(frozen=True)
class PackSettings:
    """Settings of a packed corpus."""

    dataset: str
    """A text, JSON Lines or Parquet file, a folder, or the name of a Hugging Face data set."""
    chunk_size: int
    """Number of tokens per window."""
    tokenizer: str = BYTES
    """`bytes`, `bpe` or the path of a tokenizers JSON file."""
    vocabulary_size: int = 32768
    """Number of entries of a BPE vocabulary that is trained on this text."""
    text_column: str = "text"
    """Key or column with the text."""
    max_chunks: int | None = None
    """Stop after this many windows."""
    held_out_fraction: float = 0.1
    """Share of the text, at its end, that is not used to train a BPE vocabulary."""

    @property
    def kept_tokenizer(self) -> str:
        return BYTES if self.tokenizer == BYTES else BPE

    @property
    def most_tokens(self) -> int | None:
        """Tokens of `max_chunks` windows and one more as the last target; None: no limit."""
        return None if self.max_chunks is None else self.max_chunks * self.chunk_size + 1

    def tokenizer_bytes(self, num_bytes: int) -> int:
        """Return the number of bytes at the start of a text that train a BPE vocabulary.

        If the number of tokens is limited, one byte per token is assumed, because the real number
        of bytes is not known before tokenization.
        """
        packed = num_bytes if self.most_tokens is None else min(num_bytes, self.most_tokens)
        return int(packed * (1 - self.held_out_fraction))


def plan_text(settings: PackSettings, units: list[Unit]) -> str:
    """Return everything that determines a pack as JSON, with the window only for `max_chunks`."""
    chosen = asdict(settings)
    if settings.max_chunks is None:
        del chosen["chunk_size"]
    if settings.tokenizer != BPE:
        del chosen["held_out_fraction"]
    if settings.tokenizer != BYTES:
        chosen["version"] = PLAN_VERSION
    # Size and modification time of every file show whether it has changed.
    stats = {unit.path: Path(unit.path).stat() for unit in units if unit.kind != "huggingface"}
    files = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    return json.dumps({"settings": chosen, "files": files, "num_units": len(units)}, indent=1)
