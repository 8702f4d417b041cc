"""Which entities can answer a question, and tables of the best pairs of a relation.

An entity can answer if it is of a kind, in a list, or seen with the relation.

A pair (h, t) of relation r answers two questions: which tail h has, and which head t has. Each has
a calibrated probability p (`calibration`), with the limited candidates in place of all entities.
The probability of the pair is the mean of both,

    (p(t | h, r) + p(h | r, t)) / 2,

the probability that the pair answers a question for one of its ends, drawn with a fair coin. It is
comparable between pairs, which scores are not: a score is comparable only within its question.
The score of a pair is likewise the mean of its two scores. A model without inverse relations has
only the first question.

Blocks of heads are scored against all tails, and only the best pairs so far are kept. The
probability of a head needs the scores of all heads, so the blocks are scored twice.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from clew.biolink import page_of
from clew.errors import ConfigError, DataError, quoted
from clew.link_prediction.rank_metrics import SIDES, Side
from clew.link_prediction.triples import HEAD, RELATION, TAIL, FilterIndex
from clew.link_prediction.vocabulary import Vocabulary

if TYPE_CHECKING:
    from clew.link_prediction.prediction import Predictor

logger = logging.getLogger(__name__)

Ids = Int64[np.ndarray, " candidate"]


@dataclass(frozen=True)
class Limits:
    """Limits of the heads and tails that can be answers; without any, all entities can."""

    head_kind: str = ""
    tail_kind: str = ""
    """Kinds of the ends, such as `Drug`."""
    heads: Sequence[str] | None = None
    """Names or labels of the heads."""
    tails: Sequence[str] | None = None
    """Names or labels of the tails."""
    seen: bool = False
    """Only entities that training has at this end of the relation."""

    def __bool__(self) -> bool:
        return self != EVERYTHING

    def candidates(self, graph: "Predictor", relation: int) -> Ids:
        """Return the ids of the entities that can answer, ascending; r + R asks for heads of r."""
        number = len(graph.relations)
        side: Side = "head" if relation >= number else "tail"
        kind, listed = getattr(self, f"{side}_kind"), getattr(self, f"{side}s")
        chosen = np.ones(len(graph.entities), bool)
        if kind:
            chosen &= _of_kind(graph.entities, kind)
        if listed is not None:
            chosen &= _listed(graph.entities, listed, side)
        if self.seen:
            if graph.known is None:
                raise DataError(
                    "only entities seen with the relation requested, but the training triples are "
                    "not available; use a registered model, or make the data set available"
                )
            chosen &= np.isin(np.arange(len(chosen)), seen_with(graph.known, relation))
        if not chosen.any():
            name = graph.relations.name(relation % number)
            raise DataError(f"no entity can be a {side} of {quoted(name)}; widen its limits")
        return np.flatnonzero(chosen)


EVERYTHING = Limits()
"""No limits: every entity can be a head and a tail."""


def seen_with(known: FilterIndex, relation: int) -> Ids:
    """Return the entities that known triples have as answers to a relation, ascending."""
    return np.unique(known.tails_of(np.flatnonzero(known.relations == relation))[1])


def _of_kind(entities: Vocabulary, kind: str) -> np.ndarray:
    kinds = entities.category_array
    if kinds is None:
        raise DataError(
            f"kind {quoted(kind)} requested, but the data do not name the kinds of entities; give "
            "them in a dictionary, or list the candidates in a file"
        )
    chosen = pc.equal(pc.utf8_lower(kinds), kind.lower()).fill_null(False)
    if not pc.any(chosen).as_py():
        known = sorted(filter(None, pc.unique(kinds).to_pylist()))
        shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        raise DataError(f"no entity has the kind {quoted(kind)}; the data have {shown}")
    return np.asarray(chosen)


def _listed(entities: Vocabulary, names: Sequence[str], side: Side) -> np.ndarray:
    ids, errors = ids_of_texts(entities, names)
    if errors:
        said = len(errors), len(names), side, next(iter(errors.values()))
        logger.warning("%d of %d names for %ss left out; the first: %s", *said)
    chosen = np.zeros(len(entities), bool)
    chosen[ids[ids >= 0]] = True
    return chosen


def ids_of_texts(vocabulary: Vocabulary, texts: Sequence[str]) -> tuple[Ids, dict[int, str]]:
    """Return the ids of names or labels, -1 for an unknown one, and each one's message by row."""
    ids, errors = vocabulary.find(pa.array(texts, pa.string())).astype(np.int64), {}
    for row in np.flatnonzero(ids < 0).tolist():
        try:
            ids[row] = vocabulary.id_of_text(texts[row])
        except DataError as error:
            errors[row] = str(error)
    return ids, errors


