"""What to pack, and a text that says whether a folder contains just that."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clew.language_modeling.documents import Unit
from clew.language_modeling.tokenizers import BPE, BYTES

PLAN_VERSION = 2
"""Changes when the same settings lead to other tokens, or to other files with them."""


@dataclass(frozen=True)
class PackSettings:
    """What to pack, and how."""

    dataset: str
    """A text file, a folder, a JSON Lines or Parquet file, or a Hugging Face data set's name."""
    chunk_size: int
    """Tokens in a window."""
    tokenizer: str = BYTES
    """`bytes`, `bpe` or the path of a tokenizers JSON file."""
    vocabulary_size: int = 32768
    """Entries of a locally trained BPE vocabulary."""
    text_column: str = "text"
    """Key or column with the text."""
    max_chunks: int | None = None
    """Stop after this many windows."""
    held_out_fraction: float = 0.1
    """Share of the text, at its end, that a locally trained BPE vocabulary does not see."""

    @property
    def kept_tokenizer(self) -> str:
        """What `load_tokenizer` calls the tokenizer that lies in the pack's folder."""
        return BYTES if self.tokenizer == BYTES else BPE

    @property
    def most_tokens(self) -> int | None:
        """Tokens of all windows and the last one's successor; None: everything is packed."""
        return None if self.max_chunks is None else self.max_chunks * self.chunk_size + 1

    def tokenizer_bytes(self, num_bytes: int) -> int:
        """Return how many of a text's bytes, from the start, a BPE vocabulary is trained on.

        How many bytes a limited number of tokens will need is not known in advance: one each.
        """
        packed = num_bytes if self.most_tokens is None else min(num_bytes, self.most_tokens)
        return int(packed * (1 - self.held_out_fraction))


def plan_text(settings: PackSettings, units: list[Unit]) -> str:
    """Return all that determines a pack, as JSON; without a limit, the window does not."""
    chosen = asdict(settings)
    if settings.max_chunks is None:
        del chosen["chunk_size"]
    if settings.tokenizer != BPE:
        del chosen["held_out_fraction"]
    if settings.tokenizer != BYTES:
        chosen["version"] = PLAN_VERSION
    # Size and time of change of every file, to notice when one changes.
    stats = {unit.path: Path(unit.path).stat() for unit in units if unit.kind != "huggingface"}
    files = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    return json.dumps({"settings": chosen, "files": files, "num_units": len(units)}, indent=1)
