"""Packs a corpus into one memory map of tokens, from which any number of runs can train."""

from dataclasses import dataclass, replace
from pathlib import Path

from clew.errors import UsageError
from clew.files import as_typed, expanded
from clew.language_modeling.packed_tokens import PackManifest
from clew.language_modeling.pretokenize import PackSettings, pretokenize
from clew.language_modeling.tokens import find_text
from clew.workflows.outputs import check_folder


@dataclass(frozen=True)
class PretokenizeResult:
    """A packed corpus, and its folder."""

    output: Path
    manifest: PackManifest

    def table(self) -> str:
        """Return the counts of the packed corpus, one per line."""
        manifest = self.manifest
        windows = max(0, manifest.num_tokens - 1) // manifest.chunk_size
        facts = {
            "documents": f"{manifest.num_documents:,}",
            "bytes of text": f"{manifest.num_bytes:,}",
            "tokens": f"{manifest.num_tokens:,}",
            "bytes per token": f"{manifest.num_bytes / manifest.num_tokens:.2f}",
            f"windows of {manifest.chunk_size:,}": f"{windows:,}",
            "vocabulary": f"{manifest.vocabulary_size:,} ({manifest.tokenizer})",
            "fingerprint": manifest.fingerprint,
        }
        lines = [f"  {name:24} {value}" for name, value in facts.items()]
        train = f"train on it: clew train --config small_32k data.packed={as_typed(self.output)}"
        return "\n".join([f"packed into {self.output}", *lines, train])


def pretokenize_corpus(
    settings: PackSettings, output: Path, *, num_proc: int = 1, force: bool = False
) -> PretokenizeResult:
    """Pack a corpus, or continue where a killed process stopped.

    The corpus is a path, a named data set, or a data set on Hugging Face.

    Raises:
        UsageError: A number is not positive, or the corpus cannot be read.
    """
    for name, value in (
        ("chunk_size", settings.chunk_size),
        ("num_proc", num_proc),
        ("max_chunks", settings.max_chunks),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; expected 1 or more")
    check_folder("--output", output)
    return PretokenizeResult(
        output, pretokenize(_resolved(settings), output, num_proc=num_proc, force=force)
    )


def _resolved(settings: PackSettings) -> PackSettings:
    """Replace the name of a data set by its path, unless a file or folder has this name."""
    path = expanded(settings.dataset)
    if path.exists() or path.suffix or "/" in settings.dataset:
        return settings
    try:
        return replace(settings, dataset=str(find_text(settings.dataset)))
    except UsageError:
        return settings
