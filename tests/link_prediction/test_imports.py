"""Published formats are read right to the triple, and names stay apart."""

# ruff: noqa: E501 (a file of a format is easier to read on one line)

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zstandard

from clew import input_files
from clew.__main__ import run as clew
from clew.config.data import ImportSettings, TripleData
from clew.errors import DataError
from clew.link_prediction.imports import Imported, import_graph
from clew.link_prediction.sources import load_graph

FACTS = [("e0", "r1", "e27"), ("e1", "r2", "e0"), ("e1", "r1", "NA"), ("01", "r1", "1"),
         ("1e5", "r2", "100000"), ("nan", "r1", "e0"), ("e1", "r1", "e2")]  # fmt: skip


def lines(rows, separator="\t", end="\n"):
    return "".join(separator.join(row) + end for row in rows)


def read(place: Path, content: dict[str, str | bytes], **settings: object) -> Imported:
    place.mkdir(exist_ok=True)
    for name, text in content.items():
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_graph("g", [place], ImportSettings(**settings))


def facts(found: Imported) -> list[tuple[str, str, str]]:
    graph = found.graph
    return sorted(
        (graph.entities.name(h), graph.relations.name(r), graph.entities.name(t))
        for split in (graph.train, graph.valid, graph.test)
        for h, r, t in split.tolist()
    )


ENTITIES = sorted({name for h, _, t in FACTS for name in (h, t)})
NAMED = [(e, f"name of {e}", "Drug" if i % 2 else "Disease") for i, e in enumerate(ENTITIES)]
NODES = {e: (name, kind) for e, name, kind in NAMED}
IDS = {e: str(i) for i, e in enumerate(ENTITIES)}
RELATION_IDS = {"r1": "0", "r2": "1"}
SWAPPED = [(h, t, r) for h, r, t in FACTS]
SHORT = [row for row in FACTS if row[0].startswith("e")]
TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"


def parquet(rows, names) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        pa.table({n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}), file
    )
    return file.getvalue()


