"""KGX files become data sets: names, kinds, predicates, splits."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from clew.__main__ import run as clew
from clew.config.data import ImportSettings, TripleData
from clew.errors import ConfigError, DataError
from clew.link_prediction.imports import Imported, import_graph, relation_label
from clew.link_prediction.sources import load_graph
from clew.workflows.data import import_data

NODES = [
    {
        "id": "CHEBI:1",
        "name": "aspirin",
        "category": ["biolink:NamedThing", "biolink:SmallMolecule"],
        "synonym": ["acetylsalicylic acid", "Aspirin", "ASA", "asa", " ", "bell\x07"],
    },
    {"id": "MONDO:1", "name": "pain\tand more", "category": ["biolink:Disease"]},
    {"id": "HP:1", "name": None, "category": []},
]
EDGES = [
    {
        "subject": "CHEBI:1",
        "predicate": "biolink:treats",
        "object": "MONDO:1",
        "publications": ["a"],
    },
    {"subject": "CHEBI:1", "predicate": "biolink:treats", "object": "MONDO:1"},
    {
        "subject": "CHEBI:1",
        "predicate": "biolink:affects",
        "object": "HP:1",
        "object_aspect_qualifier": "activity",
    },
    {"subject": "CHEBI:1", "predicate": "biolink:affects", "object": "HP:1"},
]


def read_kgx(folder: Path, **settings: object) -> Imported:
    return import_graph("kgx", [folder], ImportSettings(**settings))


def convert(folder: Path, made: Path, **settings: object) -> str:
    return import_data([folder], ImportSettings(**settings), made)


def all_triples(found: Imported) -> set[tuple[str, str, str]]:
    graph = found.graph
    return {
        (graph.entities.name(h), graph.relations.name(r), graph.entities.name(t))
        for split in (graph.train, graph.valid, graph.test)
        for h, r, t in split.tolist()
    }


def lines_folder(folder: Path, nodes=NODES, edges=EDGES) -> Path:
    folder.mkdir(exist_ok=True)
    for name, records in (("nodes", nodes), ("edges", edges)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def table_folder(folder: Path) -> Path:
    """Write the same graph as tables, one of them compressed."""
    folder.mkdir()
    for name, records in (("nodes", NODES), ("edges", EDGES)):
        columns = list(dict.fromkeys(key for record in records for key in record))
        rows = [columns]
        for record in records:
            values = [record.get(column) or "" for column in columns]
            rows.append(["|".join(v) if isinstance(v, list) else v for v in values])
        rows = [[str(field).replace("\t", " ") for field in row] for row in rows]
        text = "".join("\t".join(row) + "\n" for row in rows)
        with gzip.open(folder / f"my_{name}.tsv.gz", "wt") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize("qualifiers", [False, True])
def test_both_forms_are_the_same_graph(tmp_path: Path, qualifiers: bool) -> None:
    graphs = [
        read_kgx(folder, qualifiers=qualifiers)
        for folder in (lines_folder(tmp_path / "lines"), table_folder(tmp_path / "tables"))
    ]
    one, other = (found.graph for found in graphs)
    assert list(one.entities) == list(other.entities) == ["CHEBI:1", "HP:1", "MONDO:1"]
    assert list(one.relations) == list(other.relations)
    assert one.fingerprint == other.fingerprint
    for array in ("label_array", "category_array", "synonym_array"):
        assert getattr(one.entities, array).equals(getattr(other.entities, array))
    assert one.entities.category_array.to_pylist() == ["SmallMolecule", None, "Disease"]
    assert one.entities.synonym_array[0].as_py() == "acetylsalicylic acid|ASA"
    assert graphs[0].counts["edges"] == 4
    assert len(all_triples(graphs[0])) == (3 if qualifiers else 2)


def test_a_data_set_of_kgx(tmp_path: Path) -> None:
    folder = lines_folder(tmp_path / "kgx")
    said = convert(folder, tmp_path / "made", qualifiers=True)
    assert "num_train              3" in said
    graph = load_graph(TripleData(train=str(tmp_path / "made/train.txt")))
    assert len(graph.train) == 3
    named = TripleData(
        train=str(tmp_path / "made/train.txt"),
        node_name_dict=str(tmp_path / "made/entity_names.tsv"),
        edge_map=str(tmp_path / "made/edge_map.json"),
    )
    graph = load_graph(named)
    aspirin = graph.entities.id("CHEBI:1")
    assert graph.entities.label(aspirin) == "aspirin"
    assert graph.entities.category_array[aspirin].as_py() == "SmallMolecule"
    assert graph.entities.category_array[graph.entities.id("HP:1")].as_py() is None
    assert graph.entities.synonym_array[aspirin].as_py() == "acetylsalicylic acid|ASA"
    assert graph.entities.synonym_array.null_count == 2
    (relation,) = [r for r in graph.relations if ";" in r]
    assert graph.relations.label(graph.relations.id(relation)) == (
        "affects (object aspect qualifier: activity)"
    )
    graph.entities.write(tmp_path / "entities.parquet")
    again = type(graph.entities).read(tmp_path / "entities.parquet", "entity")
    assert again.category_array.equals(graph.entities.category_array)
    assert again.synonym_array.equals(graph.entities.synonym_array)


def random_graph(folder: Path, num_edges: int = 600) -> Path:
    generator = np.random.default_rng(0)
    ends = generator.integers(0, 40, (num_edges, 2))
    edges = [
        {"subject": f"X:{head}", "predicate": f"biolink:p{number % 4}", "object": f"X:{tail}"}
        for number, (head, tail) in enumerate(ends)
    ]
    edges.append({"subject": "X:rare", "predicate": "biolink:p0", "object": "X:1"})
    edges.append({"subject": "X:1", "predicate": "biolink:once", "object": "X:2"})
    nodes = [{"id": f"X:{number}"} for number in range(40)]
    return lines_folder(folder, nodes, edges)


@pytest.mark.parametrize("split", ["random", "relation"])
def test_splits_leave_every_name_to_train_on(tmp_path: Path, split: str) -> None:
    folder = random_graph(tmp_path / "kgx")
    graph = read_kgx(folder, valid_fraction=0.2, test_fraction=0.2, split=split).graph
    splits = {name: graph.split(name) for name in ("train", "valid", "test")}
    together = np.concatenate(list(splits.values()))
    assert len(np.unique(together, axis=0)) == len(together)
    assert abs(len(splits["test"]) - 0.2 * len(together)) <= 4
    train = splits["train"]
    assert set(train[:, [0, 2]].ravel()) == set(range(graph.num_entities))
    assert set(train[:, 1]) == set(range(graph.num_relations))
    if split == "relation":
        shares = [np.bincount(splits[name][:, 1], minlength=5)[1:] for name in ("test", "train")]
        assert np.all(np.abs(shares[0] / (shares[0] + shares[1]) - 0.25) < 0.08)
    pairs = {
        name: {frozenset((h, t)) for h, _, t in rows.tolist()} for name, rows in splits.items()
    }
    assert not pairs["train"] & (pairs["valid"] | pairs["test"])
    assert not pairs["valid"] & pairs["test"]


def test_the_same_seed_splits_in_the_same_way(tmp_path: Path) -> None:
    folder = random_graph(tmp_path / "kgx")
    texts = []
    for number, seed in enumerate((0, 0, 1)):
        made = tmp_path / f"made {number}"
        convert(folder, made, seed=seed)
        texts.append((made / "test.txt").read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("edges.jsonl", "{}\n"),
        ("edges.jsonl", '{"subject": "a", "object": "b"}\n{"predicate": "p"}\n'),
        ("edges.jsonl", "[1]\n"),
        ("edges.jsonl", "{\n"),
        ("nodes.jsonl", '{"id": ["a"]}\n'),
        ("edges.jsonl", '{"subject": "a\\tb", "predicate": "p", "object": "c"}\n'),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, content: str) -> None:
    folder = lines_folder(tmp_path / "kgx")
    (folder / name).write_text(content)
    with pytest.raises(DataError) as raised:
        convert(folder, tmp_path / "made")
    assert name in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_tables_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "kgx"
    folder.mkdir()
    (folder / "nodes.tsv").write_text("id\tname\na\tb\n")
    with pytest.raises(DataError):
        read_kgx(folder)
    (folder / "edges.tsv").write_text("subject\tpredicate\tobject\na\tp\tb\na\tb\n")
    with pytest.raises(DataError) as raised:
        read_kgx(folder)
    assert "edges.tsv, line 3" in str(raised.value)


SPELLINGS = {
    "True": True, "TRUE": True, "true": True, "t": True, " yes ": True, "Y": True, "1": True,
    "False": False, "FALSE": False, "f": False, "no": False, "N": False, "0": False,
    "": False, "None": False, "null": False, "nan": False, "NA": False,
}  # fmt: skip


def denied_folder(folder: Path, flags: list[object], column: str = "negated") -> Path:
    """Write an edge from X:0 to each flag's own entity."""
    edges = [
        {"subject": "X:0", "predicate": "biolink:p", "object": f"X:{number}", column: flag}
        for number, flag in enumerate(flags, 1)
    ]
    return lines_folder(folder, [{"id": "X:0"}], edges)


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_a_denied_edge_is_no_fact(tmp_path: Path, form: str) -> None:
    folder = denied_folder(tmp_path / "kgx", list(SPELLINGS))
    if form == "tsv":
        lines = ["subject\tpredicate\tobject\tnegated"]
        lines += [f"X:0\tbiolink:p\tX:{n}\t{flag}" for n, flag in enumerate(SPELLINGS, 1)]
        (folder / "edges.jsonl").unlink()
        (folder / "edges.tsv").write_text("\n".join(lines))
    found = read_kgx(folder)
    stated = [f"X:{n}" for n, denied in enumerate(SPELLINGS.values(), 1) if not denied]
    assert set(found.graph.entities) == {"X:0", *stated}
    assert found.counts["denied"] == sum(SPELLINGS.values())
    assert found.counts["edges"] == len(SPELLINGS)


