"""Summarizes the training facts of an explained triple: paths, sentences, agreement.

The functions take a row of a report's tests and its facts, as `reports.read_facts` returns them.
They read no files and have no side effects.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

MAX_STEPS = 3
MAX_FACTS = 2000
"""Number of the strongest helping facts that are searched for paths."""
MAX_PATHS = 50
TOP = 10
TRAIN_KEY = ["head_id", "relation_id", "tail_id"]
OVERLAP_SIZES = (10, 25, 50, 100)
_ANSWERS = {
    "tail": Markup(
        "Asked for <b>{head}</b> {relation} <b>?</b>, the model puts <b>{tail}</b> {place}."
    ),
    "head": Markup(
        "Asked for <b>?</b> {relation} <b>{tail}</b>, the model puts <b>{head}</b> {place}."
    ),
    "both": Markup(
        "Asked for the head and for the tail of <b>{head}</b> {relation} <b>{tail}</b>, the model "
        "on average puts the right answer {place}."
    ),
}
"""Sentences for each value of `influence.direction`; a rank belongs to one question or to both."""


@dataclass(frozen=True)
class FactPath:
    """A path of facts from the head of a test triple to its tail; their directions are ignored."""

    ranks: tuple[int, ...]
    """Ranks of the facts among those that helped, in order from the head."""
    weakest: float
    """Influence of the weakest fact, which limits the strength of the path."""
    steps: tuple[str, ...]
    """The facts as text."""

    @property
    def sentence(self) -> str:
        return "; ".join(self.steps)


def find_paths(test: pd.Series, facts: pd.DataFrame) -> list[FactPath]:
    """Return the paths of at most `MAX_STEPS` helping facts from head to tail.

    Paths are sorted by the influence of their weakest fact, in descending order; at most
    `MAX_PATHS` are returned. Only the strongest fact between two entities counts, and no path
    visits an entity twice. If the triple itself is a training fact, it is not used, because it
    explains nothing.
    """
    columns = ["head_id", "tail_id", "head", "relation", "tail", "rank", "influence"]
    others = (facts["influence"] > 0) & ~_is_itself(test, facts)
    helping = facts.loc[others, columns].head(MAX_FACTS).to_dict("records")
    beside: dict[str, dict[str, int]] = {}
    for place, fact in enumerate(helping):
        head, tail = str(fact["head_id"]), str(fact["tail_id"])
        beside.setdefault(head, {}).setdefault(tail, place)
        beside.setdefault(tail, {}).setdefault(head, place)
    found = list(_walks(beside, (str(test["head_id"]),), str(test["tail_id"])))
    found.sort(key=lambda places: (-float(helping[max(places)]["influence"]), len(places), places))
    return [_path([helping[place] for place in places]) for places in found[:MAX_PATHS]]


def _walks(
    beside: Mapping[str, Mapping[str, int]], passed: tuple[str, ...], end: str
) -> Iterator[list[int]]:
    """Yield the facts of each path from the last passed entity to the end."""
    neighbours = beside.get(passed[-1], {})
    if end in neighbours and end not in passed:
        yield [neighbours[end]]
    if len(passed) < MAX_STEPS:
        for entity in neighbours.keys() - {*passed, end}:
            for rest in _walks(beside, (*passed, entity), end):
                yield [neighbours[entity], *rest]


def _path(facts: Sequence[Mapping[Hashable, Any]]) -> FactPath:
    return FactPath(
        tuple(int(fact["rank"]) for fact in facts),
        min(float(fact["influence"]) for fact in facts),
        tuple(
            " ".join(str(fact[key]).replace("_", " ") for key in ("head", "relation", "tail"))
            for fact in facts
        ),
    )


def by_side(rows: pd.DataFrame, column: str = "influence") -> pd.DataFrame:
    """Return the rows that helped, strongest first, then those that opposed, strongest first."""
    values = rows[column].to_numpy(float)
    return rows.iloc[np.lexsort((-np.abs(values), -np.sign(values)))]


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows `by_side`, with `place` in the whole list and `rank` within the own side."""
    rows = by_side(rows).reset_index(drop=True)
    side = np.sign(rows["influence"].to_numpy(float)) if len(rows) else np.zeros(0)
    rows.insert(0, "rank", rows.groupby(side).cumcount() + 1)
    rows.insert(0, "place", np.arange(1, len(rows) + 1))
    return rows


