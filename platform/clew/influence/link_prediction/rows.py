r"""Rows of triples: the slopes of their losses at the scores, and the factors of their gradients.

A triple has one row per direction: (head, r) -> tail and, with inverse relations, (tail, r + R) ->
head. The contribution of a row to the slope at the scores, `delta = dL / ds`, always has the form

    delta = alpha B - beta e_t,        B = P or Y

with e_t the unit vector of the tail, P the part of the slope that does not depend on the tail
(`sigmoid(s) - eps / E` or `softmax(s) - eps / E`, eps the label smoothing, E entities) and Y the
indicator of all n known tails of the query.

    a separate row (one_vs_all, a test triple,
    or the only tail of its query)                   alpha = 1               beta = 1 - eps       P
    kvs_all, binary cross entropy, n > 1             alpha = 0               beta = 1 - eps
    kvs_all, softmax, n > 1                          alpha = beta / n  beta = (1-eps)/(n-1)       Y

The last two are the change of the query's gradient if the triple is deleted: binary cross entropy
is linear in the labels, and softmax cross entropy normalises the labels of each row.

The *filtered* loss of a test triple has no smoothing and leaves out the query's other known
answers, as the filtered rank does. Its B is F: P with eps = 0 for the entities that are not known
answers of the query (normalised over these for softmax), and zero for the known answers. Then

    a known tail, binary cross entropy               alpha = 1               beta = 1 - sigmoid(s_t)
    a known tail, softmax                            alpha = beta = 1 - softmax(s)_t
    a tail that is not known                         alpha = 1               beta = 1
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.influence.link_prediction.trunk import Queries, RowGradients, Scorer, Trunk, with_terms
from clew.link_prediction.losses.one_vs_all import LossFunction
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples, add_inverses

ROW_CHUNK = 256
"""Rows per backward pass through the convolution; few enough that feature maps stay in cache."""


@dataclass(frozen=True)
class Directions:
    """How triples become rows."""

    num_relations: int
    inverse_relations: bool

    @property
    def num_directions(self) -> int:
        return 1 + self.inverse_relations

    @property
    def num_model_relations(self) -> int:
        return self.num_directions * self.num_relations

    def rows(self, triples: Triples) -> Triples:
        return add_inverses(triples, self.num_relations) if self.inverse_relations else triples


@dataclass(frozen=True)
class LossForm:
    """The properties of the training loss that influence needs."""

    function: LossFunction
    label_smoothing: float
    one_query_a_row: bool
    """Whether a training row was a query with all its tails (kvs_all)."""

    @classmethod
    def from_config(cls, loss: OneVsAllLoss | KvsAllLoss) -> "LossForm":
        return cls(loss.function, loss.label_smoothing, loss.kind == "kvs_all")

    def base_(self, scores: Float[Tensor, "query entity"]) -> Float[Tensor, "query entity"]:
        """Turn scores into P, in place."""
        if self.function == "binary_cross_entropy":
            scores.sigmoid_()
        else:
            scores.sub_(scores.logsumexp(1)[:, None]).exp_()
        if self.label_smoothing:
            scores.sub_(self.label_smoothing / scores.shape[1])
        return scores

    def filtered(
        self,
        scores: Float[Tensor, "query entity"],
        known: tuple[Tensor, Tensor],
        query: Int[Tensor, "row"],
        rows: "DeltaRows",
    ) -> tuple[Float[Tensor, "query entity"], "DeltaRows"]:
        """Return F of queries, and their rows with the coefficients of the filtered loss."""
        own = scores[query, rows.tail]
        others = scores.index_put(known, scores.new_tensor(-torch.inf))
        is_known = others[query, rows.tail] == -torch.inf
        one = torch.ones_like(own)
        if self.function == "binary_cross_entropy":
            beta = torch.where(is_known, 1.0 - own.sigmoid(), one)
            return others.sigmoid(), replace(rows, alpha=one, beta=beta)
        total = others.logsumexp(1)
        beta = torch.where(is_known, (total[query] - own).sigmoid(), one)
        base = (others - total[:, None]).exp()
        base[total == -torch.inf] = 0.0  # every entity is a known answer
        return base, replace(rows, alpha=beta, beta=beta)


@dataclass(frozen=True, eq=False)
class DeltaRows:
    """Rows of triples with the coefficients of their deltas.

    Row `i` of `n` triples is the triple itself; with inverse relations, row `i + n` is its inverse.
    """

    head: Int[Tensor, "row"]
    relation: Int[Tensor, "row"]
    tail: Int[Tensor, "row"]
    alpha: Float[Tensor, "row"]
    beta: Float[Tensor, "row"]
    num_directions: int

    def __len__(self) -> int:
        return len(self.head)

    @property
    def num_triples(self) -> int:
        """Number of triples; each has one row per direction."""
        return len(self.head) // self.num_directions

    def of(self, triples: Int[Tensor, "triple"]) -> "DeltaRows":
        """Return the rows of some of the triples, forward rows first."""
        index = torch.cat([triples + d * self.num_triples for d in range(self.num_directions)])
        return self._map(lambda column: column[index])

    def direction(self, index: int) -> "DeltaRows":
        part = slice(index * self.num_triples, (index + 1) * self.num_triples)
        return replace(self._map(lambda column: column[part]), num_directions=1)

    def to(self, device: torch.device, dtype: torch.dtype) -> "DeltaRows":
        moved = self._map(lambda column: column.to(device))
        return replace(moved, alpha=moved.alpha.to(dtype), beta=moved.beta.to(dtype))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "DeltaRows":
        columns = (self.head, self.relation, self.tail, self.alpha, self.beta)
        head, relation, tail, alpha, beta = map(change, columns)
        return DeltaRows(head, relation, tail, alpha, beta, self.num_directions)


def own_rows(triples: Triples, form: LossForm, kind: Directions) -> DeltaRows:
    """Return one separate row per triple and direction, for the loss with a single positive."""
    rows = kind.rows(triples)
    alpha = np.ones(len(rows))
    return _rows(rows, alpha, (1.0 - form.label_smoothing) * alpha, kind)


def training_rows(triples: Triples, form: LossForm, kind: Directions) -> DeltaRows:
    """Return the rows of training triples, as the loss that trained the model defines them."""
    if not form.one_query_a_row:
        return own_rows(triples, form, kind)
    rows, num_relations = kind.rows(triples), kind.num_model_relations
    known = FilterIndex.from_triples(rows, num_relations)
    keys = rows[:, HEAD].astype(np.int64) * num_relations + rows[:, RELATION]
    count = np.diff(known.offsets)[np.searchsorted(known.keys, keys)]  # distinct tails of a query
    keep = 1.0 - form.label_smoothing
    alone = count == 1
    if form.function == "binary_cross_entropy":
        return _rows(rows, alone.astype(float), np.full(len(rows), keep), kind)
    beta = np.where(alone, keep, keep / np.maximum(count - 1, 1))
    return _rows(rows, np.where(alone, 1.0, beta / count), beta, kind)


def known_tails(triples: Triples, kind: Directions) -> FilterIndex:
    """Return the tails of every training query: the indicator Y of softmax with kvs_all."""
    rows = kind.rows(triples)
    return FilterIndex.from_triples(rows, kind.num_model_relations)


def _rows(rows: Triples, alpha: np.ndarray, beta: np.ndarray, kind: Directions) -> DeltaRows:
    head, relation, tail = (
        torch.from_numpy(rows[:, column].astype(np.int64)) for column in (HEAD, RELATION, TAIL)
    )
    coefficients = torch.from_numpy(alpha), torch.from_numpy(beta)
    return DeltaRows(head, relation, tail, *coefficients, kind.num_directions)


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """Rows, the queries that they share, and their activation gradients."""

    rows: DeltaRows
    query: Int[Tensor, "row"]
    """Query of each row."""
    queries: Queries
    gradients: RowGradients

    def direction(self, index: int) -> "FactoredRows":
        size = self.rows.num_triples
        part = slice(index * size, (index + 1) * size)
        rows = self.rows.direction(index)
        return FactoredRows(rows, self.query[part], self.queries, self.gradients.part(part))


@dataclass(frozen=True, eq=False)
class RowBuilder:
    """Turns rows of triples into factors, for one checkpoint.

    Args:
        trunk: Trunk of the checkpoint.
        scorer: The products with the entity table.
        form: The loss that trained the model.
        depth: 1: only the scorer, 2: also the projection, 3: everything.
        known: Tails of training queries, if their deltas need them (softmax with kvs_all).
        terms: Loss terms per triple, for training rows.
        answers: All known answers, for rows of the filtered loss.
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
        head, relation, query = distinct_queries(self.trunk.model, rows.head, rows.relation)
        queries, rows = self._queries(head, relation, query, rows)
        starts = range(0, len(rows) if self.depth > 1 else 0, ROW_CHUNK)
        parts = (slice(start, start + ROW_CHUNK) for start in starts)
        chunks = [self._gradients(queries, query[part], rows, part) for part in parts]
        none = RowGradients(queries.hidden.new_empty(0, queries.hidden.shape[1]))
        return FactoredRows(rows, query, queries, RowGradients.joined(chunks) if chunks else none)

    def _queries(
        self, head: Tensor, relation: Tensor, query: Tensor, rows: DeltaRows
    ) -> tuple[Queries, DeltaRows]:
        activations, hidden = self.trunk.forward(head, relation)
        needed = torch.unique(query[rows.alpha != 0])
        base_row = torch.zeros(len(head), dtype=torch.long, device=head.device)
        base_row[needed] = torch.arange(len(needed), device=head.device)
        scores = self.scorer.scores(hidden[needed])
        if self.answers is None:
            base = self._base(head[needed], relation[needed], scores)
        else:
            known = _coordinates(self.answers, head, relation)
            base, rows = self.form.filtered(scores, known, query, rows)
        pulled = torch.zeros_like(hidden)
        pulled[needed] = self.scorer.pull(base, hidden[needed])
        if not len(needed):
            base, needed = base.new_zeros(1, base.shape[1]), base_row[:1]
        return Queries(head, relation, activations, hidden, base, base_row, needed, pulled), rows

    def _base(self, head: Tensor, relation: Tensor, scores: Tensor) -> Tensor:
        base = self.form.base_(scores)
        if self.known is None:
            return base
        row, tail = _coordinates(self.known, head, relation)
        several = torch.bincount(row, minlength=len(base)) > 1
        base[several] = 0.0
        listed = several[row]
        base[row[listed], tail[listed]] = 1.0
        return base

    def _gradients(
        self, queries: Queries, query: Tensor, rows: DeltaRows, part: slice
    ) -> RowGradients:
        pulled = rows.alpha[part, None] * queries.pulled[query]
        slope = self.scorer.slope(rows.tail[part], queries.hidden[query])
        grad_hidden = pulled.sub_(rows.beta[part, None] * slope)
        deep = self.depth > 2
        found = self.trunk.backward(queries, query, grad_hidden, deep=deep, small=self.small)
        if self.terms is None or not deep:
            return found
        ids = rows.head[part], rows.relation[part], rows.tail[part]
        return with_terms(found, self.trunk.model, self.terms, ids)


def distinct_queries(
    model: GraphModel, head: Tensor, relation: Tensor
) -> tuple[Tensor, Tensor, Int[Tensor, "row"]]:
    num_relations = model.relation.num_embeddings
    distinct, query = torch.unique(head * num_relations + relation, return_inverse=True)
    return distinct // num_relations, distinct % num_relations, query


def _coordinates(known: FilterIndex, head: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
    row, tail = known.lookup(head.cpu().numpy(), relation.cpu().numpy())
    return torch.from_numpy(row).to(head.device), torch.from_numpy(tail).to(head.device)
