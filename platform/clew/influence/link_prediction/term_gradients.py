"""Gradients of what a loss adds for each triple: a regularizer, and the prediction of its relation.

The terms belong to the loss that trained the model, so they are part of a training triple's
gradient. What is explained is the prediction of a test triple: its gradient has none of them.
"""

from dataclasses import replace

import torch

from clew.influence.link_prediction.deltas import DeltaRows
from clew.influence.link_prediction.trunk import RowGradients
from clew.link_prediction.losses.triple_terms import TripleTerms
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.models.factorization import Factorization


def with_terms(
    gradients: RowGradients, model: GraphModel, rows: DeltaRows, part: slice, terms: TripleTerms
) -> RowGradients:
    """Add the terms of some training rows to the gradients of their predictions.

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
