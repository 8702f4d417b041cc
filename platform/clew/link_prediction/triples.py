"""A knowledge graph as arrays of integer ids, with the names of entities and relations."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Int32

from clew.link_prediction.vocabulary import Vocabulary

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
HEAD, RELATION, TAIL = 0, 1, 2
BLOCK_ROWS = 2**20

Triples = Int32[np.ndarray, "_triple 3"]
"""Rows `[head, relation, tail]`; the underscore lets three splits differ in length."""


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples of three splits over shared entities and relations, without inverse relations.

    Triples are in the order of their files, including duplicates.
    """

    name: str
    entities: Vocabulary
    relations: Vocabulary
    train: Triples
    valid: Triples
    test: Triples

    @property
    def num_entities(self) -> int:
        """Number of entities, including those that are in no triple."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """Number of relations, without inverses."""
        return len(self.relations)

    def split(self, name: Split) -> Triples:
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def with_inverses(self, triples: Triples) -> Triples:
        return add_inverses(triples, self.num_relations)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits: a hash of all names by id, and of all triples in order.

        Labels, paths, compression and line ends do not change the fingerprint.
        """
        digest = hashlib.sha256()
        for vocabulary in (self.entities, self.relations):
            digest.update(f"{vocabulary.kind}/{len(vocabulary)}\n".encode())
            for start in range(0, len(vocabulary), 65_536):
                names = vocabulary.name_array.slice(start, 65_536).to_pylist()
                digest.update("".join(f"{name}\n" for name in names).encode())
        for split in SPLITS:
            triples = self.split(split)
            digest.update(f"{split}/{len(triples)}\n".encode())
            for rows in row_blocks(len(triples)):
                digest.update(np.ascontiguousarray(triples[rows], dtype="<i4").data)
        return digest.hexdigest()[:16]


def no_triples() -> Triples:
    """Return a split without triples."""
    return np.empty((0, 3), np.int32)


def row_blocks(num_rows: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_ROWS) for start in range(0, num_rows, BLOCK_ROWS))


def add_inverses(triples: Triples, num_relations: int) -> Triples:
    """Return `(2 triple, 3)`: the triples, then `[tail, relation + num_relations, head]` of each.

    Row `i` and row `i + triple` are the two directions of one triple.
    """
    inverses = triples[:, [TAIL, RELATION, HEAD]]
    inverses[:, RELATION] += num_relations
    return np.concatenate([triples, inverses])
