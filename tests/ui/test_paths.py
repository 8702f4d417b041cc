"""Paths of facts between head and tail of a test triple: against a plain search, and as text."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from clew.runs.reading import facts as reading
from clew.ui.components.explanations import facts_of, report_head, report_of_run
from clew.ui.components.explanations import strongest as strongest_of
from tests.recorded import Recorded

Triple = tuple[str, str, str]
DRUG, PAIN, CHANNEL, OTHER = "Gabapentin", "neuralgia", "calcium channel", "Pregabalin"


def explained(
    head: str = DRUG, tail: str = PAIN, *, scored: int = 500, rank: float = 1.0
) -> pd.Series:
    return pd.Series(
        {"head_id": head, "head": head, "relation_id": "treats", "relation": "treats"}
        | {"tail_id": tail, "tail": tail, "candidates": scored, "rank": rank}
    )


def facts(*triples: Triple, influence: list[float] | None = None) -> pd.DataFrame:
    """Return facts in the form of a report; the given facts are the strongest first."""
    values = influence or [float(len(triples) - number) for number in range(len(triples))]
    columns = ("head", "relation", "tail")
    frame = pd.DataFrame(triples, columns=list(columns))
    frame = frame.assign(**{f"{column}_id": frame[column] for column in columns})
    return reading.ranked(frame.assign(influence=values))


def plain_paths(test: pd.Series, found: pd.DataFrame) -> list[tuple[float, tuple[int, ...]]]:
    """Try every order of up to three facts, and return weakest influence and ranks of paths."""
    names = ["head_id", "relation_id", "tail_id"]
    itself = (found[names].astype(str) == test[names].astype(str)).all(axis="columns")
    helping = found[(found["influence"] > 0) & ~itself]
    strongest: dict[frozenset[str], pd.Series] = {}
    for _, fact in helping.iterrows():
        pair = frozenset((fact["head_id"], fact["tail_id"]))
        if len(pair) == 2:
            strongest.setdefault(pair, fact)
    result = []
    for length in (1, 2, 3):
        for chain in permutations(strongest.items(), length):
            here, seen = test["head_id"], {test["head_id"]}
            for pair, _ in chain:
                onward = pair - {here}
                if here not in pair or onward <= seen:
                    break
                (here,) = onward
                seen.add(here)
                if here == test["tail_id"] and pair is not chain[-1][0]:
                    break
            else:
                if here == test["tail_id"]:
                    weakest = min(float(fact["influence"]) for _, fact in chain)
                    result.append((weakest, tuple(int(fact["rank"]) for _, fact in chain)))
    return sorted(result, key=lambda path: (-path[0], len(path[1]), path[1]))


@pytest.mark.parametrize("seed", range(8))
def test_paths_are_those_of_a_plain_search(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [DRUG, PAIN, *"abcd"]
    triples = [(*(names[i] for i in draw.integers(0, len(names), 2)), "r") for _ in range(12)]
    influence = sorted(map(float, draw.normal(0.5, 1, len(triples))), reverse=True)
    given = facts(*((h, r, t) for h, t, r in triples), influence=influence)
    found = reading.find_paths(explained(), given)
    expected = plain_paths(explained(), given)
    assert [(path.weakest, path.ranks) for path in found] == expected[: reading.MAX_PATHS]


def test_the_triple_itself_is_no_path_and_hides_none() -> None:
    given = facts((DRUG, "treats", PAIN), (PAIN, "is_eased_by", DRUG), (DRUG, "inhibits", CHANNEL))
    (other,) = reading.find_paths(explained(), given)
    assert other.sentence == "neuralgia is eased by Gabapentin"


def test_a_path_is_told_in_words_from_the_head_on() -> None:
    given = facts(
        (OTHER, "treats", PAIN),
        (OTHER, "decreases_activity_of", CHANNEL),
        (DRUG, "decreases_activity_of", CHANNEL),
        (CHANNEL, "causes", PAIN),
    )
    through, direct = reading.find_paths(explained(), given)
    assert (through.ranks, direct.ranks) == ((3, 2, 1), (3, 4)), "the better weakest fact first"
    assert through.sentence == (
        "Gabapentin decreases activity of calcium channel; Pregabalin decreases activity of "
        "calcium channel; Pregabalin treats neuralgia"
    )
    shown = reading.facts_of_paths(given, [through, direct])
    assert list(shown["rank"]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("triples", "sentence"),
    [
        (
            [("a", "treats", PAIN), ("b", "treats", PAIN), ("a", "is", "b")],
            "None of the three strongest facts mentions Gabapentin; two of them have its relation, "
            "treats. No path of up to three of the 3 helping facts in this report",
        ),
        (
            [("a", "causes", "b"), ("b", "causes", "c")],
            "None of the two strongest facts mentions Gabapentin or neuralgia. No path",
        ),
        (
            [(DRUG, "inhibits", CHANNEL), (CHANNEL, "causes", PAIN)],
            "Of the two strongest facts, 1 mentions Gabapentin and 1 neuralgia. The best path from "
            "Gabapentin to neuralgia: Gabapentin inhibits calcium channel; calcium channel causes "
            "neuralgia.",
        ),
        (
            [(DRUG, "treats", PAIN), (DRUG, "inhibits", CHANNEL), (CHANNEL, "causes", PAIN)],
            "Of the three strongest facts, 2 mention Gabapentin and 2 neuralgia. The triple is "
            "itself a training fact. The best other path from Gabapentin to neuralgia: Gabapentin "
            "inhibits calcium channel; calcium channel causes neuralgia.",
        ),
        (
            [(DRUG, "treats", PAIN), (DRUG, "inhibits", CHANNEL)],
            "Of the two strongest facts, 2 mention Gabapentin and 1 neuralgia. The triple is "
            "itself a training fact. No other path of up to three of the 1 helping facts in this ",
        ),
    ],
)
def test_evidence(triples: list[Triple], sentence: str) -> None:
    given = facts(*triples)
    found = reading.evidence(explained(), given, reading.find_paths(explained(), given))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("rank", "end"),
    [
        (1.0, "neuralgia</b> first, not counting other known answers."),
        (2.5, "neuralgia</b> at rank 2.5 (tied), not counting other known answers."),
        (float("nan"), "neuralgia</b> at an unknown rank."),
    ],
)
def test_a_rank_says_what_it_leaves_out(rank: float, end: str) -> None:
    assert reading.answer(explained(rank=rank), {"direction": "tail"}).endswith(end)


def test_without_a_helping_fact_there_is_no_evidence() -> None:
    given = facts((DRUG, "causes", PAIN), influence=[-1.0])
    assert reading.find_paths(explained(), given) == []
    assert "of 500 scored" in reading.evidence(explained(), given, [])


@pytest.mark.parametrize(("helping", "stored", "scored"), [(3, 4, 500), (2500, 2501, 9000)])
def test_without_a_path_it_says_what_was_searched(helping: int, stored: int, scored: int) -> None:
    given = facts(
        *((f"a{number}", "treats", "b") for number in range(stored)),
        influence=[float(helping - number) for number in range(stored)],
    )
    said = reading.no_path(explained(scored=scored), given)
    assert f"{helping:,} helping facts" in said
    assert "not searched" in said
    assert (f"{reading.MAX_FACTS:,} strongest" in said) == (helping > reading.MAX_FACTS)


def test_without_a_path_among_all_facts_nothing_else_was_left_out() -> None:
    given = facts(("a", "treats", "b"), ("b", "treats", "c"))
    assert "not searched" not in reading.no_path(explained(scored=2), given)


def test_opponents_are_ranked_from_the_strongest() -> None:
    given = facts(
        *((name, "treats", "b") for name in "vwxyz"), influence=[1.0, -3.0, 2.0, -1.0, 0.0]
    )
    assert list(given["head"]) == ["x", "v", "z", "w", "y"]
    assert list(given["rank"]) == [1, 2, 1, 1, 2]
    assert list(given["place"]) == [1, 2, 3, 4, 5]
    strongest = strongest_of(given, "influence", 4)
    assert list(strongest["head"]) == ["x", "v", "w", "y"]


@pytest.mark.parametrize("rank", [1.0, 169.0])
def test_what_the_strongest_facts_have_in_common_is_told_at_any_rank(rank: float) -> None:
    given = facts(("a", "treats", PAIN), ("b", "treats", PAIN))
    told = reading.evidence(explained(rank=rank), given, [])
    assert told == reading.evidence(explained(rank=1.0), given, [])
    assert "the model" not in told


def test_a_triple_with_itself_has_no_path() -> None:
    assert (
        reading.find_paths(explained(DRUG, DRUG), facts((DRUG, "is", "a"), ("a", "is", DRUG))) == []
    )


def test_paths_of_a_recorded_explanation(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded.uri)
    files = report_of_run(recorded.runs["trace hostile"])
    for place, test in report_head(files).tests.iterrows():
        found = facts_of(files, int(str(place)))
        few = found.head(40).astype({"head_id": str, "tail_id": str})
        assert [
            (path.weakest, path.ranks) for path in reading.find_paths(test, few)
        ] == plain_paths(test, few)[: reading.MAX_PATHS]
