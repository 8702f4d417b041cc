"""Relations that say the same as another one, and the triples that leak through them.

Two relations are inverses if at least three fifths of the larger one's facts have their inverse in
the other, duplicates if at least four fifths of them are in the other, ten facts at least. A test
triple whose inverse or duplicate is a training triple can be answered by looking it up: FB15k
became FB15k-237 for this. A relation that is its own inverse is symmetric: the mirror of its triple
(h, r, t) is (t, r, h).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from clew.link_prediction.triples import (
    LARGEST_KEY,
    SPLITS,
    KnowledgeGraph,
    Triples,
    no_triples,
    row_blocks,
)

LEAST_COMMON, LEAST_SHARE = 10, {"inverse": 0.6, "symmetric": 0.6, "duplicate": 0.8}
PART_ROWS = 2**22
COUNTERPARTS: tuple[Literal["", "inverse", "duplicate"], ...] = ("", "inverse", "duplicate")
PairKind = Literal["inverse", "duplicate", "symmetric"]


@dataclass(frozen=True)
class RelationPair:
    """Two relations whose facts are inverses or duplicates of each other, or a symmetric one."""

    kind: PairKind
    first: int
    second: int
    common: int
    """Number of the first relation's facts that have a counterpart in the second."""
    share: float
    """Its share of the larger relation's facts."""


@dataclass(frozen=True, eq=False)
class Leakage:
    """The pairs of relations of a graph, and the triples that it repeats."""

    pairs: list[RelationPair]
    num_repeated: int
    repeated: Triples
    """At most three of them."""


