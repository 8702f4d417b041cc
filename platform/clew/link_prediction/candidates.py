"""Which entities can answer a question: those of a kind, of a list, or seen with the relation."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from clew.errors import DataError, quoted
from clew.link_prediction.rank_metrics import Side
from clew.link_prediction.triples import FilterIndex
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