def test_booleans_and_numbers_of_json_deny_too(tmp_path: Path) -> None:
    graph = read_kgx(denied_folder(tmp_path / "kgx", [True, False, 1, 0, None]))
    assert list(graph.graph.entities) == ["X:0", "X:2", "X:4", "X:5"]
    assert graph.counts["denied"] == 2


@pytest.mark.parametrize("column", ["negated", "deprecated"])
@pytest.mark.parametrize("flag", ["perhaps", 7, [True], {"a": 1}])
def test_what_is_neither_true_nor_false_is_refused(
    tmp_path: Path, column: str, flag: object
) -> None:
    with pytest.raises(DataError) as raised:
        read_kgx(denied_folder(tmp_path / "kgx", [False, flag], column))
    assert "line 2" in str(raised.value)
    assert column in str(raised.value)


def test_denied_edges_can_be_relations_of_their_own(tmp_path: Path) -> None:
    folder = denied_folder(tmp_path / "kgx", [False, True])
    graph = read_kgx(folder, negated="relation")
    assert list(graph.graph.relations) == ["biolink:p", "biolink:p;negated=true"]
    assert len(all_triples(graph)) == 2
    assert graph.counts["denied"] == 1
    convert(folder, tmp_path / "made", negated="relation", test_fraction=0.0)
    assert "X:0\tbiolink:p;negated=true\tX:2\n" in (tmp_path / "made/train.txt").read_text()


