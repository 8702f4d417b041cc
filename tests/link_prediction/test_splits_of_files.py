"""Splits that files give, by their names, their folders' names or a column, are kept."""

from pathlib import Path

import pytest

from clew.config.data import ImportSettings
from clew.errors import DataError
from clew.link_prediction.imports import Imported, import_graph

FACTS = [(f"e{i % 7}", f"r{i % 3}", f"e{7 + i % 11}") for i in range(24)]
SHARES = {"train": FACTS[:17], "valid": FACTS[17:20], "test": FACTS[20:]}


def table(rows) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def read(place: Path, content: dict[str, list[tuple[str, ...]]], *roots: str) -> Imported:
    for name, rows in content.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(table(rows))
    return import_graph("g", [place / root for root in roots or [""]], ImportSettings())


def sizes(found: Imported) -> tuple[int, int, int]:
    return len(found.graph.train), len(found.graph.valid), len(found.graph.test)


@pytest.mark.parametrize(
    "names",
    [
        "train.txt valid.txt test.txt",
        "train.txt eval.txt holdout.txt",
        "training.tsv validation.tsv testing.tsv",
        "kg_train.tsv kg_dev.tsv kg_held_out.tsv",
        "trainSet.tsv evaluationSet.tsv heldOutSet.tsv",
        "train/part-0.tsv valid/part-0.tsv test/part-0.tsv",
        "a/training/part-0.tsv a/val/part-0.tsv a/test/deep/part-0.tsv",
    ],
)
def test_names_of_files_and_folders_give_splits(tmp_path: Path, names: str) -> None:
    content = dict(zip(names.split(), SHARES.values(), strict=True))
    found = read(tmp_path / "in", content)
    assert sizes(found) == (17, 3, 4)
    for name, split in zip(names.split(), SHARES, strict=True):
        assert split in found.read[str(tmp_path / "in" / name)].split(": ")[-1]


def test_training_with_validation_is_training(tmp_path: Path) -> None:
    content = {"train_valid.txt": FACTS[:20], "test.txt": FACTS[20:]}
    assert sizes(read(tmp_path / "in", content)) == (20, 0, 4)


@pytest.mark.parametrize("name", ["test-dev.txt", "valid_test.txt", "dev_test.txt"])
def test_what_is_held_out_for_both_is_not_trained_on(tmp_path: Path, name: str) -> None:
    content = {"train.txt": FACTS[:20], name: FACTS[20:]}
    assert sizes(read(tmp_path / "in", content)) == (20, 0, 4)


def test_folders_that_are_given_one_by_one_give_splits(tmp_path: Path) -> None:
    content = {f"{split}/part-0.tsv": rows for split, rows in SHARES.items()}
    assert sizes(read(tmp_path / "test_data", content, *SHARES)) == (17, 3, 4)


@pytest.mark.parametrize("others", [["other.txt"], []])
def test_training_is_not_split_anew_in_silence(tmp_path: Path, others: list[str]) -> None:
    rows = {"train.txt": SHARES["train"]} | dict.fromkeys(others, SHARES["test"])
    found = read(tmp_path / "in", rows)
    assert sum(sizes(found)) == 17 + 4 * len(others)
    assert all(name in found.notes["split"] for name in rows)


def test_facts_without_a_split_beside_others_are_named(tmp_path: Path) -> None:
    content = {f"{split}.txt": rows for split, rows in SHARES.items()}
    found = read(tmp_path / "in", {**content, "more.txt": [("n0", "r0", "n1")]})
    assert sizes(found) == (18, 3, 4)
    assert "more.txt" in found.notes["split"]


@pytest.mark.parametrize(
    "content",
    [
        {"gene_edges.tsv": FACTS[:14], "lab_test_edges.tsv": FACTS[14:]},
        {"test.txt": FACTS},
        {"valid.txt": FACTS},
        {
            "test.txt": FACTS[:14],
            "negative_train.txt": [("n0", "r0", "n1")],
            "valid.txt": FACTS[14:],
        },
    ],
)
def test_a_name_gives_no_split_without_one_for_training(
    tmp_path: Path, content: dict[str, list[tuple[str, ...]]]
) -> None:
    found = read(tmp_path / "in", content)
    assert sizes(found) == (22, 1, 1)
    assert "split" in found.notes


WORDS = [("training", "validation", "testing"), ("TRAIN", "dev", "held-out"), ("train", "eval", "Test set")]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("words", WORDS)
def test_words_of_a_column_give_splits(tmp_path: Path, words: tuple[str, str, str]) -> None:
    rows = [(*row, w) for w, part in zip(words, SHARES.values(), strict=True) for row in part]
    found = read(tmp_path / "in", {"a_test.tsv": [("head", "relation", "tail", "split"), *rows]})
    assert sizes(found) == (17, 3, 4)


@pytest.mark.parametrize("word", ["later", "7", "train/test"])
def test_another_word_in_a_column_of_splits_is_refused(tmp_path: Path, word: str) -> None:
    rows = [("head", "relation", "tail", "split"), (*FACTS[0], "train"), (*FACTS[1], word)]
    with pytest.raises(DataError) as raised:
        read(tmp_path / "in", {"a.tsv": rows})
    assert "a.tsv, line 3" in str(raised.value)
    assert repr(word) in str(raised.value)


def test_without_a_fact_for_training_there_is_no_graph(tmp_path: Path) -> None:
    rows = [("head", "relation", "tail", "split"), *((*row, "test") for row in FACTS)]
    with pytest.raises(DataError):
        read(tmp_path / "in", {"a.tsv": rows})