def zipped(members: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def arrays() -> bytes:
    file = io.BytesIO()
    ids = np.array([[int(IDS[h]), int(RELATION_IDS[r]), int(IDS[t])] for h, r, t in FACTS])
    np.savez(file, head=ids[:, 0], relation=ids[:, 1], tail=ids[:, 2])
    return file.getvalue()


DICTIONARIES = {
    "entity2id.txt": f"{len(IDS)}\n" + lines(IDS.items()),
    "relation2id.txt": "2\n" + lines(RELATION_IDS.items()),
}
OPENKE = DICTIONARIES | {
    "train2id.txt": f"{len(FACTS)}\n"
    + lines([(IDS[h], IDS[t], RELATION_IDS[r]) for h, r, t in FACTS], " ")
}
PRIMEKG = [("relation", "display_relation", "x_index", "x_id", "x_type", "x_name", "x_source",
            "y_index", "y_id", "y_type", "y_name", "y_source")]  # fmt: skip
PRIMEKG += [
    (r, f"shown {r}", IDS[h], h, NODES[h][1], f'"{NODES[h][0]}"', "S", IDS[t], t, NODES[t][1],
     NODES[t][0], "S")
    for h, r, t in FACTS
]  # fmt: skip
PLAIN = {
    "triples": {"train.txt": lines(FACTS)},
    "no line end": {"train.txt": lines(FACTS)[:-1]},
    "windows": {"train.txt": "\ufeff" + lines(FACTS, end="\r\n")},
    "gzip": {"train.txt.gz": gzip.compress(lines(FACTS).encode())},
    "zstd": {"train.tsv.zst": zstandard.compress(lines(FACTS).encode())},
    "zip": {"graph.zip": zipped({"graph/train.txt": lines(FACTS), "graph/README.md": "a b"})},
    "comments": {"train.tsv": "# made by a script, 2024\n" + lines(FACTS[:3]) + "# more\n" + lines(FACTS[3:])},
    "commented header": {"edges.tsv": "#head\trelation\ttail\n" + lines(FACTS)},
    "spaces between": {"train.txt": lines(FACTS, "  ")},
    "commas": {"edges.csv": lines([("Head", "Relation", "Tail"), *FACTS], ",")},
    "quotes": {"train.txt": lines([[f'"{x}"' for x in row] if i % 2 else row for i, row in enumerate(FACTS)])},
    "quoted table": {"e.csv": '"","from","type","to"\n' + lines([(str(i), *(f'"{x}"' for x in row)) for i, row in enumerate(FACTS)], ",")},
    "weights": {"train.tsv": lines([(*row, f"0.{i}") for i, row in enumerate(FACTS)])},
    "OpenBioLink": {"train.tsv": lines([(*row, "700" if i % 2 else "missing", "SOURCE") for i, row in enumerate(FACTS)])},
    "OpenBioLink's samples": {"train_sample.csv": lines([*((*row, "1") for row in FACTS), ("e1", "r1", "e0", "0")])},
    "OpenKE": OPENKE,
    "PyKEEN": {
        "entity_to_id.tsv": lines([("id", "label"), *((i, e) for e, i in IDS.items())]),
        "relation_to_id.tsv": lines([("label", "id"), *RELATION_IDS.items()]),
        "train.txt": lines(FACTS),
    },
    "parquet": {"edges.parquet": parquet(FACTS, ["subject", "predicate", "object"])},
    "Hetionet": {"edges.sif.gz": gzip.compress(lines([("source", "metaedge", "target"), *FACTS]).encode())},
}  # fmt: skip
NAMED_FORMATS = {
    "PrimeKG": {"kg.csv": lines(PRIMEKG, ",")},
    "Hetionet": PLAIN["Hetionet"] | {"nodes.tsv": lines([("id", "name", "kind"), *NAMED])},
    "Neo4j": {
        "nodes.csv": lines([(":ID", "name", ":LABEL"), *NAMED], ","),
        "rels.csv": lines([(":START_ID", ":END_ID", ":TYPE"), *SWAPPED], ","),
    },
    "Neo4j, headers apart": {
        "nodes-header.csv": "nodeId:ID(Any);name:string;:LABEL\n",
        "nodes.csv": lines([(e, n, f'"{k}"') for e, n, k in NAMED], ";"),
        "rels_header.csv": ":START_ID(Any);:END_ID(Any);score:float;:TYPE\n",
        "rels_1.csv": lines([(h, t, "0.5", r) for h, r, t in FACTS], ";"),
    },
    "Neo4j, one table": {
        "export.csv": "_id,_labels,name,_start,_end,_type\n"
        + lines([(e, f":{k}", n, "", "", "") for e, n, k in NAMED], ",")
        + lines([("", "", "", h, t, r) for h, r, t in FACTS], ",")
    },
    "KGX in several files": {
        "a_nodes.tsv": lines([("id", "name", "category"), *((e, "", "biolink:NamedThing") for e in IDS)]),
        "b_nodes.jsonl": lines([[json.dumps({"id": e, "name": n, "category": ["biolink:NamedThing", f"biolink:{k}"]})] for e, n, k in NAMED]),
        "a_edges.tsv": lines([("subject", "predicate", "object"), *FACTS[:3]]),
        "b_edges.jsonl": lines([[json.dumps(dict(zip(("subject", "predicate", "object"), row, strict=True)))] for row in FACTS[3:]]),
    },
    "OGB": DICTIONARIES | {
        "train.npz": arrays(),
        "names.tsv": lines([("id", "name", "kind"), *NAMED]),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_format_is_read_to_the_triple(tmp_path: Path, name: str) -> None:
    found = read(tmp_path / "in", PLAIN[name])
    assert facts(found) == sorted(FACTS)
    # Read again from the platform's own folder, it is the same graph.
    assert clew(["data", str(tmp_path / "in"), f"--output-dir={tmp_path / 'out'}"]) == 0
    again = load_graph(TripleData(path=str(tmp_path / "out")))
    assert again.fingerprint == found.graph.fingerprint
    own = {f"{s}.txt": (tmp_path / "out" / f"{s}.txt") for s in ("train", "valid", "test")}
    assert sum(len(p.read_text().splitlines()) for p in own.values() if p.exists()) == len(FACTS)


@pytest.mark.parametrize("name", NAMED_FORMATS)
def test_names_and_kinds_come_along(tmp_path: Path, name: str) -> None:
    found = read(tmp_path / "in", NAMED_FORMATS[name])
    assert facts(found) == sorted(FACTS)
    entities = found.graph.entities
    assert {
        e: (entities.label(i), entities.category_array[i].as_py()) for i, e in enumerate(entities)
    } == NODES
    assert not any(key.startswith("conflicting") for key in found.counts)


BIOKG = {
    "train": [("drug", 0, 0, "disease", 0), ("drug", 1, 0, "disease", 0), ("disease", 1, 1, "drug", 0)],
    "valid": [("drug", 1, 0, "disease", 1)],
    "test": [("disease", 0, 1, "drug", 1)],
}  # fmt: skip


def saved_by_torch(path: Path, content: object, *, by_numpy_1: bool = False) -> None:
    """Save as OGB did: a zip file, or with the releases before it a plain pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, _use_new_zipfile_serialization=not by_numpy_1)
    if by_numpy_1:
        path.write_bytes(path.read_bytes().replace(b"numpy._core", b"numpy.core"))


def table(path: Path, header: str, names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = lines([(str(i), name) for i, name in enumerate(names)], ",")
    path.write_bytes(gzip.compress(f"{header}\n{rows}".encode()))


@pytest.mark.parametrize("by_numpy_1", [False, True])
def test_ogbl_biokg_is_read_as_it_is_unpacked(tmp_path: Path, by_numpy_1: bool) -> None:
    root = tmp_path / "dataset" / "ogbl_biokg"
    for split, rows in BIOKG.items():
        head_type, head, relation, tail_type, tail = map(list, zip(*rows, strict=True))
        numbers = {"head": head, "relation": relation, "tail": tail}
        content = {key: np.array(values) for key, values in numbers.items()}
        content |= {"head_type": head_type, "tail_type": tail_type}
        if split != "train":
            content |= {f"{side}_neg": np.zeros((len(rows), 5), int) for side in ("head", "tail")}
        saved_by_torch(root / "split/random" / f"{split}.pt", content, by_numpy_1=by_numpy_1)
    table(root / "mapping/disease_entidx2name.csv.gz", "ent idx,ent name", ["C01", "C02"])
    table(root / "mapping/drug_entidx2name.csv.gz", "ent idx,ent name", ["CID1", "C02"])
    table(root / "mapping/relidx2relname.csv.gz", "rel idx,rel name", ["drug-disease", "back"])
    table(root / "raw/relations/drug___disease/edge.csv.gz", "0,0", ["0"])
    (root / "RELEASE_v1.txt").touch()
    for path in (root, tmp_path / "dataset"):
        graph = import_graph("g", [path], ImportSettings()).graph
        names, relations = graph.entities, ["drug-disease", "back"]
        for split, rows in BIOKG.items():
            expected = [
                (f"{h}:{i}", relations[r], f"{t}:{j}") for h, i, r, t, j in rows
            ]  # the name that `clew evaluate --negatives` expects
            found = [
                (names.name(h), graph.relations.name(r), names.name(t))
                for h, r, t in graph.split(split).tolist()
            ]
            assert found == expected
        described = {
            e: (names.label(i), names.category_array[i].as_py()) for i, e in enumerate(names)
        }
        assert described == {
            "disease:0": ("C01", "disease"), "disease:1": ("C02", "disease"),
            "drug:0": ("CID1", "drug"), "drug:1": ("C02", "drug"),
        }  # fmt: skip


def test_ogbl_wikikg2_is_read_as_it_is_unpacked(tmp_path: Path) -> None:
    rows = {"train": [(0, 0, 1), (1, 1, 2)], "valid": [(2, 0, 0)], "test": [(2, 1, 1)]}
    for split, facts in rows.items():
        ids = np.array(facts)
        content = {"head": ids[:, 0], "relation": ids[:, 1], "tail": ids[:, 2]}
        saved_by_torch(tmp_path / "split/time" / f"{split}.pt", content)
    table(tmp_path / "mapping/nodeidx2entityid.csv.gz", "node idx,entity id", ["Q5", "Q9", "Q1"])
    table(tmp_path / "mapping/reltype2relid.csv.gz", "reltype,rel id", ["P31", "P2"])
    graph = import_graph("g", [tmp_path], ImportSettings()).graph
    assert list(graph.entities) == ["Q1", "Q5", "Q9"]
    assert list(graph.relations) == ["P2", "P31"]
    assert graph.train.tolist() == [[1, 1, 2], [2, 0, 0]]
    assert (graph.valid.tolist(), graph.test.tolist()) == ([[0, 1, 1]], [[0, 0, 2]])


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_another_file_of_torch_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    path, mark = tmp_path / "train.pt", tmp_path / "was run"
    one = np.array([0])
    for content in (
        {"edge": one},
        {"head": one, "relation": one, "tail": _Runs(mark)},
        {"head": one, "relation": one, "tail": np.array([[0]])},
        {"head": one, "relation": one, "tail": np.array([0.5])},
        {"head": one, "relation": one, "tail": np.array(["a"], dtype=object)},
        {"head": one, "relation": one, "tail": np.array([0, 1])},
        {"head": one, "relation": one, "tail": [{}]},
        [one],
    ):
        for by_numpy_1 in (False, True):
            saved_by_torch(path, content, by_numpy_1=by_numpy_1)
            with pytest.raises(DataError):
                import_graph("g", [path], ImportSettings())
    path.write_bytes(b"no file of torch")
    with pytest.raises(DataError):
        import_graph("g", [path], ImportSettings())
    assert not mark.exists()


def test_an_array_that_is_not_in_its_file_is_refused(tmp_path: Path) -> None:
    many = torch.zeros(1, dtype=torch.int64).expand(10_000_000)
    saved_by_torch(tmp_path / "train.pt", dict.fromkeys(("head", "relation", "tail"), many))
    with pytest.raises(DataError):
        import_graph("g", [tmp_path / "train.pt"], ImportSettings())


def test_columns_are_named_or_numbered(tmp_path: Path) -> None:
    rows = [("x_id", "what", "y_id", "relation"), *((h, "no", t, r) for h, r, t in FACTS)]
    named = read(tmp_path / "a", {"t.csv": lines(rows, ",")},
                 columns="head=x_id,relation=relation,tail=y_id", header=True)  # fmt: skip
    assert facts(named) == sorted(FACTS)
    numbered = read(tmp_path / "b", {"t.tsv": lines(SWAPPED)}, columns="head,tail,relation")
    assert facts(numbered) == sorted(FACTS)
    with pytest.raises(DataError):
        read(tmp_path / "b", {}, columns="head=none,tail=2")
    unusual = {"t.csv": lines([("drug_id", "action", "disease_id"), *FACTS], ",")}
    assert facts(read(tmp_path / "c", unusual, header=True)) == sorted(FACTS)


@pytest.mark.parametrize("suffix", [".nt", ".ttl"])
def test_rdf_is_read(tmp_path: Path, suffix: str) -> None:
    def iri(x):
        return f"<http://a.b/{x}>"

    text = lines([(*map(iri, row), ".") for row in FACTS], " ")
    text += f'{iri("e1")} {LABEL} "eins"@de .\n{iri("e1")} {LABEL} "one"@en .\n'
    text += f'{iri("e1")} <http://a.b/age> "7" .\n'
    found = read(tmp_path / "in", {f"g{suffix}": text})
    assert facts(found) == sorted(tuple(f"http://a.b/{x}" for x in row) for row in FACTS)
    assert found.graph.entities.num_labels == 1
    assert found.graph.entities.label(found.graph.entities.id("http://a.b/e1")) == "one"
    assert "literals" in found.notes


def test_sources_and_groups_with_the_same_identifiers_stay_apart(tmp_path: Path) -> None:
    """PrimeKG numbers genes, diseases and phenotypes from the same numbers; so does Neo4j."""
    header = PRIMEKG[0]
    rows = [header, ("r", "r", "0", "7", "gene", "A", "NCBI", "1", "7", "disease", "B", "MONDO")]
    prime = read(tmp_path / "prime", {"kg.csv": lines(rows, ",")})
    assert facts(prime) == [("NCBI:7", "r", "MONDO:7")]
    assert prime.graph.entities.label_array.to_pylist() == ["B", "A"]
    neo = {
        "people.csv": ":ID(Person),name,:LABEL\n1,Ann,Person\n",
        "films.csv": ":ID(Film),title,:LABEL\n1,Alien,Film;Work\n",
        "saw.csv": ":START_ID(Person),:END_ID(Film)\n1,1\n",
    }
    found = read(tmp_path / "neo", neo)
    assert facts(found) == [("Person:1", "saw", "Film:1")]
    assert found.graph.entities.label_array.to_pylist() == ["Alien", "Ann"]


def test_what_is_known_is_not_lost_to_a_blank_or_a_vaguer_word(tmp_path: Path) -> None:
    content = {
        "edges.tsv": "subject\tpredicate\tobject\na\tp\tb\n",
        "nodes_1.tsv": "id\tname\tcategory\na\taspirin\tbiolink:SmallMolecule\nb\t\tbiolink:Disease\n",
        "nodes_2.tsv": "id\tname\tcategory\na\tunknown\tbiolink:NamedThing\nb\tpain\t\n",
        "nodes_3.tsv": "id\tname\tcategory\na\tASA\tbiolink:ChemicalEntity\nb\tb\tbiolink:NamedThing\n",
    }
    found = read(tmp_path / "in", content)
    entities = found.graph.entities
    assert entities.label_array.to_pylist() == ["aspirin", "pain"]
    assert entities.category_array.to_pylist() == ["SmallMolecule", "Disease"]
    assert found.counts["conflicting names"] == 1


def test_splits_of_files_are_kept_and_times_split(tmp_path: Path) -> None:
    content = {
        "train2id.txt": "2\n0 1 0\n1 2 0\n", "valid2id.txt": "1\n0 2 0\n", "test2id.txt": "1\n2 0 0\n",
        "entity2id.txt": "3\nx 0\ny 1\nz 2\n", "relation2id.txt": "1\nr 0\n",
    }  # fmt: skip
    graph = read(tmp_path / "in", content).graph
    assert (len(graph.train), len(graph.valid), len(graph.test)) == (2, 1, 1)
    assert graph.entities.name(graph.test[0, 0]) == "z"
    dated = "".join(f"a{i}\tr\tb\t2014-0{9 - i}-01\n" for i in range(8))
    found = read(tmp_path / "dated", {"all.tsv": dated}, split="time",
                 valid_fraction=0.25, test_fraction=0.25)  # fmt: skip
    names = found.graph.entities
    assert {names.name(h) for h in found.graph.test[:, 0]} == {"a0", "a1"}
    assert {names.name(h) for h in found.graph.valid[:, 0]} == {"a2", "a3"}


DIRTY = [
    "e0 \tr1\te1",
    "e0\tr1\te2\u00a0",
    "e1\tr1 \tSj\u00f6gren",
    "e2\tr1\tSjo\u0308gren",
    "e1\tr1\te2",
]


def test_clean_makes_one_name_of_several_spellings(tmp_path: Path) -> None:
    text = "\n".join(DIRTY) + "\n"
    assert read(tmp_path / "in", {"a.txt": text}).graph.num_entities == 7
    cleaned = read(tmp_path / "in", {}, clean=True)
    assert list(cleaned.graph.entities) == ["Sj\u00f6gren", "e0", "e1", "e2"]
    assert list(cleaned.graph.relations) == ["r1"]
    assert cleaned.counts["cleaned"] == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.tsv.gz", gzip.compress(b"a\tb\tc\n" * 2**19)),
        ("bomb.zip", b""),
        ("long.csv", b"a,b," + b"c" * 2**25),
        ("wide.csv", b",".join([b"x"] * 5000) + b"\n"),
        ("binary.txt", bytes(range(256)) * 10),
        ("utf16.txt", "a\tb\tc\n".encode("utf-16")),
        ("ragged.tsv", b"a\tb\tc\na\tb\n"),
        ("empty.tsv", b"a\tr\tb\na\tr\t\n"),
        ("bad.nt", b"<a> <b>\n"),
        ("bad.parquet", b"PAR1" * 9),
        ("bad.npz", b"PK\x03\x04" * 9),
        ("bad.zip", b"PK\x03\x04" * 9),
        ("one.txt", b"word\nword\n"),
        ("counted.txt", b"9\n0 1 0\n1 0 0\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "FREE_BYTES", 2**20)
    if name == "bomb.zip":
        content = zipped({"a.tsv": "a\tb\tc\n" * 2**19})
    with pytest.raises(DataError) as raised:
        read(tmp_path / "in", {name: content})
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 800


@pytest.mark.parametrize("role", ["", "weight", "stated"])
def test_a_column_of_zeros_and_ones_is_asked_for(tmp_path: Path, role: str) -> None:
    rows = [(*row, str(i % 2)) for i, row in enumerate(FACTS)]
    columns = f"head=1,relation=2,tail=3,{role}=4" if role else ""
    if not role:
        with pytest.raises(DataError):
            read(tmp_path / "in", {"train.tsv": lines(rows)})
        return
    found = facts(read(tmp_path / "in", {"train.tsv": lines(rows)}, columns=columns))
    assert found == sorted(FACTS if role == "weight" else FACTS[1::2])


@pytest.mark.parametrize(("fourth", "is_weight"), [(7_000, False), (0.5, True)])
def test_whole_numbers_that_hardly_repeat_are_no_weights(
    tmp_path: Path, fourth: float, is_weight: bool
) -> None:
    rows = [(f"e{n % 7}", f"r{n % 3}", f"e{n}", str(fourth + n)) for n in range(30)]
    found = read(tmp_path / "in", {"graph.tsv": lines(rows)})
    assert ("weight" in found.notes) is is_weight
    assert len(facts(found)) == len(rows)


def test_weights_are_used_where_asked(tmp_path: Path) -> None:
    rows = [(*row, f"{1 + i / 8}") for i, row in enumerate(FACTS)]
    rows.append((*FACTS[0], "2"))
    settings = {"valid_fraction": 0, "test_fraction": 0}
    plain = read(tmp_path / "in", {"all.tsv": lines(rows)}, **settings)
    assert plain.graph.weights is None
    assert "weight" in plain.notes
    found = read(tmp_path / "in", {}, weights="use", **settings).graph
    names = found.entities.name, found.relations.name
    weights = {
        (names[0](h), names[1](r), names[0](t)): weight
        for (h, r, t), weight in zip(found.train.tolist(), found.weights, strict=True)
    }
    assert weights == {row: 1 + i / 8 + 2 * (i == 0) for i, row in enumerate(FACTS)}
    assert found.fingerprint != plain.graph.fingerprint
    made = ["--weights=use", "--valid-fraction=0", "--test-fraction=0"]
    assert clew(["data", str(tmp_path / "in"), *made, f"--output-dir={tmp_path / 'made'}"]) == 0
    again = load_graph(TripleData(path=str(tmp_path / "made"), weights="use"))
    assert again.fingerprint == found.fingerprint
    for wrong in ("0", "-1", "inf", "much"):
        with pytest.raises(DataError) as caught:
            read(tmp_path / "bad", {"a.tsv": lines([*rows[:3], (*FACTS[4], wrong)])},
                 weights="use", columns="head,relation,tail,weight")  # fmt: skip
        assert ", line 4: " in str(caught.value)
    with pytest.raises(DataError):
        load_graph(TripleData(name="umls", weights="use"))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.txt"])
def test_lines_are_counted_with_blank_ones_and_comments(tmp_path: Path, name: str) -> None:
    separator = {"a.tsv": "\t", "a.csv": ",", "a.txt": " "}[name]
    head = "#made-by-hand\nsubject predicate object negated\n\n# more\n" + "a p b no\n" * 3
    text = (head + "\n\na p b perhaps\na p c no\n").replace(" ", separator)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "in", {name: text})
    assert ", line 10: " in str(caught.value)
    found = read(tmp_path / "in", {name: text.replace("perhaps", "no")})
    assert facts(found) == [("a", "p", "b"), ("a", "p", "c")]


def test_a_quote_after_a_backslash_is_refused(tmp_path: Path) -> None:
    """Spark and MySQL write it so; it would end the value."""
    rows = ['"a ""b""",p,c', '"a \\""",p,d', '"path\\",p,e']
    assert len(facts(read(tmp_path / "in", {"a.csv": "\n".join(rows) + "\n"}))) == 3
    rows.append('"a \\"x\\", y",p')
    with pytest.raises(DataError, match="line 4"):
        read(tmp_path / "in", {"a.csv": "\n".join(rows) + "\n"})


@pytest.mark.parametrize("row", ['"a {i}" "r" "b"', '"a" "r" "b {i}"', '"a|{i}"|"r"|"b"'])
def test_a_separator_inside_of_quotes_is_refused(tmp_path: Path, row: str) -> None:
    """R's `write.table` separates quoted values with spaces."""
    text = "".join(row.format(i=i) + "\n" for i in range(9))
    with pytest.raises(DataError, match="quotes"):
        read(tmp_path / "in", {"a.txt": text})
    whole = text.replace(" {i}", "{i}").replace("a ", "a").replace("b ", "b").replace("a|", "a ")
    assert read(tmp_path / "in", {"a.txt": whole}).graph.num_relations == 1


@pytest.mark.parametrize(
    "header", ["head,relation,tail,weight", '"head","relation","tail","weight"']
)
def test_a_header_that_is_repeated_is_no_fact(tmp_path: Path, header: str) -> None:
    """`cat a.csv b.csv`"""
    half = "a,p,b,1\na,q,c,2\n"
    text = f"{header}\n{half}{header}\nb,p,c,perhaps\n"
    with pytest.raises(DataError, match="line 5"):
        read(tmp_path / "in", {"a.csv": text}, weights="use", valid_fraction=0.0, test_fraction=0.0)
    found = read(tmp_path / "in", {"a.csv": text.replace("perhaps", "3")}, weights="use")
    assert facts(found) == [("a", "p", "b"), ("a", "q", "c"), ("b", "p", "c")]
    assert "headers" in found.notes


def test_training_takes_the_same_files(tmp_path: Path) -> None:
    """`data.train` with five columns, and dictionaries in PyKEEN's order."""
    found = read(tmp_path / "in", PLAIN["OpenBioLink"])
    graph = load_graph(TripleData(train=str(tmp_path / "in/train.tsv")))
    assert len(graph.train) == len(FACTS)
    assert list(graph.entities) == list(found.graph.entities)
    read(tmp_path / "pykeen", PLAIN["PyKEEN"])
    graph = load_graph(
        TripleData(
            train=str(tmp_path / "pykeen/train.txt"),
            entity_to_id=str(tmp_path / "pykeen/entity_to_id.tsv"),
            relation_to_id=str(tmp_path / "pykeen/relation_to_id.tsv"),
        )
    )
    assert list(graph.entities) == ENTITIES


SOME = [(f"a{i % 7}", f"r{i % 3}", f"b{i % 5}") for i in range(30)]
JSON_EXPORT = [
    {"type": "node", "id": "0", "labels": ["Gene"], "properties": {"name": "first"}},
    {"type": "node", "id": "1", "labels": ["Drug"], "properties": {"name": "second"}},
    {"type": "relationship", "id": "0", "label": "BINDS", "start": {"id": "1", "labels": ["Drug"]},
     "end": {"id": "0", "labels": ["Gene"]}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("nell.tsv", "Entity\tRelation\tValue\tIteration of Promotion\tProbability", "{h}\t{r}\t{t}\t9\t0.5"),
        ("pharm.csv", "Entity1_name,relationship_type,Entity2_name,PubMed_ID", "{h},{r},{t},7"),
        ("ctd.csv", "# Fields:\n# ChemicalID,Interaction,GeneID\n#", "{h},{r},{t}"),
    ],
)  # fmt: skip
def test_the_header_of_a_published_table_is_no_fact(name, header, row, tmp_path):
    text = "\n".join([header, *(row.format(h=h, r=r, t=t) for h, r, t in SOME)]) + "\n"
    columns = "head=ChemicalID,relation=Interaction,tail=GeneID" if name == "ctd.csv" else ""
    assert facts(read(tmp_path, {name: text}, columns=columns)) == sorted(set(SOME))


def test_ids_of_facts_are_no_heads(tmp_path):
    text = "".join(f"/a/{i}\t{r}\t{h}\t{t}\t{{}}\n" for i, (h, r, t) in enumerate(SOME))
    with pytest.raises(DataError):
        read(tmp_path, {"assertions.tsv": text})
    found = read(tmp_path, {"assertions.tsv": text}, columns="relation=2,head=3,tail=4")
    assert facts(found) == sorted(set(SOME))


def test_neo4j_json_export_is_read_as_its_csv(tmp_path):
    text = "".join(json.dumps(record) + "\n" for record in JSON_EXPORT)
    found = read(tmp_path, {"all.jsonl": text})
    assert facts(found) == [("1", "BINDS", "0")]
    assert [found.graph.entities.label(i) for i in range(2)] == ["first", "second"]
    assert found.graph.entities.category_array.to_pylist() == ["Gene", "Drug"]


def test_numbered_copies_beside_triples_are_left_out(tmp_path):
    files = {"train.txt": lines(SOME), "train.del": "0\t0\t1\n", "entity_ids.del": "0\ta0\n",
             "train.del-True-t-False.pckl": b"\0\1", "dataset.yaml": "dataset:"}  # fmt: skip
    assert facts(read(tmp_path, files)) == sorted(set(SOME))


@pytest.mark.parametrize("name", ["/secret.tsv", "../secret.tsv", "a/../../secret.tsv"])
def test_a_zip_file_gives_no_files_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.tsv").write_text("a\tr\tb\n")
    outside = str(tmp_path / "secret.tsv") if name.startswith("/") else name
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "graph.zip").write_bytes(zipped({outside: "c\tr\td\n"}))
    with pytest.raises(DataError):
        import_graph("g", [tmp_path / "in" / "graph.zip"], ImportSettings())
