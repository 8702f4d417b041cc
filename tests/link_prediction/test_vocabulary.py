"""Names and ids, near matches, and the vocabulary's file."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.errors import DataError
from clew.link_prediction.vocabulary import Vocabulary, near_matches

NAMES = ["virus", "bacterium", "Ångström", "ärger", "🜁", "z"]


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs"])), unique=True), st.text(max_size=3)
)
def test_names_and_ids_are_inverse(names: list[str], other: str) -> None:
    vocabulary = Vocabulary.from_names("entity", names)
    assert list(vocabulary) == names
    assert [vocabulary.id(name) for name in names] == list(range(len(names)))
    assert [vocabulary.name(id) for id in range(len(names))] == names
    assert (other in vocabulary) == (other in names)
    found = vocabulary.find(pa.array([*names, "\0never"], pa.string()))
    assert found.tolist() == [*range(len(names)), -1]
    assert found.dtype == np.int32


def test_labels_stand_in_for_names() -> None:
    plain = Vocabulary.from_names("entity", ["Q30", "Q1", "Q2"])
    labelled = plain.with_labels(pa.array(["United States", None, ""]))
    assert [labelled.label(id) for id in range(3)] == ["United States", "Q1", "Q2"]
    assert [plain.label(id) for id in range(3)] == ["Q30", "Q1", "Q2"]
    assert plain.num_labels == 0


def test_unknown_name_proposes_what_was_meant() -> None:
    vocabulary = Vocabulary.from_names("entity", NAMES)
    with pytest.raises(DataError) as caught:
        vocabulary.id("bactrium")
    message = (
        "unknown entity 'bactrium'; it is not one of the 6 entities; did you mean 'bacterium'?"
    )
    assert str(caught.value) == message


def test_unknown_name_proposes_by_label_too() -> None:
    names = Vocabulary.from_names("entity", ["/m/09c7w0", "/m/0f8l9c"])
    vocabulary = names.with_labels(pa.array(["United States of America", "France"]))
    with pytest.raises(DataError, match=r"did you mean '/m/0f8l9c' \(France\)\?"):
        vocabulary.id("france")


def test_nothing_is_proposed_where_nothing_is_near() -> None:
    with pytest.raises(DataError, match=r"one of the 6 entities$"):
        Vocabulary.from_names("entity", NAMES).id("0000000000")
    assert near_matches("anything", pa.array([], pa.string())) == []
    assert near_matches("", pa.array(["a"])) == []
    assert near_matches("\udc80xyz", pa.array(["axyz", None, ""])) == ["axyz"]


words = st.text("abcdeABé ", min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(words, min_size=1, unique=True), words)
def test_near_matches_are_those_that_share_most_letters(names: list[str], query: str) -> None:
    near = sorted((-ratio(name, query), name) for name in names if ratio(name, query) >= 0.6)
    found = near_matches(query, pa.array(names))
    assert [-ratio(name, query) for name in found] == [score for score, _ in near[:3]]


def ratio(name: str, query: str) -> float:
    """Return twice the longest common subsequence, over the number of letters of both."""
    first, second = name.casefold(), query.casefold()
    row = [0] * (len(second) + 1)
    for letter in first:
        before = row
        row = [0]
        for place, other in enumerate(second):
            same = before[place] + 1
            row.append(same if letter == other else max(row[place], before[place + 1]))
    return 2 * row[-1] / (len(first) + len(second))


def test_near_matches_are_found_among_many_names() -> None:
    names = pa.array(
        [f"CHEBI:{i:06d}" for i in range(200_000)] + ["acetylsalicylic acid", "IBUPROFEN"]
    )
    assert near_matches("Acetylsalicilic Acid", names)[0] == "acetylsalicylic acid"
    assert near_matches("ibuprofin", names)[0] == "IBUPROFEN"
    assert near_matches("CHEBI123456", names)[0] == "CHEBI:123456"


def test_a_slice_of_an_array_is_searched_within_its_bounds() -> None:
    names = pa.array(["xxxx", "alpha", "beta", "alphx"]).slice(1, 2)
    assert near_matches("alpho", names) == ["alpha"]


def test_many_names_take_little_memory() -> None:
    names = pa.array([f"entity/{i:07d}" for i in range(100_000)])
    tracemalloc.start()
    vocabulary = Vocabulary("entity", names)
    assert vocabulary.id("entity/0077777") == 77_777
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 8 * len(names)
    assert names.nbytes < 25 * len(names)


@pytest.mark.parametrize("labels", [None, ["A", None, "C", None, None, None]])
@pytest.mark.parametrize("fields_may_be_ids", [True, False])
def test_write_and_read(tmp_path: Path, labels: list | None, fields_may_be_ids: bool) -> None:
    label_array = None if labels is None else pa.array(labels, pa.string())
    written = Vocabulary("relation", pa.array(NAMES), label_array, fields_may_be_ids)
    written.write(tmp_path / "relations.parquet")
    for again in (
        Vocabulary.read(tmp_path / "relations.parquet", "relation"),
        pickle.loads(pickle.dumps(written)),
    ):
        assert list(again) == NAMES
        assert (again.label_array is None) == (labels is None)
        assert [again.label(i) for i in range(6)] == [written.label(i) for i in range(6)]
        assert again.fields_may_be_ids == fields_may_be_ids


def test_unreadable_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "entities.parquet"
    with pytest.raises(DataError, match="no such file"):
        Vocabulary.read(path, "entity")
    path.write_text("no parquet")
    with pytest.raises(DataError, match="not a vocabulary of a run"):
        Vocabulary.read(path, "entity")
    pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(DataError, match="not a vocabulary of a run"):
        Vocabulary.read(path, "entity")
