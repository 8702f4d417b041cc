"""What the facts of an explained triple say: paths between its ends, sentences, agreement.

Pure functions over a row of a report's tests and its facts, as `reports.read_facts` returns them.
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
"""So many of the strongest helping facts are searched."""
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
        "Asked for either end of <b>{head}</b> {relation} <b>{tail}</b>, on average the model puts "
        "the right one {place}."
    ),
}
"""By what was asked, `influence.direction`; a rank belongs to one question, or to both."""


@dataclass(frozen=True)
class FactPath:
    """Facts that lead from the head of a test triple to its tail, whichever way each points."""

    ranks: tuple[int, ...]
    """Ranks of the facts, from the head on."""
    weakest: float
    """Influence of its weakest fact: no more can come along the path than that."""
    steps: tuple[str, ...]
    """The facts in words."""

    @property
    def sentence(self) -> str:
        """The path in one sentence."""
        return "; ".join(self.steps)


def find_paths(test: pd.Series, facts: pd.DataFrame) -> list[FactPath]:
    """Return the paths of at most `MAX_STEPS` helping facts, by falling weakest influence.

    Between two entities only the strongest fact counts. At most `MAX_PATHS`, no entity twice. The
    triple itself, where it is a fact, explains nothing: no path has it.
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
    """Yield the facts that lead on from the last of the passed entities to the end."""
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


def facts_of_paths(facts: pd.DataFrame, paths: Sequence[FactPath]) -> pd.DataFrame:
    """Return the facts of some paths, each once, strongest first."""
    ranks = {rank for path in paths for rank in path.ranks}
    return facts[facts["rank"].isin(ranks)]


def evidence(test: pd.Series, facts: pd.DataFrame, paths: Sequence[FactPath]) -> str:
    """Return in words what the strongest facts say about both ends, and whether a path joins them.

    Args:
        test: A row of a report's tests.
        facts: Its training facts, most helpful first.
        paths: What `find_paths` found.
    """
    head, relation, tail = (str(test[key]) for key in ("head", "relation", "tail"))
    top = facts[facts["influence"] > 0].head(TOP)
    if top.empty:
        return "No training fact made it more likely."
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
            text += f": the model answers with what is common for {relation}"
        text += "."
    other = ""
    if _is_itself(test, facts).any():
        text, other = f"{text} The triple is itself a training fact.", "other "
    if paths:
        return f"{text} The best {other}path from {head} to {tail}: {paths[0].sentence}."
    steps = _number(MAX_STEPS)
    return f"{text} No {other}path of up to {steps} helping facts joins {head} and {tail}."


def _is_itself(test: pd.Series, facts: pd.DataFrame) -> pd.Series:
    """Return for each fact whether it is the test triple itself."""
    same = pd.Series(True, index=facts.index)
    for column in ("head_id", "relation_id", "tail_id"):
        same &= facts[column] == test[column]
    return same


def _number(count: int) -> str:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return words[count - 1] if count <= len(words) else str(count)


def scored(test: pd.Series, facts: pd.DataFrame) -> int:
    """Return how many facts were scored; a report may hold the strongest of them alone."""
    candidates = test["candidates"]
    return max(len(facts), 0 if pd.isna(candidates) else int(candidates))


def place_text(rank: float) -> str:
    """Return a rank in words."""
    if not math.isfinite(rank):
        return "at a rank that this file does not say"
    if rank == 1:
        return "first"
    shown = f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f} (tied)"
    return f"at rank {shown}"


def answer(test: pd.Series, settings: Mapping[str, Any]) -> Markup:
    """Return the question that an explanation is of, and the model's answer, as HTML.

    Args:
        test: A row of the report's tests.
        settings: The report's; the oldest reports name no direction, and rank the tail.
    """
    said = _ANSWERS.get(str(settings.get("direction")), _ANSWERS["tail"])
    ends = {key: test[key] for key in ("head", "relation", "tail")}
    rank = float(test["rank"])
    place = place_text(rank)
    if math.isfinite(rank):  # in a list of all answers, such as that of the page Ask, it is lower
        place += ", other known answers left out"
    return said.format(**ends, place=place)


def summary(facts: pd.DataFrame, scored: int, train_size: int | None = None) -> str:
    """Return in a sentence how many facts helped, and how concentrated their help is.

    Args:
        facts: The facts that the report holds.
        scored: How many facts were scored for it.
        train_size: How many facts the model was trained on, if the report says so.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return "No training fact was scored."
    of = f"Of {scored:,} training facts"
    if train_size is not None and scored < train_size:
        of += f" that the filter left of {train_size:,}"
    if scored > len(values):
        return (
            f"{of}, the report holds the strongest: {helping:,} that made it more likely (▲) and "
            f"{opposing:,} that made it less likely (▼)."
        )
    text = f"{of}, {helping:,} made it more likely (▲) and {opposing:,} less likely (▼)."
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} strongest carry {share:.0%} of all help."
    return text


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
    """Compare the facts of two explanations of one prediction."""
    columns = ["rank", "influence"]
    left = facts.drop_duplicates(TRAIN_KEY)
    right = other.drop_duplicates(TRAIN_KEY)[[*TRAIN_KEY, *columns]]
    for key in TRAIN_KEY:
        left, right = left.astype({key: str}), right.astype({key: str})
    renamed = right.rename(columns={name: f"other_{name}" for name in columns})
    merged = left.merge(renamed, on=TRAIN_KEY, how="inner")
    merged["moved"] = merged["other_rank"] - merged["rank"]
    last_rank = merged[["rank", "other_rank"]].max(axis=1)
    smaller = min(len(left), len(right))
    sizes = [size for size in OVERLAP_SIZES if size <= smaller] or ([smaller] if smaller else [])
    return Agreement(
        overlap={size: float((last_rank <= size).sum() / size) for size in sizes},
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
