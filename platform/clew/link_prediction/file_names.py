"""What the names of files and folders say of their facts: that they are denied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clew.input_files import unpacked_name
from clew.link_prediction.denials import says_negative
from clew.link_prediction.formats import Part
from clew.link_prediction.triples import Split


@dataclass
class FileNames:
    """What the names of files say; nothing of a file that is in neither."""

    splits: Mapping[Path, Split] = field(default_factory=dict)
    negative: frozenset[Path] = frozenset()
    """Files whose facts are denied."""


def file_names(parts: Sequence[Part], roots: Sequence[Path]) -> FileNames:
    """Return what the names of files of facts say.

    Args:
        parts: What the files hold.
        roots: The files and folders that were given.
    """
    names = {part.path: _names(part.path, roots) for part in parts if part.holds == "facts"}
    negative = frozenset(path for path, said in names.items() if any(map(says_negative, said)))
    return FileNames(negative=negative)


def _names(path: Path, roots: Sequence[Path]) -> list[str]:
    """Return the names of a file and of the folders around it, up to those that were given."""
    root = next(root for root in roots if root == path or root in path.parents)
    folders = path.relative_to(root).parts[:-1]
    own = [root.name] * (len(roots) > 1 and root != path)
    return [unpacked_name(path), *reversed(folders), *own]
