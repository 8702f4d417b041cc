"""Inner products of a graph model's per-row gradients, computed part by part.

For rows i and j, with h a query vector, delta = dL / ds (`de`), and ga, gr, gq the gradients of
head, relation and last layer,

    K_ij = (de_i.de_j)(h_i.h_j + 1)                        entity_output: scorer and its bias
         + de_i[hd_j](h_i.ga_j) + de_j[hd_i](h_j.ga_i)     entity_cross: the table as both
         + [hd_i=hd_j] ga_i.ga_j                           entity_input: lookup of the head
         + [rl_i=rl_j] gr_i.gr_j                           relation
         + (gq_i.gq_j)(f_i.f_j + 1)                        dense: ConvE's fully connected layer
         + w_i.w_j                                         convolution, network: all the rest

Loss terms per triple (`clew.link_prediction.losses.triple_terms`) add two gradients: gt of the tail
as an embedding, which is a second lookup of the table like ga, and dr p^T of all relations.

A squared distance has the score s_e = h.W_e - |W_e|^2 - |h|^2 / 4, so that row e of the table gets
de[e] (h - 2 W_e) from the scorer instead of de[e] h. This adds three products of deltas, weighted
per entity, to the first line:

    sum_e de_i[e] de_j[e] (-2 h_i.W_e - 2 h_j.W_e + 4 |W_e|^2)

The same formula serves all pairs of training and test rows (`Grid`) and aligned pairs (`Aligned`,
for self-influence and norms). A preconditioner scales the second side only. In another geometry
(`geometry`) the given rows have new factors already, except f, which is changed here.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.linalg import vecdot
from torch.nn.functional import one_hot

from clew.influence.link_prediction.geometry import Metric, Preconditioner, RankOne
from clew.influence.link_prediction.rows import FactoredRows
from clew.influence.link_prediction.trunk import EVERY, NETWORK_PART, QUERY_CHUNK, Trunk

OTHERS = ("convolution", NETWORK_PART)
"""Parts that hold all parameters without factors."""
Change = Callable[[Tensor], Tensor]
"""Changes the inputs f of the fully connected layer on the second side."""
Lookup = tuple[Tensor, Tensor]
"""The table row that each row of a side looks up, and the gradients of these lookups."""


def unchanged(features: Tensor) -> Tensor:
    return features


@dataclass(frozen=True, eq=False)
class Grid:
    """Pairs of every row of one side with every row of the other; results are `(a, b)`."""

    trunk: Trunk
    left: FactoredRows
    right: FactoredRows

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products of the rows' vectors, `(a, b)`."""
        return a @ b.T

    def query_dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products of the queries' vectors, computed once per pair of queries."""
        return self._spread(a @ b.T)

    def feature_dot(self, change: Change) -> Tensor:
        """Return the inner products of f, with `change` applied to the second side."""
        trunk, left, right = self.trunk, self.left.queries, self.right.queries
        other = change(trunk.features(right.activations, EVERY))
        chunks = [EVERY] if trunk.keep_features else left.chunks()
        products = [trunk.product(trunk.features(left.activations, i), other.T) for i in chunks]
        return self._spread(torch.cat(products))

    def base_dot(self, b: Tensor) -> Tensor:
        """Return the inner products of the bases, computed once per pair of queries."""
        products = self.trunk.product(self.left.queries.base, b.T)
        columns = products[:, self.right.queries.base_row[self.right.query]]
        return columns[self.left.queries.base_row[self.left.query]]

    def base_a_at(self, entity_b: Tensor) -> Tensor:
        """Return the base of each row of a at an entity of each row of b, `(a, b)`."""
        queries = self.left.queries
        return queries.base[:, entity_b][queries.base_row[self.left.query]]

    def base_b_at(self, base_b: Tensor, entity_a: Tensor) -> Tensor:
        """Return the base of each row of b at an entity of each row of a, `(a, b)`."""
        return base_b[:, entity_a][self.right.queries.base_row[self.right.query]].T

    def a(self, values: Tensor) -> Tensor:
        """Return values of the rows of a in the shape `(a, 1)`."""
        return values[:, None]

    def b(self, values: Tensor) -> Tensor:
        """Return values of the rows of b in the shape `(1, b)`."""
        return values[None, :]

    def _spread(self, products: Tensor) -> Tensor:
        return products[:, self.right.query][self.left.query]


