"""Summarizes the training facts of an explained triple: paths, sentences, agreement.

The functions take a row of a report's tests and its facts, as `reports.read_facts` returns them.
They read no files and have no side effects.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from clew.errors import spaced
from clew.runs import influence_forms as forms
from clew.runs.influence_report import FoundPaths, PathRecord, TripleRecord

# `_id` columns hold the data set's own names.
TRIPLE_COLUMNS = ("head_id", "head", "relation_id", "relation", "tail_id", "tail")
NOT_SEARCHED = (
    "This explanation is without paths: the training graph was not searched for them. Explain the "
    "triple again to see them."
)
ONE_RUN = (
    "The scores come from one training run. With another random seed, some of the facts would be "
    "different."
)
TOP = 10
FACTS_TOLD = 4
"""Largest number of facts that are told and drawn between two entities of a path."""
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
        "puts the right answer {place}."
    ),
}
"""Sentences for each value of `influence.direction`; a rank belongs to one question or to both."""


@dataclass(frozen=True)
class FactPath:
    """A path of training facts from the head of a test triple to its tail."""

    ranks: tuple[int, ...]
    """Ranks of its facts in `Paths.facts`, in order from the head."""
    influence: float
    """Sum over these facts; NaN if one of them has no score."""
    steps: tuple[str, ...]
    """The strongest facts between each two entities, as text, and how many more there are."""
    told: tuple[int, ...]
    """Ranks of the facts that `steps` tells."""
    of: str = ""
    """How many facts `influence` sums, if those are not all facts of the path."""

    @property
    def sentence(self) -> str:
        return "; ".join(self.steps)


@dataclass(frozen=True)
class Paths:
    """The paths of a test triple, the most specific first."""

    facts: pd.DataFrame
    """Their facts, strongest first, in the form of a report's facts. `place` and `rank` both count
    from 1; the influence of a fact without a score is NaN."""
    found: tuple[FactPath, ...]
    searched: str
    """A sentence: how many paths there are, and what was searched."""

    def facts_of(self, paths: Sequence[FactPath], *, told: bool = False) -> pd.DataFrame:
        """Return facts of some paths without duplicates, strongest first: all, or those `told`."""
        ranks = {rank for path in paths for rank in (path.told if told else path.ranks)}
        return self.facts[self.facts["rank"].isin(ranks)]


def paths_of(searched: FoundPaths | None, runs: int = 0) -> Paths:
    """Return the paths in a report's test triple, for display; `runs` are those of an ensemble."""
    records = searched.paths if searched else ()
    facts = {step.train_index: step for path in records for step in itertools.chain(*path.steps)}
    order = sorted(facts.values(), key=lambda fact: (-abs(fact.influence or 0.0), fact.train_index))
    ranks = {fact.train_index: rank for rank, fact in enumerate(order, 1)}
    rows = [(*texts_of(fact.train), fact.influence, fact.train_index) for fact in order]
    frame = pd.DataFrame(rows, columns=[*TRIPLE_COLUMNS, "influence", forms.TRAIN_INDEX_COLUMN])
    frame = distinct(frame.astype({"influence": float}))
    said = [*map(" ".join, zip(frame["head"], frame["relation"], frame["tail"], strict=True))]
    if runs:
        counts = np.array([fact.runs_agreeing for fact in order], float)
        frame = with_agreement(frame.assign(**{forms.AGREEING_COLUMN: counts}), runs)
    places = np.arange(1, len(frame) + 1)
    found = tuple(_path_of(path, ranks, said) for path in records)
    sentence = searched.sentence if searched else NOT_SEARCHED
    return Paths(frame.assign(place=places, rank=places), found, sentence)


def _path_of(path: PathRecord, ranks: Mapping[int, int], facts: Sequence[str]) -> FactPath:
    every, texts, total = [*itertools.chain(*path.steps)], [], sum(path.counts)
    for step, count in zip(path.steps, path.counts, strict=True):
        told = [facts[ranks[fact.train_index] - 1] for fact in step[:FACTS_TOLD]]
        more = count - len(told)
        ending = f" and {more:,} more" if more else ""
        texts.append(spaced(" and ".join(told)) + ending)
    return FactPath(
        ranks=tuple(ranks[fact.train_index] for fact in every),
        influence=sum(math.nan if fact.influence is None else fact.influence for fact in every),
        steps=tuple(texts),
        told=tuple(ranks[fact.train_index] for step in path.steps for fact in step[:FACTS_TOLD]),
        of="" if total == len(every) else f" of {len(every):,} of {total:,} facts",
    )