def find_leakage(graph: KnowledgeGraph) -> Leakage:
    """Compare all relations by exact counts; about `PART_ROWS` triples are in memory at a time."""
    size = graph.num_relations
    numbers = np.zeros(size, np.int64)
    common = sparse.csr_matrix((2 * size, 2 * size), dtype=np.int64)
    num_repeated, repeated = 0, no_triples()
    for triples in _parts(graph):
        head, relation, tail = triples.T
        low, high = np.minimum(head, tail).astype(np.int64), np.maximum(head, tail)
        pair = low * (int(high.max(initial=0)) + 1) + high
        if (int(pair.max(initial=0)) + 1) * 2 * size > LARGEST_KEY:
            pair = np.unique(pair, return_inverse=True)[1]
        unsorted = pair * (2 * size) + 2 * relation + (head > tail)
        keys = np.sort(unsorted)
        is_new = np.diff(keys, prepend=-1) != 0
        num_repeated += len(keys) - int(is_new.sum())
        if len(repeated) < 3 and len(twice := keys[~is_new][:3]):
            repeated = triples[np.isin(unsorted, twice)][:3]
        keys = keys[is_new]
        if (is_loop := head == tail).any():
            keys = keys[~np.isin(keys, unsorted[is_loop])]
        pair, side = np.divmod(keys, 2 * size)
        numbers += np.bincount(side // 2, minlength=size)
        is_next = pair[1:] == pair[:-1]
        is_shared = np.zeros(len(pair), bool)  # none, if all triples are self-loops
        is_shared[:-1] |= is_next
        is_shared[1:] |= is_next
        pair, side = pair[is_shared], side[is_shared]
        starts = np.append(np.flatnonzero(np.diff(pair, prepend=-1)), len(pair))
        ones = np.ones(len(side), np.int64)
        sides = sparse.csr_matrix((ones, side, starts), shape=(len(starts) - 1, 2 * size))
        common += sides.T @ sides
    return Leakage(_pairs(common.tocoo(), numbers), num_repeated, repeated)


def _parts(graph: KnowledgeGraph) -> Iterator[Triples]:
    """Yield all triples in parts; those between the same two entities are in one part."""
    splits = [graph.split(split) for split in SPLITS]
    num_parts = -(-sum(map(len, splits)) // PART_ROWS)
    for part in range(num_parts):
        found = [no_triples()]
        for triples in splits:
            for block in row_blocks(len(triples)):
                rows = np.asarray(triples[block])
                if num_parts > 1:
                    rows = rows[(rows[:, 0].astype(np.int64) + rows[:, 2]) % num_parts == part]
                found.append(rows)
        yield np.concatenate(found)


def _pairs(common: sparse.coo_matrix, numbers: np.ndarray) -> list[RelationPair]:
    """Return the pairs of relations with enough in common, given the counts of their sides."""
    size = len(numbers)
    first, second = common.row.astype(np.int64) // 2, common.col // 2
    is_inverse = (common.row ^ common.col) & 1
    is_wanted = (first < second) | ((first == second) & (is_inverse == 1))
    keys = ((first * size + second) * 2 + is_inverse)[is_wanted]
    found, place = np.unique(keys, return_inverse=True)
    counts = np.bincount(place, common.data[is_wanted], len(found)).astype(np.int64)
    pairs = []
    for key, count in zip(found, counts, strict=True):
        if count < LEAST_COMMON:
            continue
        one, other = divmod(int(key) // 2, size)
        kind: PairKind = "symmetric" if one == other else "inverse" if key % 2 else "duplicate"
        share = float(count / max(numbers[one], numbers[other]))
        if share >= LEAST_SHARE[kind]:
            pairs.append(RelationPair(kind, one, other, int(count), share))
    return pairs


def counterparts(
    triples: Triples, pairs: Sequence[RelationPair]
) -> Iterator[tuple[np.ndarray, Triples]]:
    """Yield rows of triples, and the inverse or duplicate that each would have in a relation."""
    for pair in pairs:
        for here, there in {(pair.first, pair.second), (pair.second, pair.first)}:
            rows = np.flatnonzero(triples[:, 1] == here)
            others = triples[rows][:, [0, 1, 2] if pair.kind == "duplicate" else [2, 1, 0]]
            others[:, 1] = there
            yield rows, others


def is_leaked(graph: KnowledgeGraph, triples: Triples, pairs: Sequence[RelationPair]) -> np.ndarray:
    """Return which triples have their inverse, mirror or duplicate in training, `(triple,)`."""
    found = np.zeros(len(triples), bool)
    wanted = [(np.zeros(0, np.int64), no_triples()), *counterparts(triples, pairs)]
    rows, others = (np.concatenate(part) for part in zip(*wanted, strict=True))
    if not len(rows):
        return found
    size, num_relations = graph.num_entities, graph.num_relations
    ends, place = np.unique(_ends(others, size), return_inverse=True)
    keys = place * num_relations + others[:, 1]
    is_used = np.zeros(num_relations, bool)
    is_used[others[:, 1]] = True
    known = [np.zeros(0, np.int64)]
    for block in row_blocks(len(graph.train)):
        train = graph.train[block]
        train = train[is_used[train[:, 1]]]
        given = _ends(train, size)
        place = np.minimum(np.searchsorted(ends, given), len(ends) - 1)
        is_same = ends[place] == given
        known.append(np.unique(place[is_same] * num_relations + train[is_same, 1]))
    found[rows[np.isin(keys, np.concatenate(known))]] = True
    return found


def _ends(triples: Triples, num_entities: int) -> np.ndarray:
    """Return a number for the head and tail of each triple."""
    return np.asarray(triples[:, 0].astype(np.int64) * num_entities + triples[:, 2])


def marks(test: np.ndarray, facts: Triples, pairs: Sequence[RelationPair]) -> np.ndarray:
    """Return the place in `COUNTERPARTS` of what each fact is of a test triple, `(fact,)`."""
    found = np.zeros(len(facts), np.int32)
    for pair in (pair for pair in pairs if test[1] in (pair.first, pair.second)):
        for _, others in counterparts(test[None], [pair]):
            for other in others:
                found[(facts == other).all(axis=1)] = 2 if pair.kind == "duplicate" else 1
    return found