def facts_of_paths(facts: pd.DataFrame, paths: Sequence[FactPath]) -> pd.DataFrame:
    """Return the facts of the paths without duplicates, strongest first."""
    ranks = {rank for path in paths for rank in path.ranks}
    return facts[facts["rank"].isin(ranks) & (facts["influence"] > 0)]


def evidence(test: pd.Series, facts: pd.DataFrame, paths: Sequence[FactPath]) -> str:
    """Return sentences about how the strongest facts relate to head and tail of a test triple."""
    head, relation, tail = (str(test[key]) for key in ("head", "relation", "tail"))
    top = facts[facts["influence"] > 0].head(TOP)
    if top.empty:
        return f"None of the {searched(test, facts)} made it more likely."
    strongest = f"the {_number(len(top))} strongest facts" if len(top) > 1 else "the strongest fact"
    at_head, at_tail = (
        int(((top["head_id"] == test[end]) | (top["tail_id"] == test[end])).sum())
        for end in ("head_id", "tail_id")
    )
    same = int((top["relation_id"] == test["relation_id"]).sum())
    if at_head and at_tail:
        text = (
            f"Of {strongest}, {at_head} mention{'s' * (at_head == 1)} {head} and {at_tail} {tail}."
        )
    else:
        missing = " or ".join(
            name for name, count in ((head, at_head), (tail, at_tail)) if not count
        )
        text = f"None of {strongest} mentions {missing}"
        if 2 * same > len(top):
            text += f"; {_number(same)} of them {'has' if same == 1 else 'have'} its relation"
            text += f", {relation}"
        text += "."
    other = ""
    if _is_itself(test, facts).any():
        text, other = f"{text} The triple is itself a training fact.", "other "
    leaking = facts[facts["counterpart"] != ""] if "counterpart" in facts else facts[:0]
    for _, fact in leaking.head(1).iterrows():
        told = " ".join(str(fact[key]) for key in ("head", "relation", "tail"))
        text += f" Training contains its {fact['counterpart']}, {told}: it could be looked up."
    if paths:
        return f"{text} The best {other}path from {head} to {tail}: {paths[0].sentence}."
    return f"{text} {no_path(test, facts, other=other)}"


def no_path(test: pd.Series, facts: pd.DataFrame, *, other: str = "") -> str:
    """Return a sentence for `find_paths` without a result: what was searched, and what was not."""
    head, tail = str(test["head"]), str(test["tail"])
    helping = int(((facts["influence"] > 0) & ~_is_itself(test, facts)).sum())
    among = f"the {helping:,} helping facts in this report"
    if helping > MAX_FACTS:
        among = f"the {MAX_FACTS:,} strongest of {among}"
    text = f"No {other}path of up to {_number(MAX_STEPS)} of {among} connects {head} and {tail}."
    if len(facts) < scored(test, facts) or helping > MAX_FACTS:
        text += " The other training facts were not searched."
    return text


def searched(test: pd.Series, facts: pd.DataFrame) -> str:
    count, of = len(facts), scored(test, facts)
    return f"{count:,} facts in this report" + (f" (of {of:,} scored)" if of > count else "")


def _is_itself(test: pd.Series, facts: pd.DataFrame) -> pd.Series:
    same = pd.Series(True, index=facts.index)
    for column in ("head_id", "relation_id", "tail_id"):
        same &= facts[column] == test[column]
    return same


def _number(count: int) -> str:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return words[count - 1] if count <= len(words) else str(count)


def scored(test: pd.Series, facts: pd.DataFrame) -> int:
    """Return how many facts were scored; a report can contain only the strongest of them."""
    candidates = test["candidates"]
    return max(len(facts), 0 if pd.isna(candidates) else int(candidates))


