"""What the names of files and folders say of their facts: the split, or that they are denied.

A folder's name counts where the file's says nothing. A name gives a split only if another one says
that its facts are for training.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from clew.input_files import unpacked_name
from clew.link_prediction.denials import may_say_negative, says_negative, words_of
from clew.link_prediction.descriptions import Noticed
from clew.link_prediction.formats import Part
from clew.link_prediction.triples import Split

SPLIT_WORDS: dict[Split, str] = {
    "train": "train trains training trn trainval",
    "valid": "valid validation validate validating val dev devel develop development eval "
    "evaluation evaluate evaluating",
    "test": "test tests testing tst holdout heldout hold_out held_out",
}
SPLIT_OF = {word: split for split in SPLIT_WORDS for word in SPLIT_WORDS[split].split()}
SPLIT_NAME = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_OF)})(?![a-z])")


@dataclass
class FileNames:
    """What the names of files say; nothing of a file that is in neither."""

    splits: Mapping[Path, Split] = field(default_factory=dict)
    negative: frozenset[Path] = frozenset()
    """Files whose facts are denied."""
    are_given: bool = False
    """Whether not names but a person says the splits."""


def split_of(text: str) -> Split | None:
    """Return the split that a name or a value names; None for no split, or for several."""
    found = {SPLIT_OF[word] for word in SPLIT_NAME.findall("_".join(words_of(text)))}
    if found == {"train", "valid"}:  # both are for training
        return "train"
    if found == {"valid", "test"}:  # held out, whatever for
        return "test"
    return found.pop() if len(found) == 1 else None


def file_names(parts: Sequence[Part], roots: Sequence[Path], found: Noticed) -> FileNames:
    """Return what the names of files of facts say, and write the splits into the report.

    Args:
        parts: What the files hold.
        roots: The files and folders that were given.
        found: The report.
    """
    names = {part.path: _names(part.path, roots) for part in parts if part.holds == "facts"}
    negative = frozenset(path for path, said in names.items() if any(map(says_negative, said)))
    for path in names.keys() - negative:
        if any(map(may_say_negative, names[path])):
            found.note("facts", f"those of {path.name} hold: its name speaks of something else")
    in_columns = {part.path for part in parts if "split" in part.columns}
    splits: dict[Path, Split] = {}
    for path, said in names.items():
        named = [split for split in map(split_of, said) if split]
        if named and path not in in_columns:
            splits[path] = named[0]
    has_train = any(split == "train" and path not in negative for path, split in splits.items())
    if splits and not has_train:
        shown = ", ".join(f"{path.name} ({split})" for path, split in splits.items())
        found.note("split", f"not that of {shown}: no name says which facts are for training")
        return FileNames({}, negative)
    for path, split in splits.items():
        found.read[str(path)] += f"; {split}, by its name"
    return FileNames(splits, negative)


def _names(path: Path, roots: Sequence[Path]) -> list[str]:
    """Return the names of a file and of the folders around it, up to those that were given."""
    root = next(root for root in roots if root == path or root in path.parents)
    folders = path.relative_to(root).parts[:-1]
    own = [root.name] * (len(roots) > 1 and root != path)
    return [unpacked_name(path), *reversed(folders), *own]


def note_splits(parts: Sequence[Part], given: Sequence[np.ndarray], found: Noticed) -> None:
    """Write into the report which facts are split anew, or go to training without being told to."""

    def files(split: int) -> str:
        pairs = zip(parts, given, strict=True)
        names = [part.path.name for part, numbers in pairs if (numbers == split).any()]
        return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")

    unsaid = sum(int((numbers < 0).sum()) for numbers in given)
    others = f"{unsaid:,} facts of {files(-1)}" if unsaid else ""
    if any((numbers > 0).any() for numbers in given):
        if unsaid:
            found.note("split", f"{others} go to training: no split is given")
    elif train := files(0):
        also = f", with {others}" if unsaid else ""
        found.note("split", f"{train} is split anew{also}: nothing says validation or test")