def test_only_denied_edges_are_no_graph(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_kgx(denied_folder(tmp_path / "kgx", [True, True]))


@pytest.mark.parametrize("column", ["deprecated", "retracted", "is_retracted"])
def test_edges_that_are_not_valid_any_more_are_dropped(tmp_path: Path, column: str) -> None:
    folder = denied_folder(tmp_path / "kgx", [True, False, "false"], column)
    graph = read_kgx(folder, negated="relation")
    assert list(graph.graph.entities) == ["X:0", "X:2", "X:3"]
    assert graph.counts["deprecated"] == 1


def test_what_is_not_used_is_counted(tmp_path: Path) -> None:
    edges = [
        {
            "id": str(number),
            "subject": "X:0",
            "predicate": "biolink:affects",
            "object": f"X:{number}",
            "knowledge_level": "prediction" if number < 3 else "knowledge_assertion",
            "agent_type": "text_mining_agent" if number < 2 else "",
            "object_aspect_qualifier": "activity" if number == 4 else None,
            "qualified_predicate": "biolink:causes" if number == 4 else "",
            "publications": ["PMID:1"] if number == 1 else [],
        }
        for number in range(1, 6)
    ]
    folder = lines_folder(tmp_path / "kgx", [{"id": "X:0"}], edges)
    ignored = read_kgx(folder).notes
    assert {"knowledge_level", "agent_type", "object_aspect_qualifier", "qualified_predicate"} | {
        "other columns"
    } == ignored.keys()
    assert {"knowledge_level", "agent_type", "other columns"} == set(
        read_kgx(folder, qualifiers=True).notes
    )
    said = convert(folder, tmp_path / "made")
    (line,) = [line for line in said.splitlines() if line.startswith("knowledge_level")]
    assert "2 prediction" in line
    assert "3 knowledge_assertion" in line
    (line,) = [line for line in said.splitlines() if line.startswith("other columns")]
    assert "publications (1)" in line


def test_qualifiers_in_every_form_are_the_same_relation(tmp_path: Path) -> None:
    base = {"subject": "X:0", "predicate": "biolink:affects"}
    edges = [
        base | {"object": "X:1", "object_aspect_qualifier": "activity", "a_qualifier": ["x", "y"]},
        base | {"object": "X:2", "object_aspect_qualifier": "activity", "a_qualifier": "x|y"},
        base
        | {
            "object": "X:3",
            "qualifiers": [
                {
                    "qualifier_type_id": "biolink:object_aspect_qualifier",
                    "qualifier_value": "activity",
                },
                {"qualifier_type_id": "biolink:a_qualifier", "qualifier_value": "x|y"},
            ],
        },
    ]
    folder = lines_folder(tmp_path / "kgx", [{"id": "X:0"}], edges)
    assert list(read_kgx(folder, qualifiers=True).graph.relations) == [
        "biolink:affects;a_qualifier=x|y;object_aspect_qualifier=activity"
    ]


def test_the_command_says_what_was_denied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = denied_folder(tmp_path / "kgx", [True, *[False] * 8])
    made = f"--output-dir={tmp_path / 'made'}"
    assert clew(["data", f"--kgx={folder}", made]) == 0
    said = capsys.readouterr().out.splitlines()
    (line,) = [line for line in said if line.startswith("denied")]
    assert line.split()[1] == "1"
    assert any("--negated relation" in text for text in said if "denied" in text)
    made = f"--output-dir={tmp_path / 'again'}"
    assert clew(["data", f"--kgx={folder}", made, "--negated=relation"]) == 0
    assert "num_relations          2" in capsys.readouterr().out
    assert clew(["data", "--name=umls", "--negated=drop"]) == 2


def test_no_files_and_no_shares(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_kgx(tmp_path)
    with pytest.raises(ConfigError):
        convert(tmp_path, tmp_path / "made", valid_fraction=0.6, test_fraction=0.5)


def test_labels_of_predicates() -> None:
    assert relation_label("biolink:treats;negated=true") == "treats (denied)"
    assert relation_label("biolink:treats") == "treats"
    assert relation_label("biolink:affects;qualified_predicate=biolink:causes") == (
        "affects (qualified predicate: causes)"
    )
