"""Rows of triples with all the factors of their gradients."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clew.influence.link_prediction.deltas import DeltaRows, LossForm
from clew.influence.link_prediction.term_gradients import with_terms
from clew.influence.link_prediction.trunk import Queries, RowGradients, Scorer, Trunk
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.losses.triple_terms import TripleTerms

ROW_CHUNK = 256
"""Rows per backward pass through the convolution; few enough that feature maps stay in cache."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows, the queries that they share, and their activation gradients."""

    rows: DeltaRows
    query: Int[Tensor, "row"]
    """Query of each row."""
    queries: Queries
    gradients: RowGradients

    def direction(self, index: int) -> "Rows":
        """Return the rows of one direction only."""
        size = self.rows.num_triples
        part = slice(index * size, (index + 1) * size)
        rows = self.rows.direction(index)
        return Rows(rows, self.query[part], self.queries, self.gradients.part(part))


@dataclass(frozen=True, eq=False)
class RowBuilder:
    """Turns rows of triples into factors, for one checkpoint.

    `known` gives the tails of training queries if the deltas need them (softmax with kvs_all).
    """

    trunk: Trunk
    scorer: Scorer
    form: LossForm
    depth: int = 3
    """1: only the scorer, 2: also the projection, 3: everything."""
    known: FilterIndex | None = None
    terms: TripleTerms | None = None
    """What the loss adds for each triple; for training rows."""

    def build(self, rows: DeltaRows) -> Rows:
        """Compute each query once, then rows in chunks."""
        num_relations = self.trunk.model.relation.num_embeddings
        key = rows.head * num_relations + rows.relation
        distinct, query = torch.unique(key, return_inverse=True)
        dense = torch.zeros(len(distinct), dtype=torch.bool, device=key.device)
        dense[query[rows.alpha != 0]] = True
        head, relation = distinct // num_relations, distinct % num_relations
        queries = self._queries(head, relation, dense)
        chunks = [
            self._gradients(queries, query[start : start + ROW_CHUNK], rows, start)
            for start in range(0, len(rows) if self.depth > 1 else 0, ROW_CHUNK)
        ]
        none = RowGradients(queries.hidden.new_empty(0, queries.hidden.shape[1]))
        return Rows(rows, query, queries, RowGradients.joined(chunks) if chunks else none)

    def _queries(self, head: Tensor, relation: Tensor, dense: Tensor) -> Queries:
        activations, hidden = self.trunk.forward(head, relation)
        needed = dense.nonzero().flatten()
        base = self._base(head[needed], relation[needed], hidden[needed])
        base_row = torch.zeros(len(head), dtype=torch.long, device=head.device)
        base_row[needed] = torch.arange(len(needed), device=head.device)
        pulled = torch.zeros_like(hidden)
        pulled[needed] = self.scorer.pull(base, hidden[needed])
        if not len(needed):
            base, needed = base.new_zeros(1, len(self.scorer.table)), base_row[:1]
        return Queries(head, relation, activations, hidden, base, base_row, needed, pulled)

    def _base(self, head: Tensor, relation: Tensor, hidden: Tensor) -> Tensor:
        """Return B of queries: P, or Y if a query has several known tails."""
        base = self.form.base_(self.scorer.scores(hidden))
        if self.known is None:
            return base
        row, tail = self.known.lookup(head.cpu().numpy(), relation.cpu().numpy())
        row_of, tail_of = torch.from_numpy(row).to(base.device), torch.from_numpy(tail)
        several = torch.bincount(row_of, minlength=len(base)) > 1
        base[several] = 0.0
        listed = several[row_of]
        base[row_of[listed], tail_of.to(base.device)[listed]] = 1.0
        return base

    def _gradients(
        self, queries: Queries, query: Tensor, rows: DeltaRows, start: int
    ) -> RowGradients:
        part = slice(start, start + len(query))
        pulled = rows.alpha[part, None] * queries.pulled[query]
        slope = self.scorer.slope(rows.tail[part], queries.hidden[query])
        grad_hidden = pulled.sub_(rows.beta[part, None] * slope)
        found = self.trunk.backward(queries, query, grad_hidden, deep=self.depth > 2)
        if self.terms is None or self.depth < 3:
            return found
        return with_terms(found, self.trunk.model, rows, part, self.terms)
