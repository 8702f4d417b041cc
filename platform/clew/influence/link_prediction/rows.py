"""Rows of triples with all the factors of their gradients."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from clew.influence.link_prediction.deltas import DeltaRows, LossForm
from clew.influence.link_prediction.trunk import Queries, RowGradients, Scorer, Trunk
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import Factorization, GraphModel

ROW_CHUNK = 256
"""Rows per backward pass through the convolution; few enough that feature maps stay in cache."""


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """Rows, the queries that they share, and their activation gradients."""

    rows: DeltaRows
    query: Int[Tensor, "row"]
    """Query of each row."""
    queries: Queries
    gradients: RowGradients

    def direction(self, index: int) -> "FactoredRows":
        """Return the rows of one direction only."""
        size = self.rows.num_triples
        part = slice(index * size, (index + 1) * size)
        rows = self.rows.direction(index)
        return FactoredRows(rows, self.query[part], self.queries, self.gradients.part(part))


@dataclass(frozen=True, eq=False)
class RowBuilder:
    """Turns rows of triples into factors, for one checkpoint.

    Args:
        trunk: The checkpoint.
        scorer: Its products with the entity table.
        form: The loss that trained the model.
        depth: 1: only the scorer, 2: also the projection, 3: everything.
        known: Tails of training queries, if their deltas need them (softmax with kvs_all).
        terms: What the loss adds for each triple; for training rows.
        answers: All known answers, if rows are those of the filtered loss (see `deltas`).
        small: Whether gradients of convolution and normalisation, or of the network, are needed.
    """

    trunk: Trunk
    scorer: Scorer
    form: LossForm
    depth: int = 3
    known: FilterIndex | None = None
    terms: TripleTerms | None = None
    answers: FilterIndex | None = None
    small: bool = True

    def build(self, rows: DeltaRows) -> FactoredRows:
        """Compute each query once, then rows in chunks."""
        num_relations = self.trunk.model.relation.num_embeddings
        key = rows.head * num_relations + rows.relation
        distinct, query = torch.unique(key, return_inverse=True)
        dense = torch.zeros(len(distinct), dtype=torch.bool, device=key.device)
        dense[query[rows.alpha != 0]] = True
        head, relation = distinct // num_relations, distinct % num_relations
        queries, rows = self._queries(head, relation, dense, query, rows)
        chunks = [
            self._gradients(queries, query[start : start + ROW_CHUNK], rows, start)
            for start in range(0, len(rows) if self.depth > 1 else 0, ROW_CHUNK)
        ]
        none = RowGradients(queries.hidden.new_empty(0, queries.hidden.shape[1]))
        return FactoredRows(rows, query, queries, RowGradients.joined(chunks) if chunks else none)

    def _queries(
        self, head: Tensor, relation: Tensor, dense: Tensor, query: Tensor, rows: DeltaRows
    ) -> tuple[Queries, DeltaRows]:
        """Return the queries, and the rows with the coefficients that depend on scores."""
        activations, hidden = self.trunk.forward(head, relation)
        needed = dense.nonzero().flatten()
        base_row = torch.zeros(len(head), dtype=torch.long, device=head.device)
        base_row[needed] = torch.arange(len(needed), device=head.device)
        scores = self.scorer.scores(hidden[needed])
        if self.answers is None:
            base = self._base(head[needed], relation[needed], scores)
        else:
            known = _coordinates(self.answers, head, relation)
            entities = self.trunk.model.table_rows
            base, rows = self.form.filtered(scores, entities, known, query, rows)
        pulled = torch.zeros_like(hidden)
        pulled[needed] = self.scorer.pull(base, hidden[needed])
        if not len(needed):
            base, needed = base.new_zeros(1, base.shape[1]), base_row[:1]
        return Queries(head, relation, activations, hidden, base, base_row, needed, pulled), rows

    def _base(self, head: Tensor, relation: Tensor, scores: Tensor) -> Tensor:
        """Return B of queries: P, or Y if a query has several known tails."""
        entities = self.trunk.model.table_rows
        base = self.form.base_(scores, entities)
        if self.known is None:
            return base
        row, tail = _coordinates(self.known, head, relation)
        several = torch.bincount(row, minlength=len(base)) > 1
        base[several] = 0.0
        listed = several[row]
        base[entities.own(row[listed], tail[listed])] = 1.0
        return base

    def _gradients(
        self, queries: Queries, query: Tensor, rows: DeltaRows, start: int
    ) -> RowGradients:
        part = slice(start, start + len(query))
        pulled = rows.alpha[part, None] * queries.pulled[query]
        slope = self.scorer.slope(rows.tail[part], queries.hidden[query])
        grad_hidden = pulled.sub_(rows.beta[part, None] * slope)
        deep = self.depth > 2
        found = self.trunk.backward(queries, query, grad_hidden, deep=deep, small=self.small)
        if self.terms is None or not deep:
            return found
        return _with_terms(found, self.trunk.model, rows, part, self.terms)


def _with_terms(
    gradients: RowGradients, model: GraphModel, rows: DeltaRows, part: slice, terms: TripleTerms
) -> RowGradients:
    """Add the terms of some training rows to the gradients of their predictions.

    The terms belong to the loss that trained the model, so they are part of a training triple's
    gradient. What is explained is the prediction of a test triple: its gradient has none of them.

    Args:
        gradients: Of the rows in `part`, of every layer.
        model: The frozen model.
        rows: All rows.
        part: Which rows.
        terms: What the loss adds.
    """
    assert isinstance(model, Factorization)
    relation_id = rows.relation[part]
    looked_up = (
        model.head_table(rows.head[part]),
        model.relation(relation_id),
        model.entity(rows.tail[part]),
    )
    leaves = [values.detach().requires_grad_() for values in looked_up]
    with torch.enable_grad():
        total = terms.losses(model, leaves[0], leaves[1], leaves[2], relation_id).sum()
        head, relation, tail = torch.autograd.grad(total, leaves, materialize_grads=True)
    assert gradients.head is not None
    assert gradients.relation is not None
    found = replace(
        gradients,
        head=gradients.head + head,
        relation=gradients.relation + relation,
        tail=tail,
    )
    if not terms.relation_prediction_weight:
        return found
    query = model.relation_queries(leaves[0], leaves[2]).detach()
    delta = (query @ model.relation.weight.detach().T).softmax(1)
    delta[torch.arange(len(delta), device=delta.device), relation_id] -= 1.0
    return replace(
        found, relation_delta=terms.relation_prediction_weight * delta, relation_query=query
    )


def _coordinates(known: FilterIndex, head: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the known tails of queries as row and entity."""
    row, tail = known.lookup(head.cpu().numpy(), relation.cpu().numpy())
    return torch.from_numpy(row).to(head.device), torch.from_numpy(tail).to(head.device)
