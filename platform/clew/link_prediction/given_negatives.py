"""Ranks and classifies triples against given wrong ones.

Ranks follow the rules of OGB's ogbl-biokg.

An `.npz` file has the arrays of OGB's splits: `head`, `relation`, `tail` `(triple,)`, `head_neg`
and `tail_neg` `(triple, negative)`, and optionally `head_type` and `tail_type` `(triple,)`. Their
values are names in the graph, as text or as numbers. With types, an entity's name is `type:number`.

The rank of a triple is 1 + #(wrong score > its own) + #(equal) / 2, the mean of the optimistic and
the pessimistic rank, as in OGB's evaluator. Known answers are not filtered out: the file defines
which answers are wrong.

A triple is classified as true or false by a score threshold for each relation. The thresholds
maximise the accuracy on validation triples and given false triples (Socher et al., 2013; Safavi and
Koutra, 2020, arXiv 2009.07810, for CoDEx's hard negatives). A relation without validation triples
uses the threshold that is fitted to the triples of all relations.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float64, Int

from clew.errors import DataError, refusing
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.other_formats import npz_arrays
from clew.link_prediction.rank_metrics import RankingResult
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples
from clew.link_prediction.vocabulary import Vocabulary

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
    return np.asarray(0.5 * (by_tail + by_head)[:, 0])


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


TRIPLE_KEYS, NEGATIVE_KEYS = ("head", "relation", "tail"), ("head_neg", "tail_neg")
TYPE_KEYS = ("head_type", "tail_type")
NAMES_AT_ONCE = 2**20
"""Number of names that are held as text at once; each takes hundreds of bytes."""


@dataclass(frozen=True)
class GivenNegatives:
    """True triples, and wrong heads and tails for each."""

    triples: Triples
    heads: Candidates
    tails: Candidates


def read_given_negatives(path: Path, entities: Vocabulary, relations: Vocabulary) -> GivenNegatives:
    """Read an `.npz` file with OGB's arrays."""
    arrays = npz_arrays(path, (*TRIPLE_KEYS, *NEGATIVE_KEYS, *TYPE_KEYS))
    needed = (*TRIPLE_KEYS, *NEGATIVE_KEYS)
    if missing := [key for key in needed if key not in arrays]:
        raise DataError(f"{path}: no array {', '.join(missing)}; expected {', '.join(needed)}")
    for key, values in arrays.items():
        if values.dtype.kind not in "iuUS":
            raise DataError(
                f"{path}, array {key}: type {values.dtype}; expected names as text or whole numbers"
            )
    count = arrays["head"].size
    if not count:
        raise DataError(f"{path}, array head: no triple; expected at least one")
    for key, values in arrays.items():
        expected = 2 if key in NEGATIVE_KEYS else 1
        if values.ndim != expected or len(values) != count or not values.size:
            rows = f"{count} rows" + " of one or more wrong names" * (expected == 2)
            raise DataError(f"{path}, array {key}: shape {values.shape}; expected {rows}")

    ids = {
        key: _ids(path, key, arrays, relations if key == "relation" else entities) for key in needed
    }
    triples = np.stack([ids[key] for key in TRIPLE_KEYS], axis=1)
    return GivenNegatives(triples.astype(np.int32), ids["head_neg"], ids["tail_neg"])


def rank_given(model: GraphModel, given: GivenNegatives, num_relations: int) -> RankingResult:
    """Rank each triple among its wrong heads, and among its wrong tails."""
    triples = given.triples
    heads = np.concatenate([triples[:, [HEAD]], given.heads], axis=1)
    tails = np.concatenate([triples[:, [TAIL]], given.tails], axis=1)
    of_heads = _ranks(score_heads(model, triples, heads, num_relations))
    of_tails = _ranks(score_tails(model, triples, tails))
    return RankingResult(triples[:, RELATION], of_heads, of_tails)


def _ranks(scores: CandidateScores) -> np.ndarray:
    """Return the rank of the first column in each row."""
    own, wrong = scores[:, :1], scores[:, 1:]
    return np.asarray(1.0 + (wrong > own).sum(1) + 0.5 * (wrong == own).sum(1))


def _ids(path: Path, key: str, arrays: dict[str, np.ndarray], vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of an array's names in its shape; some rows at a time, as text is large."""
    named, kinds = arrays[key], arrays.get(f"{key.removesuffix('_neg')}_type")
    found = np.empty(named.shape, np.int32)
    step = max(1, NAMES_AT_ONCE // max(1, named[:1].size))
    for start in range(0, len(found), step):
        rows = slice(start, start + step)
        with refusing(f"{path}, array {key}: not text", ValueError):
            # By way of Python: Arrow ends a text of NumPy at its first zero.
            names = pa.array(named[rows].astype(str).ravel().tolist(), pa.string())
            if kinds is not None:
                kind = np.repeat(kinds[rows].astype(str), named[:1].size).tolist()
                names = pc.binary_join_element_wise(pa.array(kind, pa.string()), names, ":")
        ids = vocabulary.find(names)
        if (ids < 0).any():
            name = names[int(np.argmin(ids))].as_py()
            raise DataError(f"{path}, array {key}: {vocabulary.unknown_name_message(name)}")
        found[rows] = ids.reshape(found[rows].shape)
    return found


TripleScores = Float64[np.ndarray, "triple"]
IsTrue = Bool[np.ndarray, "triple"]


def fit_thresholds(
    scores: TripleScores, is_true: IsTrue, relation: Int[np.ndarray, "triple"], num_relations: int
) -> Float64[np.ndarray, "relation"]:
    """Return the lowest score with which a triple counts as true, for each relation.

    They have the highest accuracy on these triples.
    """
    chosen = np.full(num_relations, best_threshold(scores, is_true))
    for number in np.unique(relation):
        own = relation == number
        chosen[number] = best_threshold(scores[own], is_true[own])
    return chosen


def best_threshold(scores: TripleScores, is_true: IsTrue) -> float:
    """Return the threshold with the most correct decisions, halfway between two scores.

    If several thresholds are equally good, the highest is chosen. It is infinity if no triple
    should count as true, and the lowest score if all triples should.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, true = scores[order], is_true[order]
    # Correct if the first k triples count as true: true ones among them, false ones among the rest.
    right = np.concatenate([[0], np.cumsum(true)]) + np.sum(~true)
    right -= np.concatenate([[0], np.cumsum(~true)])
    between = np.concatenate([[True], ordered[1:] < ordered[:-1], [True]])
    k = int(np.argmax(np.where(between, right, -1)))
    if k == 0:
        return np.inf
    return float(ordered[k - 1] if k == len(ordered) else (ordered[k - 1] + ordered[k]) / 2)


def classification_quality(predicted: IsTrue, is_true: IsTrue) -> dict[str, float]:
    """Return the accuracy of predictions, and F1 of the true triples."""
    hits = float(np.sum(predicted & is_true))
    both = float(np.sum(predicted) + np.sum(is_true))
    accuracy = float(np.mean(predicted == is_true))
    return {"accuracy": accuracy, "f1": 2.0 * hits / both if both else 0.0}