@dataclass(frozen=True, eq=False)
class Aligned:
    """Pairs of row i of one side with row i of the other; results are `(row,)`, as in `Grid`."""

    trunk: Trunk
    left: FactoredRows
    right: FactoredRows

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(1)

    def query_dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.dot(a[self.left.query], b[self.right.query])

    def feature_dot(self, change: Change) -> Tensor:
        """Return the inner products of f, with `change` applied to the second side.

        For a metric scale I + V diag(weights) V^T, only f_i . f_j and V^T f are needed.
        """
        if not isinstance(change, Metric):
            return self._feature_dot(change)
        left, right = self.left.queries.coordinates, self.right.queries.coordinates
        assert left is not None
        assert right is not None
        dot = self._feature_dot(unchanged).mul_(change.scale)
        return dot.add_(self.query_dot(left, right * change.weights))

    def _feature_dot(self, change: Change) -> Tensor:
        left, right = self.left.queries.activations, self.right.queries.activations
        i, j, features = self.left.query, self.right.query, self.trunk.features
        if change is unchanged and self.trunk.keep_features:
            return _dots(features(left, EVERY), features(right, EVERY), i, j)
        chunks = zip(torch.split(i, QUERY_CHUNK), torch.split(j, QUERY_CHUNK), strict=True)
        return torch.cat([vecdot(features(left, a), change(features(right, b))) for a, b in chunks])

    def base_dot(self, b: Tensor) -> Tensor:
        left, right = self.left.queries, self.right.queries
        i, j = left.base_row[self.left.query], right.base_row[self.right.query]
        return _dots(left.base, b, i, j)

    def base_a_at(self, entity_b: Tensor) -> Tensor:
        queries = self.left.queries
        return queries.base[queries.base_row[self.left.query], entity_b]

    def base_b_at(self, base_b: Tensor, entity_a: Tensor) -> Tensor:
        return base_b[self.right.queries.base_row[self.right.query], entity_a]

    def a(self, values: Tensor) -> Tensor:
        return values

    def b(self, values: Tensor) -> Tensor:
        return values


