"""Training rows of link prediction: a query (head, relation) and its correct tails.

Correct tails are coordinates (row, entity); a matrix of zeros and ones over all entities is never
built.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples
from clew.training.loaders import TensorBatch

SHOWN_EXAMPLES = 8


@dataclass(frozen=True, eq=False)
class TripleBatch(TensorBatch):
    """Queries that are processed together, and their positives as coordinates."""

    head: Int64[Tensor, "batch"]
    """Head of each query."""
    relation: Int64[Tensor, "batch"]
    """Relation of each query; r + R is the inverse of r."""
    row: Int64[Tensor, "positive"]
    """Position in the batch of each positive's query, in ascending order."""
    entity: Int64[Tensor, "positive"]
    """Tail of each positive."""
    example: Int64[Tensor, "batch"]
    """Index of each query among the training examples."""

    @property
    def num_examples(self) -> int:
        return len(self.head)

    @property
    def count(self) -> float:
        return len(self.head)

    def units(self) -> dict[str, int]:
        return {"examples": self.num_examples}

    def describe(self) -> str:
        """Return the numbers of the first examples."""
        shown = ", ".join(map(str, self.example[:SHOWN_EXAMPLES].tolist()))
        if self.num_examples == 1:
            return f"1 query (example {shown})"
        more = ", …" if self.num_examples > SHOWN_EXAMPLES else ""
        return f"{self.num_examples} queries (examples {shown}{more})"


@dataclass(frozen=True, eq=False)
class WeightedBatch(TripleBatch):
    """Queries that count several times, or in part."""

    weight: Float64[Tensor, "batch"]

    @property
    def count(self) -> float:
        return float(self.weight.sum())


class OneVsAllExamples:
    """One example per training triple; its tail is the only positive.

    With inverse relations, example `i + n` of `n` triples asks for the head of triple `i`.
    """

    def __init__(
        self,
        triples: Triples,
        num_relations: int,
        *,
        inverse_relations: bool,
        weights: np.ndarray | None = None,
    ) -> None:
        self.triples, self.weights = triples, weights
        self.num_relations = num_relations
        self.num_directions = 2 if inverse_relations else 1

    def __len__(self) -> int:
        return self.num_directions * len(self.triples)

    def batch(self, indices: np.ndarray) -> TripleBatch:
        example = indices.astype(np.int64)
        triple = self.triples[example % len(self.triples)].astype(np.int64)
        inverse = example >= len(self.triples)
        head = np.where(inverse, triple[:, TAIL], triple[:, HEAD])
        tail = np.where(inverse, triple[:, HEAD], triple[:, TAIL])
        relation = triple[:, RELATION] + inverse * self.num_relations
        batch = _as_batch(head, relation, np.arange(len(example)), tail, example)
        if self.weights is None:
            return batch
        weight = torch.from_numpy(self.weights[example % len(self.triples)])
        return WeightedBatch(**vars(batch), weight=weight)


@dataclass(frozen=True, eq=False)
class GroupedBatch(TripleBatch):
    """Queries, each of which represents one triple for each of its positives."""

    @property
    def count(self) -> float:
        return len(self.row)


class KvsAllExamples:
    """One example per distinct query (head, relation); all its training tails are positive.

    Queries are sorted by head, then by relation.
    """

    batch_type = TripleBatch

    def __init__(self, triples: Triples, num_relations: int, *, inverse_relations: bool) -> None:
        self.index = _index(triples, num_relations, inverse_relations)

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, indices: np.ndarray) -> TripleBatch:
        example = indices.astype(np.int64)
        head, relation = np.divmod(self.index.keys[example], self.index.num_relations)
        row, entity = self.index.tails_of(example)
        return _as_batch(head, relation, row, entity, example, kind=self.batch_type)


class GroupedExamples(KvsAllExamples):
    """One example for at most `size` training triples with the same query (head, relation).

    The triples of a query are assigned to its examples at random, once. Duplicates count once.
    """

    batch_type = GroupedBatch

    def __init__(
        self, triples: Triples, num_relations: int, *, inverse_relations: bool, size: int
    ) -> None:
        index = _index(triples, num_relations, inverse_relations)
        query, tail = index.tails_of(np.arange(len(index)))
        drawn = np.random.default_rng(0).permutation(len(query))
        drawn = drawn[np.argsort(query[drawn], kind="stable")]
        size = max(1, min(size, len(query)))  # the configured size can exceed 64 bits
        num_examples = -(-np.diff(index.offsets) // size)
        of_query = np.repeat(np.arange(len(index)), num_examples)
        place = np.arange(len(of_query)) - (np.cumsum(num_examples) - num_examples)[of_query]
        starts = index.offsets[of_query] + place * size
        # As an index in which a query can be several times.
        offsets = np.append(starts, len(tail))
        self.index = replace(index, keys=index.keys[of_query], offsets=offsets, tails=tail[drawn])


def _index(triples: Triples, num_relations: int, inverse_relations: bool) -> FilterIndex:
    """Index the tails of each query, in both directions if there are inverse relations."""
    if not inverse_relations:
        return FilterIndex.from_triples(triples, num_relations)
    return FilterIndex.in_both_directions(triples, num_relations)


def _as_batch(*arrays: np.ndarray, kind: type[TripleBatch] = TripleBatch) -> TripleBatch:
    return kind(*(torch.from_numpy(array) for array in arrays))
