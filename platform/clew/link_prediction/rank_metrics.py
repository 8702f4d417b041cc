"""Metrics computed from ranks: MRR, Hits@k and mean rank, overall, by side and by relation."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
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


def _hits(k: int, ranks: Ranks) -> Ranks:
    return 1.0 * (ranks <= k)


TERMS: dict[str, Callable[[Ranks], Ranks]] = {
    names.MRR: lambda ranks: 1.0 / ranks,
    names.MEAN_RANK: lambda ranks: ranks,
    **{names.hits_at(k): partial(_hits, k) for k in HITS_AT},
}
"""What a rank adds to each metric, which is a mean."""


@dataclass(frozen=True)
class RankQuality:
    """Means over the ranks of some queries; the best possible rank is 1."""

    num_queries: int
    mrr: float
    mean_rank: float
    hits_at_1: float
    hits_at_3: float
    hits_at_10: float

    @classmethod
    def of(cls, ranks: Ranks) -> "RankQuality":
        """Return the means over ranks; at least one rank is required."""
        return cls(len(ranks), *(float(np.mean(term(ranks))) for term in TERMS.values()))

    def metrics(self) -> dict[str, float]:
        """Return the values by metric name, without the split."""
        return {name: value for name, value in vars(self).items() if name != "num_queries"}


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

    def quality(self, side: Side | None = None) -> RankQuality:
        if side is not None:
            return RankQuality.of(self.ranks(side))
        return RankQuality.of(np.concatenate([self.head_ranks, self.tail_ranks]))

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
        values = {names.metric(split, n): v for n, v in self.quality().metrics().items()}
        for side in SIDES:
            for name, value in self.quality(side).metrics().items():
                values[names.metric(split, f"{name}_{side}")] = value
        return values

    def write_by_relation(self, path: Path, relations: Vocabulary) -> None:
        """Write a Parquet file with one row per relation and side, including names and labels."""
        rows = [
            {
                "relation": relation,
                "name": relations.name(relation),
                "label": relations.label(relation),
                "side": side,
                **asdict(RankQuality.of(self.ranks(side)[self.relation == relation])),
            }
            for relation in np.unique(self.relation).tolist()
            for side in SIDES
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=_BY_RELATION), path)


_BY_RELATION = pa.schema(
    [
        ("relation", pa.int32()),
        ("name", pa.string()),
        ("label", pa.string()),
        ("side", pa.string()),
        ("num_queries", pa.int64()),
        *((field, pa.float64()) for field in ("mrr", "mean_rank")),
        *((names.hits_at(k), pa.float64()) for k in HITS_AT),
    ]
)
