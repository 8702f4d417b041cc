"""Filtered ranking of both sides of triples, with memory use that does not grow with the graph.

For a query (head, relation) all entities are scored, other known answers are left out, and the rank
of an answer with score s is

    1 + #(score > s) + #(score = s) / 2,

the mean of its optimistic and pessimistic rank. The head of a triple is ranked as the tail of the
inverse relation. A model without inverse relations scores every entity as the head instead. This
needs as many forward passes as there are entities, for each relation, so it suits only small
graphs.

Equal scores must stay equal, so they are float32, and an answer's own score is taken from the same
matrix product as the scores that it is compared with. Queries that several triples share are
encoded and scored once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from clew.errors import NonFiniteLossError
from clew.link_prediction.models.base import GraphModel, Queries, Scores
from clew.link_prediction.rank_metrics import RankingResult
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples
from clew.training.sharding import OwnRows

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


Ranks = Float64[np.ndarray, " query"]
Tiles = Callable[[int], Iterator[Scores]]
"""Yields the scores of a batch of queries, with the given number of entities at a time."""

# With fewer rows, matrix products are slow, so entities are split instead of rows.
_MINIMUM_ROWS = 64
_MINIMUM_CHUNK = 2048
_BYTES_PER_SCORE = 8  # a float32 score and the result of comparing it


@dataclass(frozen=True)
class RankingSettings:
    """How much is computed at once; this does not change any rank."""

    batch_size: int = 512
    """Distinct queries scored at once."""
    chunk_bytes: int = 64 * 1024**2
    """Budget for scores and their comparison, in bytes."""


def rank_triples(
    model: GraphModel,
    triples: Triples,
    known: FilterIndex,
    *,
    settings: RankingSettings | None = None,
) -> RankingResult:
    """Rank heads and tails of triples with a model, on the model's device."""
    settings = settings or RankingSettings()
    head, relation, tail = (triples[:, i].astype(np.int64) for i in (HEAD, RELATION, TAIL))
    for_tails = Questions(head, relation, tail)
    for_heads = Questions(tail, relation + known.num_relations // 2, head)
    has_inverses = model.relation.num_embeddings == known.num_relations
    with _evaluation_mode(model):
        tail_ranks = _rank_by_query(model, for_tails, known, settings)
        rank_heads = _rank_by_query if has_inverses else _rank_by_candidate
        head_ranks = rank_heads(model, for_heads, known, settings)
    return RankingResult(triples[:, RELATION], head_ranks, tail_ranks)


def _rank_by_query(
    model: GraphModel, questions: Questions, known: FilterIndex, settings: RankingSettings
) -> Ranks:
    """Rank answers among all entities by the scores of each query (entity, relation)."""
    table = model.entity.weight
    ranks = np.empty(len(questions.answer))
    candidates = model.table_rows
    rows = _rows_at_once(candidates.most, settings)  # the same in all processes
    for group in query_groups(questions, known, rows):
        queries = model.queries(
            to_tensor(group.entity, table.device), to_tensor(group.relation, table.device)
        )

        def tiles(size: int, queries: Tensor = queries) -> Iterator[Scores]:
            for start in range(0, len(table), size):
                yield model.scores(queries, slice(start, start + size))

        ranks[group.place] = _ranks(tiles, group, candidates, table.device, settings)
    return ranks


def _rank_by_candidate(
    model: GraphModel, questions: Questions, known: FilterIndex, settings: RankingSettings
) -> Ranks:
    table, bias = model.entity.weight, model.tail_bias()
    device, ranks = table.device, np.empty(len(questions.answer))
    rows = _rows_at_once(len(table), settings)
    candidates = model.table_rows
    for inverse in np.unique(questions.relation):
        asked = np.flatnonzero(questions.relation == inverse)
        relation = int(inverse) - known.num_relations // 2
        for group in query_groups(questions.take(asked), known, rows):
            tails = to_tensor(group.entity, device)

            def tiles(
                size: int, tails: Tensor = tails, relation: int = relation
            ) -> Iterator[Scores]:
                for start in range(0, len(table), size):
                    heads = torch.arange(start, min(start + size, len(table)), device=device)
                    queries = _encode(model, heads, relation, settings)
                    scores = table[tails] @ queries.T
                    query_bias = model.query_bias(queries)
                    if query_bias is not None:
                        scores += query_bias
                    yield scores if bias is None else scores.add_(bias[tails].unsqueeze(1))

            place = asked[group.place]
            ranks[place] = _ranks(tiles, group, candidates, device, settings)
    return ranks


def _encode(model: GraphModel, heads: Tensor, relation: int, settings: RankingSettings) -> Queries:
    parts = torch.split(heads, settings.batch_size)
    return torch.cat([model.queries(part, torch.full_like(part, relation)) for part in parts])


def _ranks(
    tiles: Tiles,
    group: QueryGroup,
    candidates: OwnRows,
    device: torch.device,
    settings: RankingSettings,
) -> Ranks:
    fitting = settings.chunk_bytes // (_BYTES_PER_SCORE * len(group.entity))
    size = min(max(fitting, _MINIMUM_CHUNK), candidates.count)
    hidden = Coordinates(*candidates.own(*group.hidden), size=size, device=device)
    answers = Coordinates(*candidates.own(group.row, group.answer), size=size, device=device)
    # Values of answers are stored by layer: layer k has answer k of all queries that have one.
    depths = np.bincount(group.layer)
    places = (np.cumsum(depths) - depths)[group.layer] + group.row
    own_places = to_tensor(candidates.own(places, group.answer)[0], device)
    own = torch.zeros(len(places), device=device)
    # An answer is also compared with chunks before its own, and with other processes' entities.
    beforehand = size < candidates.num_rows
    if beforehand:
        for number, scores in enumerate(tiles(size)):
            at, row, column = answers.within(number)
            own[own_places[at]] = scores[row, column]
        own = candidates.sum(own, "ranks")
    above = torch.zeros(own.shape, dtype=torch.float64, device=device)
    for number, scores in enumerate(tiles(size)):
        _check_finite(scores)
        if not beforehand:
            at, row, column = answers.within(number)
            own[own_places[at]] = scores[row, column]
        _, row, column = hidden.within(number)
        scores[row, column] = -torch.inf
        _count_above(scores, own, depths.tolist(), above)
    above = candidates.sum(above, "ranks")
    return (1.0 + 0.5 * above[to_tensor(places, device)]).cpu().numpy()


def _count_above(scores: Scores, own: Tensor, depths: list[int], above: Tensor) -> None:
    """Add, for each answer, how many scores are greater plus how many are at least its own.

    Queries are in descending order of their number of answers, so the `k`-th answers belong to the
    first rows. Counts are sums of zeros and ones in float32, exact up to 2^24 entities per chunk.
    """
    compared, start = torch.empty_like(scores), 0
    for depth in depths:
        layer, out = slice(start, start + depth), compared[:depth]
        own_score = own[layer].unsqueeze(1)
        above[layer] += torch.gt(scores[:depth], own_score, out=out).sum(dim=1)
        above[layer] += torch.ge(scores[:depth], own_score, out=out).sum(dim=1)
        start += depth


def _rows_at_once(num_entities: int, settings: RankingSettings) -> int:
    """Return how many queries to score at once: with all entities in one chunk, if possible."""
    fitting = settings.chunk_bytes // (_BYTES_PER_SCORE * num_entities)
    return min(settings.batch_size, fitting) if fitting >= _MINIMUM_ROWS else settings.batch_size


def _check_finite(scores: Scores) -> None:
    smallest, largest = scores.aminmax()
    if not bool(torch.isfinite(smallest) & torch.isfinite(largest)):
        raise NonFiniteLossError(
            "the model's scores contain NaN or infinity, so they have no ranks; use an earlier "
            "checkpoint, or lower optimizer.learning_rate"
        )


@contextmanager
def _evaluation_mode(model: GraphModel) -> Iterator[None]:
    """Evaluate in full float32 without gradients; restore the model's mode afterwards."""
    was_training, device = model.training, model.entity.weight.device.type
    matmul = torch.backends.cuda.matmul
    precision = matmul.fp32_precision
    model.eval()
    try:
        if device == "cuda":  # TF32 keeps only 10 bits of a score, which creates ties
            matmul.fp32_precision = "ieee"
        with torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        model.train(was_training)
        if device == "cuda":
            matmul.fp32_precision = precision
