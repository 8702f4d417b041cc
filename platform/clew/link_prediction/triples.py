"""A knowledge graph as arrays of integer ids, and an index of its known answers."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
from jaxtyping import Float64, Int, Int32, Int64

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
    weights: Float64[np.ndarray, "_triple"] | None = None
    """How often each training triple counts; None if each counts once."""

    @property
    def num_entities(self) -> int:
        """Number of entities, including those that are in no triple."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """Number of relations, without inverses."""
        return len(self.relations)

    def split(self, name: str) -> Triples:
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
        if self.weights is not None:
            digest.update(self.weights.astype("<f8").data)
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


def as_keys(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row of ids, equal for equal rows and ordered as they are."""
    sizes = [int(column.max(initial=0)) + 1 for column in rows.T]
    if math.prod(sizes) > LARGEST_KEY:
        ranks: np.ndarray = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return ranks
    keys = np.zeros(len(rows), np.int64)
    for column, size in zip(rows.T, sizes, strict=True):
        keys = keys * size + column
    return keys


Ids = Int[np.ndarray, "query"]
Coordinates = tuple[Int64[np.ndarray, "pair"], Int64[np.ndarray, "pair"]]
"""Rows of a batch and their entities: `(row[i], entity[i])` is a known answer."""

LARGEST_KEY = 2**63 - 1


@dataclass(frozen=True, eq=False)
class FilterIndex:
    """The distinct tails of every distinct query, as rows of a sparse matrix.

    Query number `q` is `(keys[q] // num_relations, keys[q] % num_relations)`; its tails are
    `tails[offsets[q]:offsets[q + 1]]`, in ascending order.
    """

    num_relations: int
    """Number of relations that queries can have, including inverses."""
    keys: Int64[np.ndarray, "distinct"]
    """head * num_relations + relation, in ascending order."""
    offsets: Int64[np.ndarray, "distinct_plus_1"]
    """Position in `tails` at which each query's tails begin."""
    tails: Int32[np.ndarray, "answer"]
    """Known tails, one query after another."""

    @classmethod
    def from_triples(cls, triples: Triples, num_relations: int) -> Self:
        """Index triples, ignoring duplicates."""
        keys, tails = _sorted_distinct_pairs(_keys(triples, num_relations), triples[:, TAIL])
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        return cls(num_relations, keys[starts], np.append(starts, len(keys)), tails)

    @classmethod
    def in_both_directions(cls, triples: Triples, num_relations: int) -> Self:
        return cls.from_triples(add_inverses(triples, num_relations), 2 * num_relations)

    @classmethod
    def from_graph(cls, graph: KnowledgeGraph) -> Self:
        known = np.concatenate([graph.split(split) for split in SPLITS])
        return cls.in_both_directions(known, graph.num_relations)

    @classmethod
    def of_questions(cls, graph: KnowledgeGraph, asked: Triples) -> Self:
        """Index all three splits, but only the answers to the two questions of each asked triple.

        Memory use depends on the number of these answers, not on the size of the graph.
        """
        num_relations = 2 * graph.num_relations
        wanted = np.unique(_keys(graph.with_inverses(asked), num_relations))
        found = [graph.with_inverses(asked)[:0]]
        for split in SPLITS:
            triples = graph.split(split)
            for rows in row_blocks(len(triples)):
                block = graph.with_inverses(triples[rows])
                found.append(block[np.isin(_keys(block, num_relations), wanted)])
        return cls.from_triples(np.concatenate(found), num_relations)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def relations(self) -> Int64[np.ndarray, "distinct"]:
        return self.keys % self.num_relations

    def lookup(self, head: Ids, relation: Ids) -> Coordinates:
        """Return the known tails of queries `(query,)` as coordinates (row, entity).

        Rows are in ascending order, and so are the entities of each row; a query without known
        tails has no coordinates.
        """
        keys = head.astype(np.int64) * self.num_relations + relation
        places = np.searchsorted(self.keys, keys)
        places[places == len(self.keys)] = 0
        known = np.flatnonzero(self.keys[places] == keys) if len(self) else places[:0]
        rows, entities = self.tails_of(places[known])
        return known[rows], entities

    def tails_of(self, queries: Ids) -> Coordinates:
        """Return the tails of distinct queries, given by number, as coordinates (row, entity)."""
        starts = self.offsets[queries]
        counts = self.offsets[queries + 1] - starts
        rows = np.repeat(np.arange(len(queries)), counts)
        skipped = starts + counts - np.cumsum(counts)  # tails of other queries before a query's own
        return rows, self.tails[np.arange(len(rows)) + skipped[rows]].astype(np.int64)


def _keys(triples: Triples, num_relations: int) -> Int64[np.ndarray, "_triple"]:
    keys: np.ndarray = triples[:, HEAD].astype(np.int64) * num_relations + triples[:, RELATION]
    return keys


def _sorted_distinct_pairs(
    keys: Int64[np.ndarray, "triple"], tails: Int32[np.ndarray, "triple"]
) -> tuple[Int64[np.ndarray, "pair"], Int32[np.ndarray, "pair"]]:
    """Return the distinct pairs (key, tail) in ascending order.

    Sorting is eight times faster with both numbers packed into one integer. They are sorted
    separately only if they do not fit into 63 bits.
    """
    num_tails = int(tails.max(initial=0)) + 1
    if (int(keys.max(initial=0)) + 1) * num_tails <= LARGEST_KEY:
        pairs = keys * num_tails
        pairs += tails
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        return pairs // num_tails, (pairs % num_tails).astype(np.int32)
    pairs = np.unique(np.stack([keys, tails], axis=1), axis=0)
    return pairs[:, 0], pairs[:, 1].astype(np.int32)
