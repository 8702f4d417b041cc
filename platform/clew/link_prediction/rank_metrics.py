"""Metrics computed from ranks: MRR, Hits@k and mean rank, overall, by side and by relation."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64, Int

from clew import names
from clew.link_prediction.vocabulary import Vocabulary

Side = Literal["head", "tail"]
SIDES: tuple[Side, ...] = ("head", "tail")
HITS_AT = (1, 3, 10)

Ranks = Float64[np.ndarray, " query"]


def _hits_at(k: int) -> Callable[[Ranks], Ranks]:
    return lambda ranks: 1.0 * (ranks <= k)


TERMS: dict[str, Callable[[Ranks], Ranks]] = {
    names.MRR: lambda ranks: 1.0 / ranks,
    names.MEAN_RANK: lambda ranks: ranks,
    **{names.hits_at(k): _hits_at(k) for k in HITS_AT},
}
"""What a rank adds to each metric, which is a mean."""


def mean_quality(ranks: Ranks) -> dict[str, float]:
    """Return the metrics over ranks by name; the best rank is 1, and one at least is required."""
    return {name: float(np.mean(term(ranks))) for name, term in TERMS.items()}


@dataclass(frozen=True, eq=False)
class RankingResult:
    """Filtered realistic ranks of both sides of some triples.

    The realistic rank is the mean of the optimistic rank (all answers with the same score come
    after) and the pessimistic rank (all of them come before). A constant score therefore does not
    get a good rank.
    """

    relation: Int[np.ndarray, " triple"]
    head_ranks: Float64[np.ndarray, " triple"]
    """Rank of each triple's head among all entities except other known heads."""
    tail_ranks: Float64[np.ndarray, " triple"]
    """Rank of each triple's tail among all entities except other known tails."""

    def ranks(self, side: Side) -> Ranks:
        return self.head_ranks if side == "head" else self.tail_ranks

    def quality(self, side: Side | None = None) -> dict[str, float]:
        """Return the metrics of one side or both, by name without the split."""
        sides = (side,) if side else SIDES
        return mean_quality(np.concatenate([self.ranks(side) for side in sides]))

    def by_triple(self, name: str) -> Float64[np.ndarray, " triple"] | None:
        """Return what each triple adds to a metric, such as `mrr` or `hits_at_1_head`; their mean.

        None if the metric has another name.
        """
        sides = [side for side in SIDES if name.endswith(f"_{side}")] or SIDES
        term = TERMS.get(name.removesuffix("_head").removesuffix("_tail"))
        return term and np.mean([term(self.ranks(side)) for side in sides], axis=0)

    def only(self, chosen: np.ndarray) -> "RankingResult":
        return RankingResult(
            self.relation[chosen], self.head_ranks[chosen], self.tail_ranks[chosen]
        )

    def metrics(self, split: str) -> dict[str, float]:
        """Return all metrics, such as `valid/mrr` and `valid/mrr_head`; empty without triples."""
        if not len(self.relation):
            return {}
        values = self.quality()
        for side in SIDES:
            values |= {f"{name}_{side}": value for name, value in self.quality(side).items()}
        return {names.metric(split, name): value for name, value in values.items()}

    def write_by_relation(self, path: Path, relations: Vocabulary) -> None:
        """Write a Parquet file with one row per relation and side, including names and labels."""
        rows = []
        for relation in np.unique(self.relation).tolist():
            for side in SIDES:
                own = self.ranks(side)[self.relation == relation]
                row = {"relation": relation, "name": relations.name(relation), "side": side}
                row |= {"label": relations.label(relation), "num_queries": len(own)}
                rows.append(row | mean_quality(own))
        pq.write_table(pa.Table.from_pylist(rows, schema=_BY_RELATION), path)


_BY_RELATION = pa.schema(
    [
        ("relation", pa.int32()),
        ("name", pa.string()),
        ("label", pa.string()),
        ("side", pa.string()),
        ("num_queries", pa.int64()),
        *((name, pa.float64()) for name in TERMS),
    ]
)
