"""Groups questions with the same query, so that each query is encoded and scored once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clew.link_prediction.filters import FilterIndex

Ids = Int[np.ndarray, " query"]
AnswerIds = Int[np.ndarray, " answer"]
PairIds = Int[np.ndarray, " pair"]


@dataclass(frozen=True)
class Questions:
    """Queries (entity, relation), each with one answer to rank; a query can occur several times."""

    entity: Ids
    relation: Ids
    """Relation, including inverses: r + R asks for heads of r."""
    answer: Ids

    def take(self, indices: PairIds) -> "Questions":
        return Questions(self.entity[indices], self.relation[indices], self.answer[indices])


@dataclass(frozen=True)
class QueryGroup:
    """Distinct queries that are scored together, in descending order of their answers' number."""

    entity: Ids
    """The given entity of each query."""
    relation: Ids
    """Relation of each query, including inverses."""
    row: AnswerIds
    """Index of each answer's query in the group."""
    layer: AnswerIds
    """Position of each answer among the answers of its query."""
    answer: AnswerIds
    """Entity of each answer."""
    place: AnswerIds
    """Position of each answer's rank in the result."""
    hidden: tuple[PairIds, PairIds]
    """Pairs (query, entity) that are not candidates: known answers, including those to rank."""


def query_groups(questions: Questions, known: FilterIndex, size: int) -> Iterator[QueryGroup]:
    """Group questions with the same query, and yield `size` distinct queries at a time."""
    keys = questions.entity * known.num_relations + questions.relation
    distinct, query_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
    by_count = np.argsort(-counts, kind="stable")
    position = np.empty_like(by_count)
    position[by_count] = np.arange(len(by_count))
    # Answers in the order of their queries, so that a group's answers are next to each other.
    place = np.argsort(position[query_of], kind="stable")
    ends = np.cumsum(counts[by_count])
    for start in range(0, len(distinct), size):
        chosen = by_count[start : start + size]
        first = ends[start] - counts[by_count[start]]
        here = place[first : ends[start + len(chosen) - 1]]
        row = np.repeat(np.arange(len(chosen)), counts[chosen])
        begins = np.cumsum(counts[chosen]) - counts[chosen]
        given, relations = np.divmod(distinct[chosen], known.num_relations)
        known_row, known_entity = known.lookup(given, relations)
        yield QueryGroup(
            entity=given,
            relation=relations,
            row=row,
            layer=np.arange(len(row)) - begins[row],
            answer=questions.answer[here],
            place=here,
            hidden=(
                np.concatenate([known_row, row]),
                np.concatenate([known_entity, questions.answer[here]]),
            ),
        )


class Coordinates:
    """Pairs (query, entity), looked up by chunk of entities."""

    def __init__(self, row: PairIds, entity: PairIds, *, size: int, device: torch.device) -> None:
        chunk = entity // size
        self.order = np.argsort(chunk, kind="stable")
        self.ends = np.cumsum(np.bincount(chunk))
        self.row, self.entity, self.size, self.device = row, entity, size, device

    def within(self, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return which pairs are in a chunk, their rows and their columns in it."""
        ends = np.concatenate([[0], self.ends])
        at = self.order[ends[min(chunk, len(self.ends))] : ends[min(chunk + 1, len(self.ends))]]
        columns = self.entity[at] - chunk * self.size
        place, row, column = (to_tensor(x, self.device) for x in (at, self.row[at], columns))
        return place, row, column


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