Pairs = Int64[np.ndarray, "pair 3"]
Keys = Float32[np.ndarray, " pair"]
BLOCK_MIB = 4.0
"""Scores of a block; larger ones do not fit into the processor's cache."""
_NAMED = ("{}", "{}_label", "{}_kind", "{}_link")
COLUMNS = pa.schema(
    [
        *((part.format("head"), pa.string()) for part in _NAMED),
        ("relation", pa.string()),
        *((part.format("tail"), pa.string()) for part in _NAMED),
        ("score", pa.float32()),
        ("probability", pa.float32()),
        ("known", pa.bool_()),
        *((f"{side}_probability", pa.float32()) for side in SIDES),
        *((f"{side}_rank", pa.float64()) for side in SIDES),
        *((f"num_{side}s", pa.int64()) for side in SIDES),
    ]
)
"""Columns of a table of pairs; one that the model cannot fill is null."""


def list_pairs(
    predictor: "Predictor",
    relation: str,
    *,
    top_k: int,
    filter_known: bool = True,
    limits: Limits = EVERYTHING,
) -> pa.Table:
    """Return the best pairs of a relation as a table, the best first.

    Args:
        predictor: The model.
        relation: Name or label of the relation.
        top_k: Number of pairs.
        filter_known: Leave out pairs that are known from training.
        limits: Which heads and tails are candidates.

    Raises:
        ConfigError: If `top_k` is not positive.
        DataError: If the relation is unknown, no candidate is left, or `filter_known` is set
            without training triples.
    """
    if top_k < 1:
        raise ConfigError(f"top_k is {top_k}; expected 1 or more")
    if filter_known and predictor.known is None:
        raise DataError(
            "a list of new pairs requested, but the training triples are not available; make the "
            "data set available, or ask for known pairs too (--filter-known false)"
        )
    row = predictor.relations.id_of_text(relation)
    heads = limits.candidates(predictor, row + len(predictor.relations))
    tails = limits.candidates(predictor, row)
    pairs, keys = best_pairs(predictor, row, heads, tails, top_k, filter_known=filter_known)
    table = table_of_pairs(predictor, pairs, limits)
    key = "score" if predictor.calibration is None else "probability"
    table = table.set_column(table.column_names.index(key), key, pa.array(keys))
    return table.add_column(0, "rank", pa.array(np.arange(1, len(pairs) + 1)))


def best_pairs(
    predictor: "Predictor", relation: int, heads: Ids, tails: Ids, top_k: int, *, filter_known: bool
) -> tuple[Pairs, Keys]:
    """Return the best pairs as triples of ids, and what they are ordered by, the best first.

    Pairs with the same key are in the order of their heads' ids, then of their tails'.
    """
    best, keys = np.empty(0, np.int64), np.empty(0, np.float32)
    for start, block in _key_blocks(predictor, relation, heads, tails, filter_known=filter_known):
        # A pair that only equals the worst kept one comes after it.
        floor = keys[-1] if len(keys) == top_k else -np.inf
        found = np.flatnonzero(block > floor)
        if len(found) > top_k:
            values = block[found]
            cut = np.partition(values, -top_k)[-top_k]
            above, equal = found[values > cut], found[values == cut]
            found = np.sort(np.concatenate([above, equal[: top_k - len(above)]]))
        best, keys = np.concatenate([best, start + found]), np.concatenate([keys, block[found]])
        order = np.argsort(-keys, kind="stable")[:top_k]
        best, keys = best[order], keys[order]
    head, tail = np.divmod(best, len(tails))
    return np.stack([heads[head], np.full(len(best), relation), tails[tail]], axis=1), keys


def _key_blocks(
    predictor: "Predictor", relation: int, heads: Ids, tails: Ids, *, filter_known: bool
) -> Iterator[tuple[int, Keys]]:
    """Yield the number of a block's first pair and its keys; -inf for pairs that are left out."""
    calibration, has_inverses = predictor.calibration, predictor.has_inverses
    of_heads = torch.empty(0)
    if has_inverses:
        inverse = np.full(len(tails), relation + len(predictor.relations))
        parts = predictor.chunks(tails)
        of_heads = torch.cat([predictor.encode(tails[rows], inverse[rows]) for rows in parts])

    blocks = list(predictor.chunks(heads, len(tails), BLOCK_MIB))
    same = np.full(len(heads), relation)
    known = [predictor.known_answers(heads[rows], same[rows], among=tails) for rows in blocks]
    by_tail = torch.full((len(tails),), -torch.inf, dtype=torch.float64)
    if has_inverses and calibration is not None:
        for rows, at in zip(blocks, known, strict=True):
            scaled = predictor.scores(of_heads, heads[rows]).T.double() / calibration.temperature
            scaled[at] = -torch.inf
            by_tail = torch.logaddexp(by_tail, scaled.logsumexp(dim=0))
    for rows, at in zip(blocks, known, strict=True):
        of_tails = predictor.encode(heads[rows], same[rows])
        keys = predictor.scores(of_tails, tails).double()
        if calibration is not None:
            _to_probabilities(keys, at, calibration.temperature)
        if has_inverses:
            for_heads = predictor.scores(of_heads, heads[rows]).T.double()
            if calibration is not None:
                _to_probabilities(for_heads, at, calibration.temperature, by_tail)
            keys.add_(for_heads).div_(2)
        if filter_known:
            keys[at] = -torch.inf
        yield rows.start * len(tails), keys.float().numpy().ravel()


