"""Paths of training facts from a test triple's head to its tail, and what they are evidence of.

Pure functions over one test triple and its facts, as `ui.data.influence.facts_of` returns them.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

MAX_STEPS = 3
MAX_FACTS = 2000
"""So many of the strongest helping facts are searched."""
MAX_PATHS = 50
TOP = 10


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

    Between two entities only the strongest fact counts. At most `MAX_PATHS`, no entity twice.
    """
    columns = ["head_id", "tail_id", "head", "relation", "tail", "rank", "influence"]
    helping = facts.loc[facts["influence"] > 0, columns].head(MAX_FACTS).to_dict("records")
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
        tuple(fact_words(fact) for fact in facts),
    )


def fact_words(fact: Mapping[Hashable, Any] | pd.Series) -> str:
    """Return a triple as words: head, relation, tail."""
    return " ".join(str(fact[key]).replace("_", " ") for key in ("head", "relation", "tail"))


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
    itself = _itself(test, facts)
    other = "other " if itself else ""
    if itself:  # it explains nothing, so no path is told that consists of it
        text += " The triple is itself a training fact."
    for path in paths:
        if path.ranks not in itself:
            return f"{text} The best {other}path from {head} to {tail}: {path.sentence}."
    steps = _number(MAX_STEPS)
    return f"{text} No {other}path of up to {steps} helping facts joins {head} and {tail}."


def _itself(test: pd.Series, facts: pd.DataFrame) -> set[tuple[int, ...]]:
    """Return the ranks, as of a path of one fact, under which a test triple is a fact itself."""
    same = pd.Series(True, index=facts.index)
    for column in ("head_id", "relation_id", "tail_id"):
        same &= facts[column] == test[column]
    return {(int(rank),) for rank in facts.loc[same, "rank"]}


def _number(count: int) -> str:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return words[count - 1] if count <= len(words) else str(count)