def distinct(triples: pd.DataFrame, known: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return triples with its id behind each label that different terms share.

    `known` has labels of other terms that are shown with the triples, by their ids.
    """
    ends = ("head", "relation", "tail")
    keys, texts = (triples[[end + of for end in ends]].astype(str) for of in ("_id", ""))
    labels = dict(known or {})
    labels |= dict(zip(keys.to_numpy().ravel(), texts.to_numpy().ravel(), strict=True))
    counts = Counter(labels.values())
    said = {key: f"{label} ({key})" for key, label in labels.items() if counts[label] > 1}
    new = {end: keys[f"{end}_id"].map(said).fillna(texts[end]) for end in ends} if said else {}
    return triples.assign(**new)


def with_agreement(facts: pd.DataFrame, runs: int) -> pd.DataFrame:
    """Return the facts of an ensemble with `agreement`, such as `4 of 5`, and `disputed`."""
    if not runs or forms.AGREEING_COLUMN not in facts:
        return facts
    agreeing = facts[forms.AGREEING_COLUMN].to_numpy(float)
    said = [f"{number:.0f} of {runs}" for number in agreeing]
    return facts.assign(agreement=said, disputed=agreeing < runs)


def agreement_of(facts: pd.DataFrame, runs: int) -> list[str]:
    """Return a sentence on how many of the facts the runs of an ensemble dispute, if it is one."""
    disputed = int(facts[forms.DISPUTED_COLUMN].sum()) if forms.DISPUTED_COLUMN in facts else 0
    return forms.agreement_sentence(runs, len(facts), disputed)


def texts_of(triple: TripleRecord) -> tuple[str, ...]:
    """Return a triple's texts in the order of `TRIPLE_COLUMNS`."""
    terms = (triple.head, triple.relation, triple.tail)
    return tuple(text for term in terms for text in (term.id, term.label))


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


def evidence(test: pd.Series, facts: pd.DataFrame, paths: Paths) -> str:
    """Return sentences about how the strongest facts relate to head and tail of a test triple."""
    head, relation, tail = (spaced(test[key]) for key in ("head", "relation", "tail"))
    top = facts[facts["influence"] > 0].head(TOP)
    if top.empty:
        count, of = len(facts), scored(test, facts)
        more = f" (of {of:,} scored)" if of > count else ""
        return f"None of the {count:,} facts in this report{more} made it more likely."
    strongest = f"the {len(top)} most helpful facts" if len(top) > 1 else "the most helpful fact"
    at_head, at_tail = (
        int(((top["head_id"] == test[end]) | (top["tail_id"] == test[end])).sum())
        for end in ("head_id", "tail_id")
    )
    same = int((top["relation_id"] == test["relation_id"]).sum())
    if at_head and at_tail:
        both = f" and {at_tail} {tail}" * bool(test["head_id"] != test["tail_id"])
        text = f"Of {strongest}, {at_head} mention{'s' * (at_head == 1)} {head}{both}."
    else:
        absent = [name for name, count in ((head, at_head), (tail, at_tail)) if not count]
        missing = " or ".join(dict.fromkeys(absent))
        text = f"None of {strongest} mentions {missing}"
        if len(top) == 1:
            text = f"The most helpful fact does not mention {missing}"
        if 2 * same > len(top):
            text += f"; {same} of them {'has' if same == 1 else 'have'} its relation, {relation}"
        text += "."
    if (facts[TRAIN_KEY].astype(str) == test[TRAIN_KEY]).all(axis=1).any():
        text += " The triple is itself a training fact."
    leaking = facts[facts["counterpart"] != ""] if "counterpart" in facts else facts[:0]
    for _, fact in leaking.head(1).iterrows():
        told = spaced(" ".join(str(fact[key]) for key in ("head", "relation", "tail")))
        text += f" Training contains its {fact['counterpart']}, {told}: it could be looked up."
    if paths.found:
        return f"{text} The most specific path from {head} to {tail}: {paths.found[0].sentence}."
    return f"{text} {paths.searched}"


def scored(test: pd.Series, facts: pd.DataFrame) -> int:
    """Return how many facts were scored; a report can contain only the strongest of them."""
    candidates = test["candidates"]
    return max(len(facts), 0 if pd.isna(candidates) else int(candidates))


def rank_text(rank: float) -> str:
    """Return a rank, or a mean of ranks, as a number."""
    return f"{rank:,.0f}" if rank == int(rank) else f"{rank:,.1f}"


def averaged(settings: Mapping[str, Any], runs: int) -> str:
    """Return what the ranks of an explanation are means over; empty if they are no means."""
    over = ["both ends"] * (settings.get("direction") == "both") + [f"{runs} runs"] * (runs > 1)
    return f" on average over {' and '.join(over)}" if over else ""


def place_text(rank: float, over: str = "") -> str:
    """Return a rank as words; of a mean, `over` is what `averaged` returns."""
    if not math.isfinite(rank):
        return "at an unknown rank"
    if rank == 1:
        return "first"
    tied = " (tied)" * (rank != int(rank) and not over)
    return f"at rank {rank_text(rank)}{tied}{over}"


def answer(test: pd.Series, settings: Mapping[str, Any], runs: int = 0) -> Markup:
    """Return the question of an explanation and the model's answer, as HTML.

    `runs` is the number of runs of an ensemble. The oldest reports have no direction in their
    settings and rank the tail.
    """
    said = _ANSWERS.get(str(settings.get("direction")), _ANSWERS["tail"])
    ends = {key: spaced(test[key]) for key in ("head", "relation", "tail")}
    rank = float(test["rank"])
    place = place_text(rank, averaged(settings, runs))
    if math.isfinite(rank):  # a list of all answers, as on the page Ask, shows a larger rank
        place += ", not counting other answers known in any split"
    shown = said.format(**ends, place=place)
    untrained = test.get("untrained")
    return shown + (f" {untrained_sentence(untrained)}" if untrained else "")


def untrained_sentence(labels: Sequence[str]) -> str:
    return f"No training fact mentions {' or '.join(map(spaced, dict.fromkeys(labels)))}."


def summary(facts: pd.DataFrame, scored: int, train_size: int | None = None) -> str:
    """Return a sentence about how many facts helped, and how concentrated their influence is.

    The report has these `facts` of the `scored` ones; `train_size` is None if it is not known.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return f"Of {scored:,} scored training facts, the report contains none."
    of = f"Of {scored:,} training facts"
    if train_size is not None and scored < train_size:
        of += f" (selected by the filter from {train_size:,})"
    said = f"{helping:,} made the prediction more likely (▲)"
    said += f" and {opposing:,} made it less likely (▼)."
    if scored > len(values):
        return f"{of}, the report contains only the strongest: {said}"
    text = f"{of}, {said}"
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} most helpful facts have {share:.0%} of the total positive influence."
    return text


@dataclass(frozen=True)
class Agreement:
    """Agreement of two lists of training facts.

    `overlap` is, for each k up to the number of facts that helped in both lists, the share of the k
    most helpful ones that both have in common. `spearman` is the rank correlation of the influences
    over the facts of both. `facts` has one row per common fact: `position` and `other_position`
    among these facts, the most helpful first, the influences, and `moved`, the difference.
    """

    overlap: dict[int, float]
    spearman: float | None
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
    renamed = right.rename(columns={name: f"other_{name}" for name in columns})
    texts = dict.fromkeys(TRAIN_KEY, str)
    merged = left.astype(texts).merge(renamed.astype(texts), on=TRAIN_KEY)
    last = merged[["position", "other_position"]].max(axis=1)
    for name in ("position", "other_position"):  # a list can lack those in its middle
        merged[name] = merged[name].rank().astype(int)
    merged["moved"] = merged["other_position"] - merged["position"]
    smaller = min(int((found["influence"] > 0).sum()) for found in (left, right))
    sizes = [size for size in OVERLAP_SIZES if size <= smaller] or ([smaller] if smaller else [])
    both = merged[["influence", "other_influence"]]
    ranked = both.corr("spearman", min_periods=3).to_numpy()[0, 1]
    return Agreement(
        overlap={size: float((last <= size).sum() / size) for size in sizes},
        spearman=None if np.isnan(ranked) else float(ranked),
        facts=merged,
    )
