"""Scores of every entity for queries (entity, relation), in slices that fit into a byte budget.

The head of (relation r, tail t) is predicted as the tail of (t, inverse of r), so it needs a model
that was trained with inverse relations. Everything is computed on the CPU in float32.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor
from tqdm import tqdm

from clew.errors import CheckpointError
from clew.link_prediction.calibration import AnswerSets, Calibration, HeldOut, fit_temperature
from clew.link_prediction.candidates import seen_with
from clew.link_prediction.models.base import EVERY_ENTITY, GraphModel, Queries, Scores
from clew.link_prediction.rank_metrics import RankingResult
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex, Triples

CHUNK_MIB = 64.0
MAX_CALIBRATION_QUERIES = 2048
MAX_HELD_OUT_TRIPLES = 20_000

Known = Bool[Tensor, "batch entity"]
Ids = Int64[np.ndarray, " query"]
Candidates = Int64[np.ndarray, " candidate"]


@dataclass(frozen=True, eq=False)
class Places:
    """Where an answer to each question is among its candidates.

    The candidates are the allowed entities except other answers known from training; the answer
    itself is always one. `rank` is 1 + the number of candidates with a higher score + half the
    number of other candidates with the same score.
    """

    score: Float32[np.ndarray, " query"]
    rank: Float64[np.ndarray, " query"]
    num_candidates: Int64[np.ndarray, " query"]
    probability: Float64[np.ndarray, " query"]
    """Probability of the answer, given that it is none of the other known ones."""
    known: Bool[np.ndarray, " query"]


class QueryScores:
    """The scores of a trained model, and the answers that are known from training."""

    def __init__(self, model: GraphModel, num_relations: int, known: FilterIndex | None) -> None:
        self.model = model.eval()
        self.num_entities = model.entity.num_embeddings
        self.num_relations = num_relations
        self.known = known
        self.has_inverses = model.relation.num_embeddings == 2 * num_relations

    def chunks(
        self, queries: Sized, num_candidates: int | None = None, mib: float | None = None
    ) -> Iterator[slice]:
        size = int((mib or CHUNK_MIB) * 2**20) // (4 * (num_candidates or self.num_entities)) or 1
        for start in range(0, len(queries), size):
            yield slice(start, start + size)

    @torch.no_grad()
    def encode(self, entities: Ids, relations: Ids) -> Queries:
        return self.model.queries(torch.from_numpy(entities), torch.from_numpy(relations))

    @torch.no_grad()
    def scores(self, queries: Queries, candidates: Candidates | None = None) -> Scores:
        """Return the scores of candidates, or of all entities, `(batch, candidate)`."""
        every = candidates is None or len(candidates) == self.num_entities
        scores = self.model.scores(queries, EVERY_ENTITY if every else torch.from_numpy(candidates))
        finite = all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(scores))
        if not finite:
            raise CheckpointError("model scores contain NaN or infinity; use another checkpoint")
        return scores

    def known_answers(
        self,
        entities: Ids,
        relations: Ids,
        *,
        but: Ids | None = None,
        among: Candidates | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return rows and columns of the known answers' scores; none without training triples.

        Args:
            entities: The given entity of each query.
            relations: The relation of each query.
            but: One answer to each query that does not count as known.
            among: The columns' entities, ascending; None if all entities have a column.
        """
        row = answer = np.empty(0, np.int64)
        if self.known is not None:
            row, answer = self.known.lookup(entities, relations)
        if but is not None:
            others = answer != but[row]
            row, answer = row[others], answer[others]
        if among is not None:
            inside = np.isin(answer, among)
            row, answer = row[inside], np.searchsorted(among, answer[inside])
        return torch.from_numpy(row), torch.from_numpy(answer)

    def have_facts(self, entities: Ids) -> Bool[np.ndarray, " query"]:
        """Return whether any training triple has each entity; true without training triples."""
        if self.known is None:
            return np.ones(len(entities), bool)
        ends = [(entities + end) * self.known.num_relations for end in (0, 1)]
        first, last = (np.searchsorted(self.known.keys, each) for each in ends)
        return np.asarray(last > first)

    def places(
        self,
        entities: Ids,
        relations: Ids,
        answers: Ids,
        *,
        candidates: Candidates | None = None,
        temperature: float = 1.0,
    ) -> Places:
        """Return where one answer to each question is among the candidates, or all entities."""
        ids = np.arange(self.num_entities) if candidates is None else candidates
        ids = np.union1d(ids, answers)
        outside = torch.zeros(len(ids), dtype=torch.bool)
        if candidates is not None:
            outside = torch.from_numpy(~np.isin(ids, candidates))
        found = []
        for rows in self.chunks(answers, len(ids)):
            given, relation, answer = entities[rows], relations[rows], answers[rows]
            scores = self.scores(self.encode(given, relation), ids)
            at = torch.arange(len(answer)), torch.from_numpy(np.searchsorted(ids, answer))
            own = scores[at][:, None]
            scores.masked_fill_(outside, -torch.inf)
            scores[at] = torch.inf
            scores[self.known_answers(given, relation, among=ids)] = -torch.inf
            is_known = scores[at] == -torch.inf
            scores[at] = -torch.inf
            others = (scores.double() / temperature).logsumexp(dim=1)
            above, equal, left = (
                kept.sum(dim=1) for kept in (scores > own, scores == own, scores > -torch.inf)
            )
            own = own[:, 0]
            probability = (own.double() / temperature - others).sigmoid()
            found.append((own, 1 + above + 0.5 * equal.double(), left + 1, probability, is_known))
        return Places(*(torch.cat(column).numpy() for column in zip(*found, strict=True)))

    def rank_seen(self, triples: Triples, train: Triples) -> RankingResult:
        """Rank both ends of triples among the entities that training has at that end.

        A triple's own entity is always a candidate. This needs inverse relations.
        """
        index = FilterIndex.in_both_directions(train, self.num_relations)
        entities, relations, answers = self._questions(triples)
        ranks = np.empty(len(answers))
        for relation in np.unique(relations):
            own = np.flatnonzero(relations == relation)
            asked = entities[own], relations[own], answers[own]
            seen = seen_with(index, int(relation))
            ranks[own] = self.places(*asked, candidates=seen).rank
        tail_ranks, head_ranks = np.split(ranks, 2)
        return RankingResult(triples[:, RELATION], head_ranks, tail_ranks)

    def calibrate(self, triples: Triples) -> Calibration | None:
        """Fit the temperature to both ends of held-out triples; return None without triples.

        At most `MAX_CALIBRATION_QUERIES` evenly spaced queries are used.
        """
        if not len(triples):
            return None
        num_sides = 2 if self.has_inverses else 1
        stride = -(-len(triples) * num_sides // MAX_CALIBRATION_QUERIES) or 1
        return fit_temperature(self._held_out(*self._questions(triples[::stride])))

    def measure_answer_sets(self, valid: Triples, test: Triples) -> AnswerSets:
        """Return the surprises at both ends of held-out triples, which answer sets need.

        If there are more than `MAX_HELD_OUT_TRIPLES`, a random sample is used, which is always the
        same.
        """
        parts = [self._surprises(valid), self._surprises(test)]
        relation, surprise = map(np.concatenate, zip(*parts, strict=True))
        is_test = np.repeat([False, True], [len(part[0]) for part in parts])
        return AnswerSets(self.num_relations, is_test, relation, surprise)

    def _surprises(self, triples: Triples) -> tuple[Ids, Float64[np.ndarray, " query"]]:
        if len(triples) > MAX_HELD_OUT_TRIPLES:
            generator = np.random.default_rng(0)
            triples = triples[generator.choice(len(triples), MAX_HELD_OUT_TRIPLES, replace=False)]
        entities, relations, answers = self._questions(triples)
        found = [torch.empty(0, dtype=torch.float64)]
        bar = tqdm(total=len(answers), unit=" queries", delay=1.0, disable=None, leave=False)
        with bar:
            for scores, own in self._held_out(entities, relations, answers)():
                chosen = scores[torch.arange(len(own)), own]
                found.append(scores.double().logsumexp(dim=1) - chosen.double())
                bar.update(len(own))
        return relations, torch.cat(found).numpy()

    def _questions(self, triples: Triples) -> tuple[Ids, Ids, Ids]:
        num_sides = 2 if self.has_inverses else 1
        heads, relations, tails = (triples[:, i].astype(np.int64) for i in (HEAD, RELATION, TAIL))
        return (
            np.concatenate([heads, tails][:num_sides]),
            np.concatenate([relations, relations + self.num_relations][:num_sides]),
            np.concatenate([tails, heads][:num_sides]),
        )

    def _held_out(self, entities: Ids, relations: Ids, answers: Ids) -> HeldOut:
        """Return scores and answers of questions; other known answers are not candidates."""
        own = torch.from_numpy(answers)
        encoded = [self.encode(entities[rows], relations[rows]) for rows in self.chunks(entities)]

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for rows, queries in zip(self.chunks(entities), encoded, strict=True):
                scores = self.scores(queries)
                known = self.known_answers(entities[rows], relations[rows], but=answers[rows])
                scores[known] = -torch.inf
                yield scores, own[rows]

        return batches
