"""Answers link-prediction queries by name: the best tails, or heads, with their probabilities.

The head of a query (relation r, tail t) is predicted as the tail of (t, inverse of r), so it needs
a model that was trained with inverse relations. Everything is computed on the CPU in float32.
"""

from collections.abc import Iterator, Sequence, Sized

import numpy as np
import pyarrow.compute as pc
import torch
from jaxtyping import Bool
from torch import Tensor

from clew.errors import CheckpointError, ConfigError, DataError
from clew.layers.shapes import Queries, Scores
from clew.link_prediction.answers import Answer, Prediction, Query
from clew.link_prediction.calibration import Calibration, HeldOut, fit_temperature
from clew.link_prediction.filters import FilterIndex
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.triples import HEAD, RELATION, TAIL, Triples
from clew.link_prediction.vocabulary import Vocabulary

CHUNK_MIB = 64.0
MAX_CALIBRATION_QUERIES = 2048

Known = Bool[Tensor, "batch entity"]


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
        heads, relations = (np.array([row[i] for row in resolved], np.int64) for i in (1, 2))
        answers: list[tuple[Answer, ...]] = []
        for rows in self._chunks(resolved):
            answers += self._best(heads[rows], relations[rows], top_k, filter_known)
        return [Prediction(row[0], found) for row, found in zip(resolved, answers, strict=True)]

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

    def _best(
        self, heads: np.ndarray, relations: np.ndarray, top_k: int, filter_known: bool
    ) -> list[tuple[Answer, ...]]:
        scores = self._scores(self._encode(heads, relations))
        known = self._known(heads, relations)
        candidates = scores if known is None else scores.masked_fill(known, -torch.inf)
        shown = candidates if filter_known else scores
        best, ids = shown.topk(min(top_k, scores.shape[1]), dim=1)
        probabilities = self._probabilities(candidates, ids)
        flags = None if known is None else known.gather(1, ids).tolist()
        names = self._names(ids)
        return [
            tuple(
                Answer(
                    rank=place + 1,
                    name=names[row][place][0],
                    label=names[row][place][1],
                    score=score,
                    probability=probabilities[row][place] if probabilities else None,
                    known=flags[row][place] if flags is not None else None,
                )
                for place, score in enumerate(row_scores)
                if score != -np.inf
            )
            for row, row_scores in enumerate(best.tolist())
        ]

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

    def _names(self, ids: Tensor) -> list[list[tuple[str, str]]]:
        """Return name and label of each shown entity."""
        flat = ids.flatten().numpy()
        names = self.entities.name_array.take(flat).to_pylist()
        labels = names
        if self.entities.label_array is not None:
            labels = self.entities.label_array.take(flat).to_pylist()
        pairs = [(name, label or name) for name, label in zip(names, labels, strict=True)]
        width = ids.shape[1]
        return [pairs[start : start + width] for start in range(0, len(pairs), width)]

    def resolve(self, query: Query) -> tuple[Query, int, int]:
        """Return the query with its names, and the table rows that predict its answer."""
        asks_for = query.asks_for
        relation = _find(self.relations, query.relation)
        entity = _find(self.entities, query.head or query.tail or "")
        name, end = self.relations.name(relation), self.entities.name(entity)
        if asks_for == "tail":
            return Query(name, head=end), entity, relation
        if not self.has_inverses:
            raise DataError(
                f"heads of ({name}, {end}) requested, but this model was trained without inverse "
                "relations and predicts tails only; train with data.inverse_relations=true"
            )
        return Query(name, tail=end), entity, relation + len(self.relations)


def _find(vocabulary: Vocabulary, text: str) -> int:
    """Return the id of a name, or of the only name with the text as its label."""
    if text not in vocabulary and vocabulary.label_array is not None:
        found = np.flatnonzero(pc.equal(vocabulary.label_array, text).fill_null(False))
        if len(found) == 1:
            return int(found[0])
        if len(found) > 1:
            shown = " or ".join(repr(vocabulary.name(i)) for i in found[:3])
            raise DataError(
                f"{text!r} is the label of {len(found)} {vocabulary.kind} names; give the name "
                f"itself, for example {shown}"
            )
    return vocabulary.id(text)


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
