"""Paths of facts between head and tail of a test triple: as a table, and as text."""

import numpy as np
import pandas as pd
import pytest

from clew.runs.influence_report import FoundPaths, PathRecord, PathStep, Term, TripleRecord
from clew.runs.reading import facts as reading
from clew.ui.components.explanations import facts_of, paths_of, report_head, report_of_run
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


def record(*triples: Triple, influence: float | None = 1.0) -> PathRecord:
    """Return a path of one fact for each step."""
    steps = (
        (PathStep(TripleRecord(*(Term(text, text) for text in triple)), number, influence),)
        for number, triple in enumerate(triples)
    )
    return PathRecord(1.0, tuple(steps), (1,) * len(triples))


def found_paths(*paths: PathRecord) -> reading.Paths:
    return reading.paths_of(FoundPaths(4, 20, paths))


THROUGH = record((DRUG, "decreases_activity_of", CHANNEL), (CHANNEL, "causes", PAIN))


def test_a_path_is_told_in_words_from_the_head_on() -> None:
    paths = found_paths(THROUGH)
    (path,) = paths.found
    assert path.sentence == (
        "Gabapentin decreases activity of calcium channel; calcium channel causes neuralgia"
    )
    assert path.influence == 2.0
    assert list(paths.facts_of([path])["relation"]) == ["decreases_activity_of", "causes"]


def test_facts_that_several_paths_share_are_listed_once_the_strongest_first() -> None:
    def step(number: int, influence: float | None) -> PathStep:
        triple = TripleRecord(Term(f"e{number}", ""), Term("r", ""), Term("x", ""))
        return PathStep(triple, number, influence)

    weak, strong, unknown = step(0, 0.5), step(1, -2.0), step(2, None)
    paths = found_paths(
        PathRecord(1.0, ((weak,), (strong,)), (1, 1)),
        PathRecord(2.0, ((weak, unknown), (strong,)), (2, 1)),
    )
    assert list(paths.facts["head_id"]) == ["e1", "e0", "e2"]
    assert [path.ranks for path in paths.found] == [(2, 1), (2, 3, 1)]
    assert paths.found[0].influence == -1.5
    assert np.isnan(paths.found[1].influence)
    assert np.isnan(paths.facts["influence"].iloc[2])


def test_what_was_searched_is_said() -> None:
    assert found_paths().searched != reading.paths_of(None).searched
    assert reading.paths_of(None).facts.empty
    assert found_paths().found == ()


def test_evidence_of_an_entity_and_itself_names_it_once() -> None:
    of_loop = explained(DRUG, DRUG)
    own = facts((DRUG, "treats", PAIN), ("a", "treats", "b"), ("c", "treats", "d"))
    assert reading.evidence(of_loop, own, found_paths()).startswith(
        "Of the 3 most helpful facts, 1 mentions Gabapentin. "
    )
    assert reading.evidence(of_loop, own[1:], found_paths()).startswith(
        "None of the 2 most helpful facts mentions Gabapentin; "
    )


