"""How far two explanations of the same prediction agree: which facts, in which order."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

TRAIN_KEY = ["head_id", "relation_id", "tail_id"]
OVERLAP_SIZES = (10, 25, 50, 100)


@dataclass(frozen=True)
class Agreement:
    """Agreement of two lists of training facts.

    `overlap` is the share of the k most helpful facts that both have; `spearman` the rank
    correlation over the facts that both scored. `facts` has a row a common fact: its ranks
    `rank` and `other_rank`, influences, and `moved` = other_rank - rank.
    """

    overlap: dict[int, float]
    spearman: float | None
    common: int
    facts: pd.DataFrame


def agreement(facts: pd.DataFrame, other: pd.DataFrame) -> Agreement:
    """Compare two frames of facts as `reports.read_facts` returns them."""
    columns = ["rank", "influence"]
    left = facts.drop_duplicates(TRAIN_KEY)
    right = other.drop_duplicates(TRAIN_KEY)[[*TRAIN_KEY, *columns]]
    for key in TRAIN_KEY:
        left, right = left.astype({key: str}), right.astype({key: str})
    renamed = right.rename(columns={name: f"other_{name}" for name in columns})
    merged = left.merge(renamed, on=TRAIN_KEY, how="inner")
    merged["moved"] = merged["other_rank"] - merged["rank"]
    smaller = min(len(left), len(right))
    sizes = [size for size in OVERLAP_SIZES if size <= smaller] or ([smaller] if smaller else [])
    return Agreement(
        overlap={size: _overlap(merged, size) for size in sizes},
        spearman=_spearman(merged["influence"], merged["other_influence"]),
        common=len(merged),
        facts=merged,
    )


def _overlap(merged: pd.DataFrame, size: int) -> float:
    return float(((merged["rank"] <= size) & (merged["other_rank"] <= size)).sum() / size)


def _spearman(values: pd.Series, others: pd.Series) -> float | None:
    """Return the rank correlation; None for fewer than three pairs or constant values."""
    if len(values) < 3:
        return None
    ranks, other_ranks = values.rank().to_numpy(), others.rank().to_numpy()
    if np.ptp(ranks) == 0 or np.ptp(other_ranks) == 0:
        return None
    return float(np.corrcoef(ranks, other_ranks)[0, 1])
