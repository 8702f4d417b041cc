"""Answers link-prediction queries by name: the best tails, or heads, with their probabilities.

The head of a query (relation r, tail t) is predicted as the tail of (t, inverse of r), so it needs
a model that was trained with inverse relations. Everything is computed on the CPU in float32.
"""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clew.errors import CheckpointError, ConfigError, DataError
from clew.layers.shapes import Queries, Scores
from clew.link_prediction.answers import Answer, Place, Prediction, Query
from clew.link_prediction.calibration import Calibration, HeldOut, fit_temperature
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples
from clew.link_prediction.vocabulary import Vocabulary

CHUNK_MIB = 64.0
MAX_CALIBRATION_QUERIES = 2048

Known = Bool[Tensor, "batch entity"]
EntityScores = Float[Tensor, "entity"]


class Predictor:
    """A trained model with the names of its entities and relations.

    Args:
        model: The model; it is set to evaluation mode.
        entities: Names of the entities.
        relations: Names of the relations, without inverses.
        known: Index of the training triples in both directions, from `index_known`.
        calibration: Temperature of the probabilities; None: no probabilities.
    """

    def __init__(
        self,
        model: GraphModel,
        entities: Vocabulary,
        relations: Vocabulary,
        *,
        known: FilterIndex | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.model = model.eval()
        self.entities = entities
        self.relations = relations
        self.known = known
        self.calibration = calibration
        self.has_inverses = model.relation.num_embeddings == 2 * len(relations)
        _check_sizes(model, entities, relations)

    def predict(
        self, queries: Sequence[Query], *, top_k: int = 10, filter_known: bool = False
    ) -> list[Prediction]:
        """Return the `top_k` best answers to each query, the best first.

        Args:
            queries: The queries; a label may stand for a name if only one name has that label.
            top_k: Number of answers per query.
            filter_known: Leave out answers that are known from training.

        Raises:
            ConfigError: If a query is incomplete, or `top_k` is not positive.
            DataError: If a name is unknown, or `filter_known` is set without training triples.
        """
        if top_k < 1:
            raise ConfigError(f"top_k is {top_k}; expected 1 or more")
        if filter_known and self.known is None:
            raise DataError(
                "filter_known is true, but the training triples are not available; use a "
                "registered model, or make the data set available under its name or path"
            )
        resolved = [self.resolve(query) for query in queries]
        return [
            prediction
            for rows in self._chunks(resolved)
            for prediction in self._predict(resolved[rows], top_k, filter_known)
        ]

    def calibrate(self, triples: Triples) -> Calibration | None:
        """Fit the temperature to both ends of held-out triples; return None without triples.

        At most `MAX_CALIBRATION_QUERIES` evenly spaced queries are used.
        """
        if not len(triples):
            return None
        num_sides = 2 if self.has_inverses else 1
        stride = -(-len(triples) * num_sides // MAX_CALIBRATION_QUERIES) or 1
        return fit_temperature(self._held_out(triples[::stride], num_sides))

    def _held_out(self, triples: Triples, num_sides: int) -> HeldOut:
        """Return scores and answers of held-out triples; other known answers are not candidates."""
        heads = np.concatenate([triples[:, HEAD], triples[:, TAIL]][:num_sides])
        tails = np.concatenate([triples[:, TAIL], triples[:, HEAD]][:num_sides])
        relations = np.concatenate(
            [triples[:, RELATION], triples[:, RELATION] + len(self.relations)][:num_sides]
        )
        answers = torch.from_numpy(tails.astype(np.int64))
        encoded = torch.cat([self._encode(heads[r], relations[r]) for r in self._chunks(heads)])

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for rows in self._chunks(heads):
                scores = self._scores(encoded[rows])
                known = self._known(heads[rows], relations[rows])
                if known is not None:
                    known[torch.arange(len(known)), answers[rows]] = False
                    scores.masked_fill_(known, -torch.inf)
                yield scores, answers[rows]

        return batches

    def _chunks(self, queries: Sized) -> Iterator[slice]:
        """Cut queries into slices whose scores fit into the byte budget."""
        size = max(1, int(CHUNK_MIB * 2**20) // (4 * len(self.entities)))
        for start in range(0, len(queries), size):
            yield slice(start, start + size)

    def _predict(
        self, questions: Sequence["Resolved"], top_k: int, filter_known: bool
    ) -> list[Prediction]:
        """Answer as many queries as fit into the byte budget."""
        heads = np.array([question.entity for question in questions], np.int64)
        relations = np.array([question.relation for question in questions], np.int64)
        scores = self._scores(self._encode(heads, relations))
        known = self._known(heads, relations)
        candidates = scores if known is None else scores.masked_fill(known, -torch.inf)
        answers = self._best(candidates if filter_known else scores, candidates, known, top_k)
        counts = [None] * len(questions) if known is None else known.sum(1).tolist()
        return [
            Prediction(
                question.query,
                answers[row],
                counts[row],
                None
                if question.about is None
                else self._place(scores[row], candidates[row], question.about),
            )
            for row, question in enumerate(questions)
        ]

    def _best(
        self, shown: Scores, candidates: Scores, known: Known | None, top_k: int
    ) -> list[tuple[Answer, ...]]:
        """Return the best of the shown entities for each query, fewer where some are hidden."""
        best, ids = shown.topk(min(top_k, shown.shape[1]), dim=1)
        probabilities = self._probabilities(candidates, ids)
        flags = None if known is None else known.gather(1, ids).tolist()
        width, named = ids.shape[1], self.entities.named(ids.flatten().numpy())
        return [
            tuple(
                Answer(
                    place + 1,
                    *named[row * width + place],
                    score=score,
                    probability=probabilities[row][place] if probabilities else None,
                    known=flags[row][place] if flags is not None else None,
                )
                for place, score in enumerate(row_scores)
                if score != -np.inf
            )
            for row, row_scores in enumerate(best.tolist())
        ]

    def _place(self, scores: EntityScores, candidates: EntityScores, entity: int) -> Place:
        """Return where an entity stands; it is a candidate even if it is known."""
        own, is_hidden = scores[entity], bool(candidates[entity] == -torch.inf)
        candidates = candidates.clone()
        candidates[entity] = own
        above, equal = (candidates > own).sum(), (candidates == own).sum() - 1
        probabilities = self._probabilities(candidates[None], torch.tensor([[entity]]))
        ((name, label),) = self.entities.named(np.array([entity]))
        return Place(
            rank=1 + float(above) + 0.5 * float(equal),
            num_candidates=int((candidates > -torch.inf).sum()),
            name=name,
            label=label,
            score=float(own),
            probability=probabilities[0][0] if probabilities else None,
            known=None if self.known is None else is_hidden,
        )

    @torch.no_grad()
    def _encode(self, heads: np.ndarray, relations: np.ndarray) -> Queries:
        """Return the query vectors, `(batch, dim)`."""
        rows = (torch.from_numpy(ids.astype(np.int64)) for ids in (heads, relations))
        encoded: Tensor = self.model(*rows)
        return encoded

    @torch.no_grad()
    def _scores(self, queries: Queries) -> Scores:
        """Return the score of every entity, `(batch, entity)`."""
        scores = self.model.scores(queries)
        if not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(scores)):
            raise CheckpointError("model scores contain NaN or infinity; use another checkpoint")
        return scores

    def _known(self, heads: np.ndarray, relations: np.ndarray) -> Known | None:
        """Return which entities are known answers, if the training triples are available."""
        if self.known is None:
            return None
        rows, entities = self.known.lookup(heads, relations)
        flags = torch.zeros(len(heads), len(self.entities), dtype=torch.bool)
        flags[torch.from_numpy(rows), torch.from_numpy(entities)] = True
        return flags

    def _probabilities(self, candidates: Scores, ids: Tensor) -> list[list[float | None]] | None:
        """Return the probability of each shown entity among the candidates."""
        if self.calibration is None:
            return None
        scaled = candidates / self.calibration.temperature
        shown = scaled.gather(1, ids) - scaled.logsumexp(dim=1, keepdim=True)
        return [[p if p > 0 else None for p in row] for row in shown.double().exp().tolist()]

    def resolve(self, query: Query) -> "Resolved":
        """Return the query with its names, and the table rows that predict its answer."""
        asks_for = query.asks_for
        relation = self.relations.id_of_text(query.relation)
        entity = self.entities.id_of_text(query.given[1])
        about = None if query.about is None else self.entities.id_of_text(query.about)
        name, end = self.relations.name(relation), self.entities.name(entity)
        named = None if about is None else self.entities.name(about)
        if asks_for == "tail":
            return Resolved(Query(name, head=end, about=named), entity, relation, about)
        if not self.has_inverses:
            raise DataError(
                f"heads of ({name}, {end}) requested, but this model was trained without inverse "
                "relations and predicts tails only; train with data.inverse_relations=true"
            )
        inverse = relation + len(self.relations)
        return Resolved(Query(name, tail=end, about=named), entity, inverse, about)


@dataclass(frozen=True)
class Resolved:
    """A query under the names of the vocabulary, and as rows of the model's tables."""

    query: Query
    entity: int
    """The end that is given."""
    relation: int
    """Relation; r + R asks for heads of r."""
    about: int | None
    """The entity to place."""


def _check_sizes(model: GraphModel, entities: Vocabulary, relations: Vocabulary) -> None:
    rows = model.relation.num_embeddings
    if model.entity.num_embeddings != len(entities) or rows not in (
        len(relations),
        2 * len(relations),
    ):
        raise CheckpointError(
            f"the model has {model.entity.num_embeddings} entities and {rows} relation rows, the "
            f"vocabulary {len(entities)} entities and {len(relations)} relations; they belong to "
            "different runs"
        )