def place_text(rank: float) -> str:
    """Return a rank as words."""
    if not math.isfinite(rank):
        return "at an unknown rank"
    if rank == 1:
        return "first"
    shown = f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f} (tied)"
    return f"at rank {shown}"


def answer(test: pd.Series, settings: Mapping[str, Any]) -> Markup:
    """Return the question of an explanation and the model's answer, as HTML.

    Args:
        test: A row of the report's tests.
        settings: Settings of the report; the oldest reports have no direction and rank the tail.
    """
    said = _ANSWERS.get(str(settings.get("direction")), _ANSWERS["tail"])
    ends = {key: test[key] for key in ("head", "relation", "tail")}
    rank = float(test["rank"])
    place = place_text(rank)
    if math.isfinite(rank):  # a list of all answers, as on the page Ask, shows a larger rank
        place += ", not counting other known answers"
    return said.format(**ends, place=place)


def summary(facts: pd.DataFrame, scored: int, train_size: int | None = None) -> str:
    """Return a sentence about how many facts helped, and how concentrated their influence is.

    Args:
        facts: The facts in the report.
        scored: How many facts were scored for the report.
        train_size: How many facts the model was trained on; None if the report does not say.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return f"Of {scored:,} scored training facts, the report contains none."
    of = f"Of {scored:,} training facts"
    if train_size is not None and scored < train_size:
        of += f" (selected by the filter from {train_size:,})"
    if scored > len(values):
        return (
            f"{of}, the report contains only the strongest: {helping:,} made the prediction more "
            f"likely (▲) and {opposing:,} made it less likely (▼)."
        )
    text = (
        f"{of}, {helping:,} made the prediction more likely (▲) and {opposing:,} made it less "
        "likely (▼)."
    )
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} most helpful facts have {share:.0%} of the total positive influence."
    return text


@dataclass(frozen=True)
class Agreement:
    """Agreement of two lists of training facts.

    `overlap` is, for each k, the share of the k most helpful facts that both lists have in common.
    `spearman` is the rank correlation of the influences over the facts of both lists. `facts` has
    one row per common fact: `position` and `other_position`, counted from the most helpful to the
    most opposing fact of each list, the influences, and `moved`, the difference of the positions.
    """

    overlap: dict[int, float]
    spearman: float | None
    common: int
    facts: pd.DataFrame


def agreement(facts: pd.DataFrame, other: pd.DataFrame) -> Agreement:
    """Compare the facts of two explanations of one prediction."""
    columns = ["position", "influence"]
    left, right = (
        found.sort_values("influence", ascending=False, kind="stable")
        .assign(position=np.arange(1, len(found) + 1))
        .drop_duplicates(TRAIN_KEY)
        for found in (facts, other)
    )
    right = right[[*TRAIN_KEY, *columns]]
    for key in TRAIN_KEY:
        left, right = left.astype({key: str}), right.astype({key: str})
    renamed = right.rename(columns={name: f"other_{name}" for name in columns})
    merged = left.merge(renamed, on=TRAIN_KEY, how="inner")
    merged["moved"] = merged["other_position"] - merged["position"]
    last = merged[["position", "other_position"]].max(axis=1)
    smaller = min(len(left), len(right))
    sizes = [size for size in OVERLAP_SIZES if size <= smaller] or ([smaller] if smaller else [])
    return Agreement(
        overlap={size: float((last <= size).sum() / size) for size in sizes},
        spearman=_spearman(merged["influence"], merged["other_influence"]),
        common=len(merged),
        facts=merged,
    )


def _spearman(values: pd.Series, others: pd.Series) -> float | None:
    """Return the rank correlation; None for fewer than three pairs or constant values."""
    if len(values) < 3:
        return None
    ranks, other_ranks = values.rank().to_numpy(), others.rank().to_numpy()
    if np.ptp(ranks) == 0 or np.ptp(other_ranks) == 0:
        return None
    return float(np.corrcoef(ranks, other_ranks)[0, 1])
