"""Triple classification: is a triple true or false, by a score threshold for each relation.

The thresholds maximise the accuracy on validation triples and given false triples (Socher et al.,
2013; Safavi and Koutra, 2020, arXiv 2009.07810, for CoDEx's hard negatives). A relation without
validation triples uses the threshold that is fitted to the triples of all relations.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int

TripleScores = Float64[np.ndarray, "triple"]
IsTrue = Bool[np.ndarray, "triple"]
RelationIds = Int[np.ndarray, "triple"]


@dataclass(frozen=True)
class Thresholds:
    """The lowest score with which a triple counts as true, for each relation."""

    by_relation: Float64[np.ndarray, "relation"]

    @classmethod
    def fit(
        cls, scores: TripleScores, is_true: IsTrue, relation: RelationIds, num_relations: int
    ) -> "Thresholds":
        """Choose the thresholds with the highest accuracy on these triples."""
        chosen = np.full(num_relations, best_threshold(scores, is_true))
        for number in np.unique(relation):
            own = relation == number
            chosen[number] = best_threshold(scores[own], is_true[own])
        return cls(chosen)

    def predict(self, scores: TripleScores, relation: RelationIds) -> IsTrue:
        answers: IsTrue = scores >= self.by_relation[relation]
        return answers


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


@dataclass(frozen=True)
class ClassificationQuality:
    """The quality of a classification of triples."""

    accuracy: float
    f1: float

    @classmethod
    def of(cls, predicted: IsTrue, is_true: IsTrue) -> "ClassificationQuality":
        """Compare predictions with the truth; F1 is computed for the true triples."""
        hits = float(np.sum(predicted & is_true))
        both = float(np.sum(predicted) + np.sum(is_true))
        return cls(float(np.mean(predicted == is_true)), 2.0 * hits / both if both else 0.0)