def _to_probabilities(
    scores: Tensor, known: tuple[Tensor, Tensor], temperature: float, others: Tensor | None = None
) -> None:
    """Replace scores `(head, tail)` by probabilities; `others` are the normalisers of new pairs.

    A known pair is not in its normaliser, and is added to it for its own probability.
    """
    own = scores.div_(temperature)[known]
    scores[known] = -torch.inf
    if others is None:
        others = scores.logsumexp(dim=1, keepdim=True)
    scores.sub_(others).exp_()
    scores[known] = (own - others.expand_as(scores)[known]).sigmoid()


def table_of_pairs(predictor: "Predictor", triples: Pairs, limits: Limits) -> pa.Table:
    """Return a row for each triple of ids: names, score, probability, and rank at both ends."""
    relations = np.unique(triples[:, RELATION])
    rows = [np.flatnonzero(triples[:, RELATION] == relation) for relation in relations]
    parts = [_table_of_relation(predictor, triples[own], limits) for own in rows]
    if not parts:
        return COLUMNS.empty_table()
    return pa.concat_tables(parts).take(np.argsort(np.concatenate(rows)))


def scored_triples(
    predictor: "Predictor",
    triples: Sequence[Sequence[str | None]],
    limits: Limits = EVERYTHING,
    errors: Mapping[int, str] = MappingProxyType({}),
) -> pa.Table:
    """Return a row for each triple of names or labels, in their order.

    A row that cannot be scored has only what was given, and its reason in the column `error`.

    Args:
        predictor: The model.
        triples: Head, relation and tail of each row.
        limits: Which heads and tails the ranks compare with.
        errors: Reasons why rows cannot be scored that are known already, by row.
    """
    found = dict(errors)
    for row, triple in enumerate(triples):
        if not (len(triple) == 3 and all(triple)):
            found.setdefault(row, "expected a head, a relation and a tail")
    good = [row for row in range(len(triples)) if row not in found]
    names = {HEAD: predictor.entities, RELATION: predictor.relations, TAIL: predictor.entities}
    ids = np.empty((len(triples), 3), np.int64)
    for part, vocabulary in names.items():
        ids[good, part], unknown = ids_of_texts(
            vocabulary, [triples[row][part] or "" for row in good]
        )
        found |= {good[place]: line for place, line in unknown.items()} | found
    good = [row for row in good if row not in found]
    if not good:
        first = next(iter(found.values()), "no triple given")
        raise DataError(f"none of {len(triples):,} triples can be scored; the first: {first}")
    table = table_of_pairs(predictor, ids[good], limits)
    places = {row: place for place, row in enumerate(good)}
    table = table.take(pa.array([places.get(row) for row in range(len(triples))], pa.int64()))
    for part, side in enumerate(("head", "relation", "tail")):
        given = pa.array([(*triple, None, None, None)[part] for triple in triples], pa.string())
        named = pc.coalesce(table[side], given)
        table = table.set_column(table.column_names.index(side), side, named)
    told = pa.array([found.get(row) for row in range(len(triples))], pa.string())
    return table.append_column("error", told)


def _table_of_relation(predictor: "Predictor", triples: Pairs, limits: Limits) -> pa.Table:
    calibration, relation = predictor.calibration, int(triples[0, RELATION])
    columns: dict[str, Any] = {"relation": [predictor.relations.name(relation)] * len(triples)}
    found = []
    ends: tuple[tuple[Side, int, int], ...] = (("tail", HEAD, TAIL), ("head", TAIL, HEAD))
    for side, given, asked in ends:
        columns |= _named(predictor.entities, triples[:, asked], side)
        if side == "head":
            if not predictor.has_inverses:
                continue
            relation += len(predictor.relations)
        place = predictor.places(
            triples[:, given],
            np.full(len(triples), relation),
            triples[:, asked],
            candidates=limits.candidates(predictor, relation) if limits else None,
            temperature=predictor.temperature,
        )
        columns |= {f"{side}_rank": place.rank, f"num_{side}s": place.num_candidates}
        columns |= {f"{side}_probability": place.probability} if calibration else {}
        columns |= {"known": place.known} if predictor.known else {}
        found.append(place)
    columns["score"] = np.mean([place.score for place in found], axis=0)
    if calibration:
        columns["probability"] = np.mean([place.probability for place in found], axis=0)
    empty = pa.nulls(len(triples))
    return pa.table([columns.get(name, empty) for name in COLUMNS.names], COLUMNS.names).cast(
        COLUMNS
    )


def _named(entities: Vocabulary, ids: Ids, side: Side) -> dict[str, Any]:
    name = entities.name_array.take(pa.array(ids))
    label, kind = (
        None if texts is None else texts.take(pa.array(ids))
        for texts in (entities.label_array, entities.category_array)
    )
    found = {
        side: name,
        f"{side}_label": name if label is None else pc.coalesce(label, name),
        f"{side}_link": [page_of(text) for text in name.to_pylist()],
    }
    return found if kind is None else found | {f"{side}_kind": kind}