@pytest.mark.parametrize(
    ("triples", "sentence"),
    [
        (
            [("a", "treats", PAIN), ("b", "treats", PAIN), ("a", "is", "b")],
            "None of the 3 most helpful facts mentions Gabapentin; 2 of them have its relation, "
            "treats. No path of up to 4 training facts",
        ),
        (
            [("a", "causes", "b"), ("b", "causes", "c")],
            "None of the 2 most helpful facts mentions Gabapentin or neuralgia. No path of up to 4",
        ),
        (
            [(DRUG, "inhibits", CHANNEL), (CHANNEL, "causes", PAIN)],
            "Of the 2 most helpful facts, 1 mentions Gabapentin and 1 neuralgia. The most specific "
            "path from Gabapentin to neuralgia: Gabapentin inhibits calcium channel; calcium "
            "channel causes neuralgia.",
        ),
        (
            [(DRUG, "treats", PAIN), (DRUG, "inhibits", CHANNEL), (CHANNEL, "causes", PAIN)],
            "Of the 3 most helpful facts, 2 mention Gabapentin and 2 neuralgia. The triple is "
            "itself a training fact. The most specific path from Gabapentin to neuralgia: "
            "Gabapentin inhibits calcium channel; calcium channel causes neuralgia.",
        ),
        (
            [(DRUG, "treats", PAIN), (DRUG, "inhibits", CHANNEL)],
            "Of the 2 most helpful facts, 2 mention Gabapentin and 1 neuralgia. The triple is "
            "itself a training fact. No path of up to 4 training facts",
        ),
    ],
)
def test_evidence(triples: list[Triple], sentence: str) -> None:
    given = facts(*triples)
    through = {(DRUG, "inhibits", CHANNEL), (CHANNEL, "causes", PAIN)} <= {*triples}
    paths = [record(*triples[-2:])] if through else []
    found = reading.evidence(explained(), given, found_paths(*paths))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("rank", "end"),
    [
        (1.0, "neuralgia</b> first, not counting other answers known in any split."),
        (2.5, "neuralgia</b> at rank 2.5 (tied), not counting other answers known in any split."),
        (float("nan"), "neuralgia</b> at an unknown rank."),
    ],
)
def test_a_rank_says_what_it_leaves_out(rank: float, end: str) -> None:
    assert reading.answer(explained(rank=rank), {"direction": "tail"}).endswith(end)


@pytest.mark.parametrize(
    ("rank", "direction", "runs", "place"),
    [
        (1234.5, "tail", 0, "at rank 1,234.5 (tied)"),
        (2.0, "head", 0, "at rank 2"),
        (1.5, "both", 0, "at rank 1.5 on average over both ends"),
        (2.0, "both", 0, "at rank 2 on average over both ends"),
        (2.5, "tail", 3, "at rank 2.5 on average over 3 runs"),
        (7 / 3, "both", 3, "at rank 2.3 on average over both ends and 3 runs"),
        (1.0, "both", 3, "first"),
    ],
)
def test_a_mean_of_ranks_is_called_one(rank: float, direction: str, runs: int, place: str) -> None:
    settings = {"direction": direction}
    assert reading.place_text(rank, reading.averaged(settings, runs)) == place
    assert f" {place}, " in reading.answer(explained(rank=rank), settings, runs)


def test_without_a_helping_fact_there_is_no_evidence() -> None:
    given = facts((DRUG, "causes", PAIN), influence=[-1.0])
    assert "of 500 scored" in reading.evidence(explained(), given, found_paths())


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
    told = reading.evidence(explained(rank=rank), given, found_paths())
    assert told == reading.evidence(explained(rank=1.0), given, found_paths())
    assert "the model" not in told


def test_paths_of_a_recorded_explanation(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path begins at the head and ends at the tail; its facts have the report's scores."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded.uri)
    files = report_of_run(recorded.runs["trace hostile"])
    num_paths = 0
    for place, test in report_head(files).tests.iterrows():
        index = int(str(place))
        paths, every = paths_of(files, index), facts_of(files, index)
        keys = [tuple(map(str, key)) for key in every[reading.TRAIN_KEY].to_numpy()]
        listed = dict(zip(keys, every["influence"], strict=True))
        rows = paths.facts.set_index("rank")
        for _, fact in rows.iterrows():
            key = tuple(str(fact[column]) for column in reading.TRAIN_KEY)
            assert fact["influence"] == pytest.approx(listed[key], rel=1e-5)
            assert key != tuple(str(test[column]) for column in reading.TRAIN_KEY)
        for path in paths.found:
            num_paths += 1
            first, last = rows.loc[path.ranks[0]], rows.loc[path.ranks[-1]]
            assert test["head_id"] in (first["head_id"], first["tail_id"])
            assert test["tail_id"] in (last["head_id"], last["tail_id"])
            assert 1 <= len(path.steps) <= 4
    assert num_paths > 0