def _dots(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Return a[i] . b[j] of pairs of rows, `(pair,)`; repeated pairs are computed once.

    On a CPU, a sampled matrix product takes a tenth of the time of copying the rows and multiplying
    the copies, because the rows are long and the copies do not fit into the cache.
    """
    pair, place = torch.unique(i * len(b) + j, return_inverse=True)
    row, column = pair // len(b), pair % len(b)
    ends = torch.bincount(row, minlength=len(a)).cumsum(0)
    starts_and_ends = torch.cat([ends.new_zeros(1), ends])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        size, values = (len(a), len(b)), a.new_zeros(len(pair))
        zeros = torch.sparse_csr_tensor(
            starts_and_ends, column, values, size, check_invariants=False
        )
    products: Tensor = torch.sparse.sampled_addmm(zeros, a, b.T, beta=0.0).values()
    return products[place]


Meeting = Grid | Aligned
"""How the rows of two sides are paired; results have the shape of the pairs."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """The formula above, for the selected parts of one checkpoint."""

    trunk: Trunk
    parts: tuple[str, ...]
    scale: Preconditioner | None = None
    features: Change = unchanged

    def __call__(self, meeting: type[Meeting], a: FactoredRows, b: FactoredRows) -> Tensor:
        """Return the inner products of each selected part, `(part, *pairs)`."""
        compute = {
            "entity_output": self._entity_output,
            "entity_cross": self._entity_cross,
            "entity_input": self._entity_input,
            "relation": self._relation,
            "dense": self._dense,
            **dict.fromkeys(OTHERS, self._small),
        }
        meet = meeting(self.trunk, a, b)
        return torch.stack([compute[part](meet) for part in self.parts])

    def _entity_output(self, meet: Meeting) -> Tensor:
        model, scale = self.trunk.model, self.scale
        rows = None if scale is None else scale.table.rows
        hidden_a, hidden_b = meet.left.queries.hidden, meet.right.queries.hidden
        dot = meet.query_dot(hidden_a, self._scaled(hidden_b))
        if scale is None and model.entity_bias is not None:
            dot += 1.0
        products = _delta_dot(meet, rows) * dot
        if scale is not None and scale.entity_bias is not None:
            products += _delta_dot(meet, scale.entity_bias)
        if model.squared_distance:  # what the bias -|W_e|^2 adds
            weighted_a = replace(meet, left=self._weighted(meet.left, 0.0))
            weighted_b = replace(meet, right=self._weighted(meet.right, 4.0))
            products += _delta_dot(weighted_a, rows).add_(_delta_dot(weighted_b, rows))
        return products

    def _scaled(self, values: Tensor) -> Tensor:
        return values if self.scale is None else values * self.scale.table.columns

    def _weighted(self, rows: FactoredRows, factor: float) -> FactoredRows:
        """Return rows whose delta of entity e is multiplied by factor |W_e|^2 - 2 h . W_e."""
        queries, entity = rows.queries, self.trunk.model.entity
        table, tails = entity.weight.detach(), entity(rows.rows.tail).detach()
        scaled, scaled_tails = self._scaled(table), self._scaled(tails)
        weights = self.trunk.product(queries.hidden[queries.base_query], scaled.T)
        base = queries.base * weights.mul_(-2.0).add_(factor * (table * scaled).sum(1))
        at_tail = factor * (tails * scaled_tails).sum(1)
        at_tail -= 2.0 * (queries.hidden[rows.query] * scaled_tails).sum(1)
        weighted = replace(rows.rows, beta=rows.rows.beta * at_tail)
        return replace(rows, rows=weighted, queries=replace(queries, base=base))

    def _entity_cross(self, meet: Meeting) -> Tensor:
        a, b = meet.left, meet.right
        hidden_a, hidden_b = a.queries.hidden[a.query], self._scaled(b.queries.hidden[b.query])
        products = meet.a(torch.zeros_like(a.rows.beta)) * meet.b(torch.zeros_like(b.rows.beta))
        for entity, values in self._entity_lookups(b):
            scaled = self._scaled(values)
            delta, dot = _delta_a_at(meet, entity), meet.dot(hidden_a, scaled)
            products += self._crossed(delta, dot, meet.b, entity, scaled)
        for entity, values in self._entity_lookups(a):
            delta, dot = _delta_b_at(meet, entity), meet.dot(values, hidden_b)
            products += self._crossed(delta, dot, meet.a, entity, self._scaled(values))
        return products

    def _crossed(
        self,
        delta: Tensor,
        dot: Tensor,
        side: Callable[[Tensor], Tensor],
        entity: Tensor,
        scaled: Tensor,
    ) -> Tensor:
        """Return delta . dot, both changed in place, for lookups of entities by one side."""
        if self.scale is not None:
            delta *= side(self.scale.table.rows[entity])
        if self.trunk.model.squared_distance:  # it subtracts 2 W_e . value of each row
            rows: Tensor = self.trunk.model.entity(entity).detach()
            dot -= side(2.0 * (rows * scaled).sum(1))
        return delta.mul_(dot)

    def _entity_lookups(self, rows: FactoredRows) -> list[Lookup]:
        model, head, tail = self.trunk.model, rows.gradients.head, rows.gradients.tail
        assert head is not None
        found = [(rows.rows.head, head)] if model.head_table is model.entity else []
        return found if tail is None else [*found, (rows.rows.tail, tail)]

    def _entity_input(self, meet: Meeting) -> Tensor:
        a, b, model, scale = meet.left, meet.right, self.trunk.model, self.scale
        table = None if scale is None else scale.table
        pairs = product(self._entity_lookups(a), self._entity_lookups(b))
        products = [self._lookup_dot(meet, x, y, table) for x, y in pairs]
        if model.head_table is not model.entity:
            head_a, head_b = _both(meet, "head")
            table = None if scale is None else scale.head_table
            heads = (a.rows.head, head_a), (b.rows.head, head_b)
            products.append(self._lookup_dot(meet, *heads, table))
        return torch.stack(products).sum(0)

    @staticmethod
    def _lookup_dot(meet: Meeting, a: Lookup, b: Lookup, scale: RankOne | None) -> Tensor:
        (row_a, values_a), (row_b, values_b) = a, b
        if scale is not None:
            values_b = values_b * scale.columns * scale.rows[row_b, None]
        return meet.dot(values_a, values_b).mul_(meet.a(row_a) == meet.b(row_b))

    def _relation(self, meet: Meeting) -> Tensor:
        a, b = meet.left, meet.right
        relation_a, relation_b = _both(meet, "relation")
        if self.scale is not None:
            relation_b = relation_b * self.scale.relation[b.rows.relation]
        same = meet.a(a.rows.relation) == meet.b(b.rows.relation)
        products = meet.dot(relation_a, relation_b).mul_(same)
        delta_a, query_a = a.gradients.relation_delta, a.gradients.relation_query
        delta_b, query_b = b.gradients.relation_delta, b.gradients.relation_query
        if delta_a is not None and query_a is not None:
            hit = one_hot(b.rows.relation, delta_a.shape[1]).to(delta_a.dtype)
            products += meet.dot(delta_a, hit) * meet.dot(query_a, relation_b)
        if delta_b is not None and query_b is not None:
            hit = one_hot(a.rows.relation, delta_b.shape[1]).to(delta_b.dtype)
            products += meet.dot(hit, delta_b) * meet.dot(relation_a, query_b)
            if delta_a is not None and query_a is not None:
                products += meet.dot(delta_a, delta_b) * meet.dot(query_a, query_b)
        return products

    def _dense(self, meet: Meeting) -> Tensor:
        projected_a, projected_b = _both(meet, "projected")
        if self.scale is None:
            dot = meet.feature_dot(self.features).add_(float(self.trunk.dense_bias is not None))
        else:  # the bias has no effect in training, so its D is 0
            assert self.scale.dense is not None
            dot = meet.feature_dot(self.scale.dense.columns.mul)
            projected_b = projected_b * self.scale.dense.rows
        return meet.dot(projected_a, projected_b).mul_(dot)

    def _small(self, meet: Meeting) -> Tensor:
        small_a, small_b = _both(meet, "small")
        if self.scale is not None:
            small_b = small_b * self.scale.small
        return meet.dot(small_a, small_b)


def _delta_dot(meet: Meeting, scale: Tensor | None) -> Tensor:
    """Return de_a . (scale de_b)."""
    a, b = meet.left, meet.right
    base = b.queries.base if scale is None else b.queries.base * scale
    beta_b = b.rows.beta if scale is None else b.rows.beta * scale[b.rows.tail]
    alpha_b = meet.b(b.rows.alpha)
    products = meet.a(a.rows.alpha) * alpha_b * meet.base_dot(base)
    products -= meet.a(a.rows.beta) * alpha_b * meet.base_b_at(base, a.rows.tail)
    return products.sub_(meet.b(beta_b) * _delta_a_at(meet, b.rows.tail))


def _delta_a_at(meet: Meeting, entity_b: Tensor) -> Tensor:
    """Return de_a[entity of b]."""
    a = meet.left.rows
    hit = meet.a(a.tail) == meet.b(entity_b)
    base = meet.a(a.alpha) * meet.base_a_at(entity_b)
    return base.sub_(meet.a(a.beta) * hit)


def _delta_b_at(meet: Meeting, entity_a: Tensor) -> Tensor:
    """Return de_b[entity of a]."""
    b = meet.right.rows
    hit = meet.b(b.tail) == meet.a(entity_a)
    base = meet.b(b.alpha) * meet.base_b_at(meet.right.queries.base, entity_a)
    return base.sub_(meet.b(b.beta) * hit)


def _both(meet: Meeting, gradient: str) -> tuple[Tensor, Tensor]:
    """Return a gradient of the rows of both sides, which must be there."""
    a, b = (getattr(rows.gradients, gradient) for rows in (meet.left, meet.right))
    assert a is not None
    assert b is not None
    return a, b
