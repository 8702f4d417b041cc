"""Scores of single triples, and of triples with given other heads and tails."""

import numpy as np
import torch
from jaxtyping import Float64, Int

from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples

SCORES_AT_ONCE = 2**20
"""Limit of the entity rows that are gathered at once, and of activations, measured in such rows."""

Candidates = Int[np.ndarray, "triple candidate"]
CandidateScores = Float64[np.ndarray, "triple candidate"]


@torch.no_grad()
def score_tails(model: GraphModel, triples: Triples, tails: Candidates) -> CandidateScores:
    """Return s(h, r, t') for the given tails t' of each triple."""
    return _scores(model, triples[:, HEAD], triples[:, RELATION], tails)


@torch.no_grad()
def score_heads(
    model: GraphModel, triples: Triples, heads: Candidates, num_relations: int
) -> CandidateScores:
    """Return the score of each triple with the given heads h' instead of its own.

    With inverse relations this is the score of h' as the tail of (t, inverse of r), else the score
    of (h', r, t).
    """
    if model.relation.num_embeddings == 2 * num_relations:
        return _scores(model, triples[:, TAIL], triples[:, RELATION] + num_relations, heads)
    count = heads.shape[1]
    relation, tail = (np.repeat(triples[:, column], count) for column in (RELATION, TAIL))
    return _scores(model, heads.ravel(), relation, tail[:, None]).reshape(heads.shape)


def score_triples(
    model: GraphModel, triples: Triples, num_relations: int
) -> Float64[np.ndarray, "triple"]:
    """Return the mean of each triple's two scores, as a query for its tail and for its head."""
    by_tail = score_tails(model, triples, triples[:, [TAIL]])
    by_head = score_heads(model, triples, triples[:, [HEAD]], num_relations)
    mean: np.ndarray = 0.5 * (by_tail + by_head)[:, 0]
    return mean


def _scores(
    model: GraphModel, entity: np.ndarray, relation: np.ndarray, candidates: Candidates
) -> CandidateScores:
    device = model.entity.weight.device
    was_training, bias = model.training, model.tail_bias()
    activations = -(-model.floats_per_query // model.entity.embedding_dim)
    size = max(1, SCORES_AT_ONCE // max(candidates.shape[1], 4 * activations))
    found = []
    model.eval()
    for start in range(0, len(candidates), size):
        part = slice(start, start + size)
        head, rel, tails = (
            torch.from_numpy(ids[part].astype(np.int64)).to(device)
            for ids in (entity, relation, candidates)
        )
        queries = model.queries(head, rel)
        scores = torch.einsum("nd,nkd->nk", queries, model.entity(tails))
        query_bias = model.query_bias(queries)
        if bias is not None:
            scores += bias[tails]
        if query_bias is not None:
            scores += query_bias[:, None]
        found.append(scores.double().cpu().numpy())
    model.train(was_training)
    return np.concatenate(found) if found else np.zeros(candidates.shape)
