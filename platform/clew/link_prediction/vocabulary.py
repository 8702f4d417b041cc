"""Names of entities or relations, and their integer ids."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, SupportsInt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rapidfuzz import fuzz, process

from clew.config.base import can_be_written
from clew.errors import DataError, quoted
from clew.input_files import columns_of, read_columns

Kind = Literal["entity", "relation"]
MINIMUM_RATIO = 60
"""Smallest similarity of a near match in percent."""
BLOCK_NAMES = 65_536
LONGEST_NAME = 1_000
"""Longest text for which near matches are searched."""
ID_FIELDS_KEY = b"clew.fields_may_be_ids"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The names of entities or relations in the order of their ids.

    Names and labels are Arrow string arrays: a million names need about 25 MB, and looking one up
    is a binary search over an index of 4 bytes per name.
    """

    kind: Kind
    name_array: pa.StringArray
    """Names `(id,)`, all different."""
    label_array: pa.StringArray | None = None
    """Readable labels `(id,)`; null if there is none."""
    fields_may_be_ids: bool = False
    """Whether data files can contain ids instead of names: the ids come from a dictionary, and
    none of its names is itself a whole number."""
    category_array: pa.StringArray | None = None
    """Kinds of entities `(id,)`, such as `Drug`; null if the kind is not known."""
    synonym_array: pa.StringArray | None = None
    """Other names of entities `(id,)`, separated by `|`; null if there are none."""

    @classmethod
    def from_names(cls, kind: Kind, names: list[str]) -> Self:
        return cls(kind, pa.array(names, pa.string()))

    def __len__(self) -> int:
        return len(self.name_array)

    def __iter__(self) -> Iterator[str]:
        return (scalar.as_py() for scalar in self.name_array)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._position(name) is not None

    def name(self, id: SupportsInt) -> str:
        return str(self.name_array[int(id)].as_py())

    def label(self, id: SupportsInt) -> str:
        """Return the readable text for an id: its label, or its name if it has no label."""
        label = self.label_array[int(id)].as_py() if self.label_array is not None else None
        return str(label) if label else self.name(id)

    def id(self, name: str) -> int:
        """Return the id of a name; the error for an unknown name suggests similar names."""
        position = self._position(name)
        if position is None:
            raise DataError(self.unknown_name_message(name))
        return position

    def id_of_text(self, text: str) -> int:
        """Return the id of a name, or of the only name that has the text as its label.

        Raises:
            DataError: If the text is neither a name nor a label, or is the label of several names.
        """
        if text in self or self.label_array is None or not can_be_written(text):
            return self.id(text)
        found = np.flatnonzero(pc.equal(self.label_array, text).fill_null(False))
        if len(found) > 1:
            shown = " or ".join(quoted(self.name(i)) for i in found[:3])
            raise DataError(
                f"{quoted(text)} is the label of {len(found)} {self.kind} names; give the name "
                f"itself, for example {shown}"
            )
        return int(found[0]) if len(found) else self.id(text)

    def named(self, ids: np.ndarray) -> list[tuple[str, str]]:
        """Return name and label of ids `(id,)`."""
        names = labels = self.name_array.take(pa.array(ids)).to_pylist()
        if self.label_array is not None:
            labels = self.label_array.take(pa.array(ids)).to_pylist()
        return [(name, label or name) for name, label in zip(names, labels, strict=True)]

    @property
    def num_labels(self) -> int:
        return len(self) - self.label_array.null_count if self.label_array is not None else 0

    def find(self, names: pa.StringArray) -> np.ndarray:
        """Return the ids of many names `(name,)`, int32, -1 for an unknown one."""
        positions = pc.index_in(names, value_set=self.name_array)
        return np.array(positions.fill_null(-1), dtype=np.int32)

    def near_matches(self, text: str, *, limit: int = 3) -> list[str]:
        """Return names whose name or label is similar to a text, the most similar first."""
        if len(text) > LONGEST_NAME:
            return []
        found = near_matches(text, self.name_array, limit=limit)
        if self.label_array is not None and len(found) < limit:
            for label in near_matches(text, self.label_array, limit=limit - len(found)):
                found.append(self.name(pc.index(self.label_array, label).as_py()))
        return list(dict.fromkeys(found))

    def unknown_name_message(self, name: str) -> str:
        found = self.near_matches(name)
        shown = [self._shown(near) for near in found]
        hint = f"; did you mean {' or '.join(shown)}?" if shown else ""
        plural = {"entity": "entities", "relation": "relations"}[self.kind]
        return (
            f"unknown {self.kind} {quoted(name)}; it is not one of the {len(self):,} {plural}{hint}"
        )

    def with_labels(self, labels: pa.StringArray) -> Self:
        """Return the same names with labels `(id,)`; null means no label."""
        return replace(self, label_array=labels)

    def write(self, path: Path) -> None:
        """Write a Parquet file: id, name, label and, if known, category and synonyms."""
        ids, labels = np.arange(len(self), dtype=np.int32), self.label_array
        columns = {"id": pa.array(ids), "name": self.name_array}
        columns["label"] = pa.nulls(len(self), pa.string()) if labels is None else labels
        for name, texts in (("category", self.category_array), ("synonyms", self.synonym_array)):
            columns |= {} if texts is None else {name: texts}
        metadata = {ID_FIELDS_KEY: str(int(self.fields_may_be_ids)).encode()}
        pq.write_table(pa.table(columns, metadata=metadata), path)

    @classmethod
    def read(cls, path: Path, kind: Kind) -> Self:
        """Read a file written by `write`."""
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected the {kind} vocabulary of a run")
        types = {"name": pa.string(), "label": pa.string()}
        present = columns_of(path, "a vocabulary of a run")
        types |= {name: pa.string() for name in ("category", "synonyms") if name in present}
        table = read_columns(path, types, "a vocabulary of a run")
        found = {name: table.column(name).combine_chunks() for name in types}
        names, labels = found["name"], found["label"]
        if not len(names) or names.null_count:
            raise DataError(f"{path}: not a vocabulary of a run (a name is missing)")
        may_be_ids = (table.schema.metadata or {}).get(ID_FIELDS_KEY) == b"1"
        known = labels if labels.null_count < len(labels) else None
        return cls(kind, names, known, may_be_ids, found.get("category"), found.get("synonyms"))

    def _shown(self, name: str) -> str:
        label = self.label(self.id(name))
        return f"{quoted(name)} ({quoted(label)[1:-1]})" if label != name else quoted(name)

    @cached_property
    def _order(self) -> np.ndarray:
        """Ids sorted by name, int32 `(id,)`; Arrow compares bytes, which sorts by code point."""
        return np.asarray(pc.sort_indices(self.name_array), dtype=np.int32)

    def _position(self, name: str) -> int | None:
        place = bisect_left(self._order, name, key=self.name)
        if place < len(self) and self.name(self._order[place]) == name:
            return int(self._order[place])
        return None


def near_matches(query: str, names: pa.StringArray, *, limit: int = 3) -> list[str]:
    """Return up to `limit` of the names `(name,)`, the most similar to the query first."""
    found: list[tuple[float, str]] = []
    for start in range(0, len(names), BLOCK_NAMES):
        best = process.extract(
            query.casefold(),
            [name or "" for name in names.slice(start, BLOCK_NAMES).to_pylist()],
            scorer=fuzz.ratio,
            processor=str.casefold,
            score_cutoff=MINIMUM_RATIO,
            limit=limit,
        )
        found = sorted([*found, *((-score, name) for name, score, _ in best)])[:limit]
    return [name for _, name in found]
