"""KGX files become data sets: names, kinds, predicates, splits."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from clew.config.data import TripleData
from clew.errors import ConfigError, DataError
from clew.link_prediction.kgx import read_kgx
from clew.link_prediction.sources import load_graph
from clew.workflows.data import KgxRequest, convert_kgx, relation_label, split_triples

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
    assert graphs[0].entities == graphs[1].entities == ["CHEBI:1", "MONDO:1", "HP:1"]
    assert graphs[0].relations == graphs[1].relations
    assert np.array_equal(graphs[0].triples, graphs[1].triples)
    assert graphs[0].names == graphs[1].names
    assert graphs[0].kinds == {"CHEBI:1": "SmallMolecule", "MONDO:1": "Disease", "HP:1": ""}
    assert graphs[0].synonyms == graphs[1].synonyms
    assert graphs[0].synonyms == {"CHEBI:1": ["acetylsalicylic acid", "ASA"]}
    assert graphs[0].num_edges == 4
    assert len(graphs[0].triples) == (3 if qualifiers else 2)


def test_a_data_set_of_kgx(tmp_path: Path) -> None:
    folder = lines_folder(tmp_path / "kgx")
    said = convert_kgx(KgxRequest(folder, tmp_path / "made", qualifiers=True))
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


def test_splits_leave_every_name_to_train_on(tmp_path: Path) -> None:
    folder = random_graph(tmp_path / "kgx")
    graph = read_kgx(folder)
    request = KgxRequest(folder, tmp_path / "made", valid_fraction=0.2, test_fraction=0.2)
    splits = split_triples(graph, request)
    together = np.concatenate(list(splits.values()))
    assert len(np.unique(together, axis=0)) == len(together) == len(graph.triples)
    assert len(splits["test"]) >= 0.2 * len(graph.triples) - 1
    train = splits["train"]
    assert set(train[:, [0, 2]].ravel()) == set(range(len(graph.entities)))
    assert set(train[:, 1]) == set(range(len(graph.relations)))
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
        convert_kgx(KgxRequest(folder, made, seed=seed))
        texts.append((made / "test.txt").read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("edges.jsonl", "{}\n", "edges.jsonl, line 1: subject: missing"),
        ("edges.jsonl", "[1]\n", "expected a JSON object"),
        ("edges.jsonl", "{\n", "line 1: not JSON"),
        ("nodes.jsonl", '{"id": ["a"]}\n', "line 1: id"),
        (
            "edges.jsonl",
            '{"subject": "a\\tb", "predicate": "p", "object": "c"}\n',
            "expected printable text",
        ),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    folder = lines_folder(tmp_path / "kgx")
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=complaint):
        convert_kgx(KgxRequest(folder, tmp_path / "made"))
    assert not (tmp_path / "made").exists()


def test_tables_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "kgx"
    folder.mkdir()
    (folder / "nodes.tsv").write_text("id\tname\na\tb\n")
    (folder / "edges.tsv").write_text("subject\tobject\na\tb\n")
    with pytest.raises(DataError, match="no column 'predicate'"):
        read_kgx(folder)
    (folder / "edges.tsv").write_text("subject\tpredicate\tobject\na\tb\n")
    with pytest.raises(DataError, match="line 2: 2 columns; expected 3"):
        read_kgx(folder)


def test_no_files_and_no_shares(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nodes.tsv and edges.tsv"):
        read_kgx(tmp_path)
    with pytest.raises(ConfigError, match="must be below 1"):
        convert_kgx(KgxRequest(tmp_path, tmp_path / "made", valid_fraction=0.6, test_fraction=0.5))


def test_labels_of_predicates() -> None:
    assert relation_label("biolink:treats") == "treats"
    assert relation_label("biolink:affects;qualified_predicate=biolink:causes") == (
        "affects (qualified predicate: causes)"
    )
