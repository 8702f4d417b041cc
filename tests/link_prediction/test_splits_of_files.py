"""Splits that files give, by their names, their folders' names or a column, are kept."""

import json
from pathlib import Path

import pytest

from clew.config.data import ImportSettings, TripleData
from clew.errors import DataError
from clew.link_prediction.imports import Imported, import_graph
from clew.link_prediction.sources import load_graph

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


@pytest.mark.parametrize(
    "names",
    [
        "fold1/train.txt fold1/test.txt fold2/train.txt fold2/test.txt",
        "cv_0/train/a.txt cv_0/test/a.txt cv_1/train/a.txt cv_1/test/a.txt",
        "train_fold1.txt valid_fold1.txt train_fold10.txt valid_fold10.txt",
    ],
)
def test_folds_are_not_joined(tmp_path: Path, names: str) -> None:
    content = {name: FACTS[i : i + 6] for i, name in enumerate(names.split())}
    with pytest.raises(DataError):
        read(tmp_path / "in", content)
    one = {name: rows for name, rows in list(content.items())[:2]}
    assert sum(sizes(read(tmp_path / "one", one))) == 12
    parts = {"train/split-0.txt": FACTS[:9], "train/split-1.txt": FACTS[9:17]}
    assert sizes(read(tmp_path / "parts", parts | {"test.txt": FACTS[17:]})) == (17, 0, 7)


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


def given(folder: Path, **files: list[tuple[str, ...]]) -> tuple[int, int, int]:
    """Return the sizes of the splits of files that a person names."""
    paths = {split: folder / f"{split}.tsv" for split in files}
    for split, rows in files.items():
        paths[split].write_text(table([("head", "relation", "tail", *rows[0][3:]), *rows[1:]]))
    graph = load_graph(TripleData(**{split: str(path) for split, path in paths.items()}))
    return len(graph.train), len(graph.valid), len(graph.test)


def test_a_person_says_the_split_of_a_file(tmp_path: Path) -> None:
    train, test = SHARES["train"], SHARES["test"]
    for column, words in (("fold", "12"), ("split", ["test", "heldout"]), ("split", ["", "NA"])):
        rows = [("", "", "", column), *((*row, words[i % 2]) for i, row in enumerate(test))]
        assert given(tmp_path, train=[("", "", ""), *train], test=rows) == (17, 0, 4)
    rows = [("", "", "", "split"), (*test[0], "test"), (*test[1], "train")]
    with pytest.raises(DataError, match=r"test\.tsv, line 3.*'train'"):
        given(tmp_path, train=[("", "", ""), *train], test=rows)


def test_one_file_can_hold_all_splits(tmp_path: Path) -> None:
    rows = [(*row, split) for split in SHARES for row in SHARES[split]]
    assert given(tmp_path, train=[("", "", "", "split"), *rows]) == (17, 3, 4)


def test_numbers_of_folds_do_not_hide_what_a_name_says(tmp_path: Path) -> None:
    header = ("head", "relation", "tail", "fold")
    content = {
        f"{split}.tsv": [header, *((*row, str(i % 5)) for i, row in enumerate(rows))]
        for split, rows in SHARES.items()
    }
    found = read(tmp_path / "in", content)
    assert sizes(found) == (17, 3, 4)
    assert "fold" in found.notes["other columns"]


def newest(folder: Path, content: dict[str, str]) -> set[str]:
    """Return the heads of the newest quarter of the facts."""
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)
    settings = ImportSettings(split="time", valid_fraction=0, test_fraction=0.25)
    graph = import_graph("g", [folder], settings).graph
    return {graph.entities.name(head) for head in graph.test[:, 0]}


def test_times_are_compared_between_files_and_zones(tmp_path: Path) -> None:
    header = "head\trelation\ttail\ttime\n"

    def rows(*times: str) -> str:
        return header + "".join(f"e{t}\tr\tx\t{t}\n" for t in times)

    years = {"a.tsv": rows("2016", "2014"), "b.tsv": rows("2015-02-01", "2013-01-01")}
    assert newest(tmp_path / "years", years) == {"e2016"}
    zones = rows("2020-01-01T02:00:00+05:00", "2020-01-01T01:00:00Z", "2019-12-31", "2019-12-30")
    assert newest(tmp_path / "zones", {"a.tsv": zones}) == {"e2020-01-01T01:00:00Z"}
    old = rows("0800-01-01", "0900-01-01", "0700-01-01", "0600-01-01")
    assert newest(tmp_path / "old", {"a.tsv": old}) == {"e0900-01-01"}


def test_times_in_json_lines_are_numbers(tmp_path: Path) -> None:
    records = [{"head": f"e{t}", "relation": "r", "tail": "x", "time": t} for t in (9, 40, 31, 2)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    assert newest(tmp_path / "in", {"a.jsonl": text}) == {"e40"}


def test_the_line_without_a_time_is_named(tmp_path: Path) -> None:
    text = "head\trelation\ttail\ttime\na\tr\tb\t7\na\tr\tc\t\na\tr\td\t9\n"
    with pytest.raises(DataError, match=r"a\.tsv, line 3"):
        newest(tmp_path / "in", {"a.tsv": text})


def test_a_file_has_one_split(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("head,relation,tail\na,r,b\nb,r,c\n")
    (tmp_path / "held.csv").write_text("head,relation,tail\nc,r,a\n")
    train, held = str(tmp_path / "train.csv"), str(tmp_path / "held.csv")
    assert len(load_graph(TripleData(train=train, test=held)).test) == 1
    with pytest.raises(DataError, match="valid and test"):
        load_graph(TripleData(train=train, valid=held, test=held))
