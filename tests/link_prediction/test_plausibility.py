"""The report names what looks wrong; leakage is counted as a plain loop counts it."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clew.__main__ import run as clew
from clew.config.data import ImportSettings, TripleData
from clew.link_prediction import leakage, triples
from clew.link_prediction.imports import import_graph
from clew.link_prediction.leakage import find_leakage, is_leaked, marks
from clew.link_prediction.plausibility import report
from clew.link_prediction.sources import load_graph

CLEAN = "".join(
    f"e{i % 30}\tr{i % 3}\te{(7 * i + 3 + 11 * (i // 30)) % 30}\n" for i in range(1, 90)
)


def findings(folder: Path, **files: str) -> dict[str, int]:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    found = import_graph("g", [folder], ImportSettings())
    return {finding.what: finding.count for finding in report(found.graph, found).findings}


def test_nothing_is_found_in_a_plain_graph(tmp_path: Path) -> None:
    assert findings(tmp_path / "g", train=CLEAN) == {}


@pytest.mark.parametrize(
    ("text", "word", "count"),
    [
        ("drug\taction\tillness\n" + CLEAN, "first lines", 1),
        (CLEAN + '"x"\tr1\te1\n"y"\tr1\te2\n', "in quotes", 2),
        (CLEAN + "e1 \tr1\te2\n", "spaces at their ends", 1),
        (CLEAN + "e\u00a01\tr1\te2\n", "non-breaking", 1),
        (CLEAN + "Sj\u00f6gren\tr1\te2\nSjo\u0308gren\tr1\te3\n", "Unicode form", 1),
        (CLEAN + "Sj\u00f6\u00adgren\tr1\te2\nSj\u00f6gren\tr1\te3\n", "invisible", 1),
        (CLEAN + "E1\tr1\te5\n", "by case", 2),
        (CLEAN + "\u00b5-opioid\tr1\te2\n\u03bc-opioid\tr1\te3\n", "forms of one letter", 2),
        (CLEAN + "Sj\u00f6gren\tr1\te2\nSjo\u0308gren\tr1\te3\n", "forms of one letter", 0),
        (CLEAN + "5\tr1\te2\n5.0\tr1\te3\n7.0\tr1\te4\n", "without .0", 2),
        (CLEAN + "GO:01\tr1\te2\nGO_01\tr1\te3\nhttp://x.org/GO_01\tr1\te4\n", "another sign", 3),
        (CLEAN + "GO:01\tr1\te2\nGO:02\tr1\te3\nHP_01\tr1\te4\n", "another sign", 0),
        (CLEAN + "nan\tr1\te2\nNone\tr1\te3\nnancy\tr1\te4\n", "no value", 2),
        (CLEAN + "e1\tr1\te1\n", "with itself", 1),
        (CLEAN + CLEAN[:9], "repeated", 1),
        (CLEAN + "#e1\tr1\te5\n# e2\tr1\te5\n#tag\tr1\te4\n", "after #", 2),
        ("".join(f"e{i}\t{'ab'[i % 2]}\tr{i % 9}\n" for i in range(40)), "a tenth", 0),
        ("".join(f"e{i}\te{i + 1}\tr{i % 3}\n" for i in range(40)), "another order", 40),
        (CLEAN + "".join(f"hub\tr1\te{i}\n" for i in range(30)), "a tenth of all facts", 1),
    ],
)
def test_what_looks_wrong_is_named(tmp_path: Path, text: str, word: str, count: int) -> None:
    found = findings(tmp_path / "g", train=text)
    assert sum(number for what, number in found.items() if word in what) == count


def test_splits_are_compared(tmp_path: Path) -> None:
    found = findings(tmp_path / "g", train=CLEAN, test="e1\tnew\te2\nnobody\tr1\te2\n" + CLEAN[:9])
    assert found["entities in no training triple"] == 1
    assert found["relations in no training triple"] == 1
    assert found["facts that occur twice"] == 1


def leaking(folder: Path, num: int = 300) -> Path:
    """Write a graph with a relation, its inverse and its duplicate, and a symmetric one."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    ends = [(f"a{h}", f"b{t}") for h, t in generator.integers(0, 60, (num, 2))]
    facts = []
    for number, (head, tail) in enumerate(dict.fromkeys(ends)):
        facts.append((head, "treats", tail))
        if number % 4:
            facts.append((tail, "treated_by", head))
        if number % 9:
            facts.append((head, "cures", tail))
        if number % 3 == 0:
            facts += [(head, "with", tail), (tail, "with", head)]
        facts.append((head, f"other{number % 2}", f"b{(7 * number) % 60}"))
    splits = generator.choice(["train", "valid", "test"], len(facts), p=[0.8, 0.1, 0.1])
    for split in ("train", "valid", "test"):
        rows = [fact for fact, own in zip(facts, splits, strict=True) if own == split]
        (folder / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def test_leaked_triples_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    graph = load_graph(TripleData(path=str(leaking(tmp_path / "g"))))
    pairs = find_leakage(graph).pairs
    name = graph.relations.name
    assert {(p.kind, *sorted((name(p.first), name(p.second)))) for p in pairs} == {
        ("inverse", "treated_by", "treats"), ("inverse", "cures", "treated_by"),
        ("duplicate", "cures", "treats"), ("symmetric", "with", "with"),
    }  # fmt: skip
    train = {tuple(row) for row in graph.train.tolist()}
    expected = []
    for h, r, t in graph.test.tolist():
        leaks = False
        for p in pairs:
            for here, there in ((p.first, p.second), (p.second, p.first)):
                other = (h, there, t) if p.kind == "duplicate" else (t, there, h)
                leaks |= here == r and other in train
        expected.append(leaks)
    assert is_leaked(graph, graph.test, pairs).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_marks_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    graph = load_graph(TripleData(path=str(leaking(tmp_path / "g"))))
    pairs = find_leakage(graph).pairs
    total = 0
    for test in graph.test[:40]:
        h, r, t = test.tolist()
        wanted = {}
        for p in pairs:
            for here, there in ((p.first, p.second), (p.second, p.first)):
                if here == r:
                    other = (h, there, t) if p.kind == "duplicate" else (t, there, h)
                    wanted[other] = 2 if p.kind == "duplicate" else 1
        expected = [wanted.get(tuple(row), 0) for row in graph.train.tolist()]
        assert marks(test, graph.train, pairs).tolist() == expected
        total += sum(map(bool, expected))
    assert total > 10


def test_parts_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(TripleData(path=str(leaking(tmp_path / "g"))))
    again = replace(graph, train=np.concatenate([graph.train, graph.train[:7]]))
    whole = report(again)
    monkeypatch.setattr(leakage, "PART_ROWS", 50)
    monkeypatch.setattr(triples, "BLOCK_ROWS", 64)
    found = report(again)
    assert found.pairs == whole.pairs
    assert {f.what: f.count for f in found.findings} == {f.what: f.count for f in whole.findings}
    rows = [
        tuple(row) for split in ("train", "valid", "test") for row in again.split(split).tolist()
    ]
    assert find_leakage(again).num_repeated == len(rows) - len(set(rows)) > 6
    large = 2**31 - 2  # keys need more than 63 bits
    rows = np.array([[0, 0, large], [large, 1, 0], [0, 0, large]] * 10, np.int32)
    graph = SimpleNamespace(num_relations=9, split=lambda split: rows[: 30 * (split == "train")])
    assert find_leakage(graph).num_repeated == 28


def test_no_pair_is_looked_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(TripleData(path=str(leaking(tmp_path / "g"))))
    pairs, searched = find_leakage(graph).pairs, []
    monkeypatch.setattr(
        "clew.link_prediction.plausibility.is_leaked",
        lambda graph, rows, some: searched.extend(some) or is_leaked(graph, rows, some),
    )
    leaked = [f.count for f in report(graph).findings if "whose inverse" in f.what]
    assert leaked == [is_leaked(graph, graph.test, pairs).sum()]
    assert sorted(searched, key=str) == sorted(pairs, key=str)
    assert {pair.kind for pair in pairs} == {"inverse", "duplicate", "symmetric"}


def test_mirrors_of_symmetric_relations_are_leaks_in_umls() -> None:
    graph = load_graph(TripleData(name="umls"))
    pairs = find_leakage(graph).pairs
    assert {pair.kind for pair in pairs} == {"symmetric"}
    symmetric, train = {pair.first for pair in pairs}, set(map(tuple, graph.train.tolist()))
    mirrored = [r in symmetric and (t, r, h) in train for h, r, t in graph.test.tolist()]
    assert is_leaked(graph, graph.test, pairs).tolist() == mirrored
    assert sum(mirrored) == 50
    found = {finding.what: finding for finding in report(graph).findings}
    assert found["test triples whose inverse, mirror or duplicate is in training"].count == 50
    told = "Test triples with their mirror in training: 50 of 661"
    assert found["symmetric relations"].mend == told


def test_a_share_stands_beside_its_own_number(tmp_path: Path) -> None:
    """Of 20 facts of a relation 12 have their inverse, so 60 % of the larger one's."""
    facts = [(f"p{i}", "parent", f"c{i}") for i in range(20)]
    facts += [(f"c{i}", "child", f"p{i}") for i in range(12)]
    facts += [(f"f{i}", "friend", f"f{(i + 1) % 12}") for i in range(12)]
    mirrors = [(tail, relation, head) for head, relation, tail in facts[-12:]]
    splits = {"train": facts + mirrors[3:], "valid": mirrors[:1], "test": mirrors[:3]}
    for split, rows in splits.items():
        (tmp_path / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = {f.what: f for f in report(load_graph(TripleData(path=str(tmp_path)))).findings}
    (pair,) = found["pairs of relations that are inverses"].examples
    assert "12 in common, 60% of the larger one's" in pair
    leaked = found["test triples whose inverse, mirror or duplicate is in training"]
    assert (leaked.count, leaked.examples[0]) == (3, "f1 friend f0")
    told = "Test triples with their mirror in training: 3 of 3"
    assert found["symmetric relations"].mend == told


def test_the_run_and_the_folder_keep_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.chdir(tmp_path)
    leaking(tmp_path / "g")
    assert clew(["data", "g", "--output-dir=made"]) == 0
    content = json.loads((tmp_path / "made/data_report.json").read_text())
    assert {pair["kind"] for pair in content["pairs"]} == {"inverse", "duplicate", "symmetric"}
    settings = ["training.num_epochs=1", "model.embedding_dim=4", "training.device=cpu"]
    train = ["train", "--config=umls", "data.path=g", "model.kind=distmult", *settings]
    assert clew([*train, "--output-dir=run", "--result-file=result.json"]) == 0
    assert (tmp_path / "run/data_report.json").is_file()
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert metrics["test/num_leaked"] > 0
    assert metrics["test/mrr_not_leaked"] != metrics["test/mrr"]
