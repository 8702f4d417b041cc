"""Tables as they are published: stray quotes, ids of several kinds, other files beside them."""

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import input_files
from clew.config.data import ImportSettings
from clew.errors import DataError
from clew.link_prediction import other_formats
from clew.link_prediction.imports import import_graph
from tests.link_prediction.test_imports import PRIMEKG, facts, lines, read

ROWS = [(f"e{i % 7}", f"r{i % 2}", f"e{(i * 3 + 1) % 11}") for i in range(40)]
DISTINCT = sorted(set(ROWS))


def with_notes(separator, notes, names=("head", "relation", "tail", "note")):
    rows = [(*row, notes.get(i, f"note {i}")) for i, row in enumerate(DISTINCT)]
    return lines([names, *rows], separator)


def test_a_stray_quote_in_any_column_swallows_no_row(tmp_path):
    strays = {5: '"abc', 20: '"abc'}
    assert facts(read(tmp_path / "bars", {"kg.txt": with_notes("|", strays)})) == DISTINCT
    cases = (
        *(("," if i % 2 else ";", {5: '"abc', 20: end}) for i, end in enumerate(('"a', 'b"'))),
        (",", {5: '"abc'}),
        (",", {0: '"abc', 1: 'd"'}),
        (",", {5: '"5 ""inch"" x', 20: '"a, b"'}),
    )
    for i, (separator, notes) in enumerate(cases):
        with pytest.raises(DataError, match=rf"line {min(notes) + 2}\b"):
            read(tmp_path / str(i), {"kg.csv": with_notes(separator, notes)})


def test_a_value_may_have_several_lines_and_a_mark_of_inches(tmp_path):
    notes = {3: '"two\nlines, ""here"""', 5: '5"', 9: '7" or "8', 11: '"a, b"'}
    assert facts(read(tmp_path, {"kg.csv": with_notes(",", notes)})) == DISTINCT


def test_rows_that_r_numbers_have_one_column_more_than_their_header(tmp_path):
    header = ("head", "relation", "tail")
    for name, mark in (("tabs", "\t"), ("spaces", " ")):
        rows = [(str(i), *(f'"{text}"' for text in row)) for i, row in enumerate(DISTINCT, 1)]
        quoted_header = [f'"{text}"' for text in header]
        assert (
            facts(read(tmp_path / name, {"kg.txt": lines([quoted_header, *rows], mark)}))
            == DISTINCT
        )
    weighted = [(*row, str(i)) for i, row in enumerate(DISTINCT)]  # the last column has no name
    with pytest.raises(DataError, match="line 2"):
        read(tmp_path / "weighted", {"kg.txt": lines([header, *weighted], "\t")})


def test_lines_in_a_value_may_look_like_a_row(tmp_path):
    named = lines([("head", "relation", "tail"), *DISTINCT], ",")
    for i, nodes in enumerate((
        'id,name,description\ne1,B,"first line\nsecond, with, commas\nthird"\ne2,C,7" or 8"\n',
        'id,name\ne1,"line one\nand two, with one comma\nthree"\ne2,C\n',
    )):  # fmt: skip
        found = read(tmp_path / str(i), {"edges.csv": named, "nodes.csv": nodes})
        assert found.graph.entities.label(found.graph.entities.id("e2")) == "C"


KINDS = [row.split() for row in ("0 drug p 0 gene", "1 drug q 0 gene", "D2 drug p 1 gene")]


def test_one_number_of_two_kinds_is_two_entities(tmp_path):
    names = ("source_id", "source_type", "relation", "target_id", "target_type")
    nodes = lines(
        [("id", "name", "kind"), ("0", "zero", "drug"), ("0", "null", "Gene"), ("7", "x", "cell")]
    )
    content = {"train.tsv": lines([names, *KINDS[:2]]), "test.tsv": lines([names, KINDS[2]])}
    found = read(tmp_path / "numbers", content | {"nodes.tsv": nodes})
    entities = found.graph.entities
    assert list(entities) == ["D2", "drug:0", "drug:1", "gene:0", "gene:1"]
    assert entities.label(entities.id("gene:0")) == "null"
    assert found.notes["identifiers"].endswith("1 of nodes in no fact, such as 'cell:7'")
    # A name has one meaning; numbers that no two kinds share stay as they are.
    rows = ("x_type x_id relation y_type y_id", "Gene X:1 p Protein X:1", "Gene 7 p Protein 8")
    found = read(tmp_path / "names", {"kg.csv": lines(map(str.split, rows), ",")})
    assert list(found.graph.entities) == ["7", "8", "X:1"]
    rows = (*rows, "Gene 8 p Disease NAME", "gene NAME p gene 8")
    found = read(tmp_path / "some", {"kg.csv": lines(map(str.split, rows), ",")})
    assert list(found.graph.entities) == ["Gene:7", "Gene:8", "NAME", "Protein:8", "X:1"]


@pytest.mark.parametrize("form", ["CUI", "identifier", "iri", "idx", "accession", "ID"])
def test_an_identifier_is_preferred_to_a_name(tmp_path, form):
    names = ("PREDICATE", f"SUBJECT_{form}", "SUBJECT_NAME", f"OBJECT_{form}", "OBJECT_NAME")
    rows = [names, ("p", "C1", "cold", "D1", "x"), ("p", "C2", "cold", "D1", "x")]
    entities = read(tmp_path, {"kg.csv": lines(rows, ",")}).graph.entities
    assert list(entities) == ["C1", "C2", "D1"]
    assert entities.label(1) == "cold"


def test_blank_nodes_of_two_files_stay_apart(tmp_path):
    triple = "_:b0 <http://x/p> <http://x/e0> .\n"
    found = read(tmp_path, {"a.nt": triple, "b.nt": triple + "_:b0 <http://x/p> _:b1 .\n"})
    assert found.graph.num_entities == 4
    assert len(facts(found)) == 3
    alone = read(tmp_path / "alone", {"a.nt": triple}).graph.entities
    assert list(alone) == ["_:b0", "http://x/e0"]


def of_kgx(rows):
    edges = [dict(zip(("subject", "predicate", "object"), row, strict=True)) for row in rows]
    nodes = [{"id": "e0", "name": "zero", "category": ["biolink:Gene", "biolink:NamedThing"]}]
    return {"nodes": nodes, "edges": [{**edges[0], "negated": True}, *edges[1:]]}


def of_hetionet(rows):
    ids = ([["Gene", int(e[1:])] for e in (h, t)] for h, _, t in rows)
    edges = [
        {"source_id": h, "target_id": t, "kind": row[1], "direction": "both", "data": {}}
        for row, (h, t) in zip(rows, ids, strict=True)
    ]
    nodes = [{"kind": "Gene", "identifier": 0, "name": "zero", "data": {"source": "x"}}]
    return {"kind_to_abbrev": {}, "metaedge_tuples": [], "nodes": nodes, "edges": edges}


def test_json_that_is_too_large_is_json(tmp_path, monkeypatch):
    monkeypatch.setattr(other_formats, "MAX_JSON_BYTES", 2**10)
    with pytest.raises(DataError, match=r"kg\.json: .*0 MiB"):
        read(tmp_path, {"kg.json": json.dumps(of_kgx(DISTINCT))})


def test_graphs_in_json_are_read(tmp_path):
    kgx, hetionet = json.dumps(of_kgx(DISTINCT)), json.dumps(of_hetionet(DISTINCT))
    found = read(tmp_path / "kgx", {"kg.json": kgx, "LICENSE.txt": "free"})
    assert facts(found) == DISTINCT[1:]
    assert found.graph.entities.label(0) == "zero"
    assert "LICENSE.txt" in found.notes["files not read"]
    edges = json.dumps(of_kgx(DISTINCT)["edges"])
    assert facts(read(tmp_path / "array", {"kg.json": edges})) == DISTINCT[1:]
    found = read(tmp_path / "hetionet", {"kg.json": hetionet})
    expected = sorted(
        (f"Gene::{h[1:]}", f"Gene {r} Gene", f"Gene::{t[1:]}") for h, r, t in DISTINCT
    )
    assert facts(found) == expected
    assert found.graph.entities.label(0) == "zero"
    found = read(tmp_path / "beside", {"kg.tsv": lines(DISTINCT), "kg.json": kgx, "x.owl": "<"})
    assert facts(found) == DISTINCT
    assert found.notes["files not read"] == "kg.json, x.owl"
    with pytest.raises(DataError, match=r"a\.pdf"):
        read(tmp_path / "none", {"a.pdf": "", "nodes.tsv": "id\tname\na\tb\n"})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kg.json", '{"name": "x", "version": 1}'),
        ("kg.json", '[["a", "p", "b"], ["a", "p", "c"]]'),
        ("kg.json", '{"nodes": [1], "edges": []}'),
        ("kg.json", '{"nodes": [], "edges": [}'),
        ("kg.json", "[" * 100_000),
        ("kg.json", "[]"),
        ("kg.json", '{"nodes": [], "edges": []}'),
        ("kg.txt", '[{"subject": "a", "predicate": "p", "object": "b"},\n{"subject": "a"}]'),
        ("kg.rdf", "<rdf:RDF>\n"),
        ("kg.tsv", '<?xml version="1.0"?>\n<a b="c">\n'),
        ("kg.owl", "Prefix(:=<http://x/>)\n"),
        ("kg.jsonld", '[{"@id": "http://x/a", "http://x/p": [{"@id": "http://x/b"}]}]'),
        ("kg.n3", "<a> <b> <c> .\n"),
    ],
)
def test_what_is_no_table_is_not_read_as_one(tmp_path, name, content):
    with pytest.raises(DataError, match=rf"{name}: "):
        read(tmp_path, {name: content})


def test_words_in_the_names_of_files_are_whole_words(tmp_path):
    names = [("e0", "Drug"), ("e1", "Drug"), ("r0", "Drug")]
    content = {
        "licensed_drugs.tsv": lines(DISTINCT[:20]),
        "other.tsv": lines(DISTINCT[20:]),
        "LICENSE": "be kind",
        "nodes_release_2024.tsv": lines(
            [("id", "name", "kind"), *((a, a * 2, b) for a, b in names)]
        ),
        "relation_labels.tsv": lines([("id", "name", "kind"), ("r1", "is known", "")]),
    }
    found = read(tmp_path, content)
    assert facts(found) == DISTINCT
    assert found.graph.entities.label(0) == "e0e0"
    assert found.graph.relations.label(1) == "is known"
    assert found.notes["files not read"] == "LICENSE"


@pytest.mark.parametrize(
    ("separator", "start"), [("\t", ""), (",", "# by: me\n"), ("\t", "#x y\n")]
)
def test_rows_whose_first_name_begins_with_a_hash_are_kept(tmp_path, separator, start):
    rows = sorted([(f"#tag{i}", "r0", "e0") for i in range(6)] + DISTINCT)
    assert facts(read(tmp_path / "plain", {"kg.txt": start + lines(rows, separator)})) == rows
    named = start + lines([("#head", "relation", "tail"), *rows], separator)
    assert facts(read(tmp_path / "named", {"kg.txt": named})) == rows
    named = start + lines([("subject", "predicate", "object"), *rows], separator)
    assert facts(read(tmp_path / "above", {"kg.txt": named})) == rows


def test_quotes_of_r_are_removed_from_every_column(tmp_path):
    names = ("subject", "predicate", "object", "negated")
    quoted = [
        [f'"{value}"' for value in row] for row in [names, *((*r, "FALSE") for r in DISTINCT)]
    ]
    quoted[1][3] = '"TRUE"'
    plain = lines([names[:3], *DISTINCT[1:]])
    found = read(tmp_path, {"a.tsv": lines(quoted), "b.tsv": plain})
    assert facts(found) == DISTINCT[1:]
    assert found.counts["denied"] == 1
    assert "quotes" in found.notes


@pytest.mark.parametrize(
    "names",
    [
        "protein1 protein2 combined_score",
        "gene1 gene2 weight",
        "node1 node2 score",
        "source target",
        "Gene_A Gene_B experimental combined_score",
    ],
)
def test_two_ends_and_a_score_are_facts_of_one_relation(tmp_path, names):
    width = len(names.split())
    rows = [(h, t, "5", "7")[:width] for h, _, t in DISTINCT]
    found = read(tmp_path, {"string.links.v12.txt": lines([names.split(), *rows], " ")})
    assert facts(found) == sorted({(h, "string.links.v12", t) for h, _, t in DISTINCT})


@pytest.mark.parametrize("start", ["", "molecule other strength\n"])
def test_a_column_of_numbers_is_no_tail_in_silence(tmp_path, start):
    rows = lines([(h, t, str(i / 9)) for i, (h, _, t) in enumerate(DISTINCT)], " ")
    with pytest.raises(DataError, match="weight=3"):
        read(tmp_path, {"kg.txt": start + rows})
    found = read(tmp_path, {"kg.txt": rows}, columns="head=1,tail=2,weight=3")
    assert facts(found) == sorted({(h, "kg", t) for h, _, t in DISTINCT})
    found = read(tmp_path, {"kg.txt": rows}, columns="head=1,relation=2,tail=3")
    assert len(facts(found)) == len(rows.splitlines())


def test_a_comment_names_the_columns_of_a_wide_table(tmp_path):
    rows = [(h, h, "50-00-27", t, t, "human, mostly") for h, _, t in DISTINCT]
    titles = "# Report: today\n#\n# Fields:\n# Chemical,ChemicalID,Cas,Symbol,GeneID,Organism\n#\n"
    table = lines([[f'"{value}"' for value in row] for row in rows], ",")
    with pytest.raises(DataError, match="ChemicalID"):
        read(tmp_path, {"ctd.csv": titles + table})
    found = read(tmp_path, {"ctd.csv": titles + table}, columns="head=ChemicalID,tail=GeneID")
    assert facts(found) == sorted({(h, "ctd", t) for h, _, t in DISTINCT})


def test_other_files_of_a_download_are_left_out_and_named(tmp_path):
    ids = lines([("2",), ("e0", "0"), ("e1", "1")])
    content = {
        "entity2id.txt": ids,
        "relation2id.txt": "1\nr0\t0\n",
        "train2id.txt": "1\n0 1 0\n",
        "test2id.txt": "1\n1 0 0\n",
        "test2id_all.txt": "1\n0\t1 0 0\n",
        "type_constrain.txt": "1\n0\t2\t0\t1\n",
        "n-n.txt": "1\n1 0 0\n",
    }
    found = read(tmp_path / "openke", content | {"call.sh": "x\n", "all.tar.gz": "x"})
    assert len(facts(found)) == 2
    assert found.notes["files not read"].count(", ") == 4
    content = {
        "wikidata5m_train.txt": lines(DISTINCT),
        "wikidata5m_entity.txt": "e0\tzero\tnull\tnothing\ne1\tone\n",
        "wikidata5m_relation.txt": "r0\tis\tis a\tbe\nr1\thas\n",
    }
    found = read(tmp_path / "wikidata", content)
    assert facts(found) == DISTINCT
    assert found.graph.entities.label(0) == "zero"
    assert found.graph.relations.label(0) == "is"


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_more_compressions_are_read(tmp_path, pack, monkeypatch):
    suffix = {bz2.compress: "bz2", lzma.compress: "XZ"}[pack]
    text, name = lines(DISTINCT).encode(), f"KG.TSV.{suffix}"
    found = read(tmp_path / "two", {name: pack(text[:9]) + pack(text[9:])})
    assert facts(found) == DISTINCT
    with pytest.raises(DataError, match="KG"):
        read(tmp_path / "cut", {name: pack(text)[:-12]})
    monkeypatch.setattr(input_files, "FREE_BYTES", 1000)
    with pytest.raises(DataError, match=f"KG.* {input_files.MAX_RATIO} times"):
        read(tmp_path / "bomb", {name: pack(bytes(2**22))})


def test_what_is_no_file_of_facts_is_refused_with_its_name(tmp_path):
    record = json.dumps(dict(zip(("subject", "predicate", "object"), DISTINCT[0], strict=True)))
    assert len(facts(read(tmp_path / "end", {"a.jsonl": f"{record}\n\n"}))) == 1
    with pytest.raises(DataError, match="line 2"):
        read(tmp_path / "middle", {"a.jsonl": f"{record}\n\n{record}\n"})
    with pytest.raises(DataError, match=r"a\.csv"):
        read(tmp_path / "header", {"a.csv": "subject,predicate,object\n"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "kg.tgz").write_bytes(b"x")
    for name in ("pipe", "loop", "kg.tgz"):
        with pytest.raises(DataError, match=rf"{name}: "):
            import_graph("g", [tmp_path / name], ImportSettings())


def test_lines_are_counted_after_a_value_of_several_lines(tmp_path):
    rows = ['a,p,b,no,"x\ny\nz"', "a,p,c,no,x", "# comment", "a,p,d,perhaps,x"]
    text = "\n".join(["head,relation,tail,negated,note", *rows]) + "\n"
    with pytest.raises(DataError, match=r"line 7.*perhaps"):
        read(tmp_path, {"kg.csv": text})


def test_a_file_of_names_alone_has_no_facts(tmp_path):
    with pytest.raises(DataError, match=r"kg\.tsv") as refused:
        read(tmp_path, {"kg.tsv": "head\trelation\ttail\n"})
    assert "denied" not in str(refused.value)


def test_a_first_column_may_have_two_lines(tmp_path):
    content = {
        "edges.csv": lines([("head", "relation", "tail"), *DISTINCT], ","),
        "nodes.csv": 'name,id,kind\n"B\nC",e1,x\nD,e2,x\n',
    }
    assert read(tmp_path, content).graph.entities.label(1) == "B C"


def parquet(columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


ENDS = dict(
    zip(("subject", "predicate", "object"), map(list, zip(*ROWS, strict=True)), strict=True)
)


def test_a_nested_column_beside_facts_is_not_used(tmp_path):
    nothing = [None] * 39
    nested = {"sources": [[{"id": "x"}], *nothing], "score": [{"a": 1}, *nothing]}
    nested |= {"picture": [b"\xff", *nothing], "lasts": [timedelta(1), *nothing]}
    found = read(tmp_path, {"kg.parquet": parquet(ENDS | nested)})
    assert facts(found) == DISTINCT
    assert "sources (1)" in found.notes["other columns"]
    for head in ("subject", "from"):
        wrong = {"to" if head == "from" else "object": ENDS["object"], "type": ENDS["predicate"]}
        wrong[head] = [{"id": name} for name in ENDS["subject"]]
        with pytest.raises(DataError, match=r"kg\.parquet"):
            read(tmp_path, {"kg.parquet": parquet(wrong)})
    other = parquet(ENDS | {"other": ENDS["object"]}).replace(b"other", b"oth\xf4r")
    with pytest.raises(DataError, match=r"kg\.parquet"):
        read(tmp_path, {"kg.parquet": other})


def test_files_that_are_packed_themselves_are_unpacked_first(tmp_path):
    content = parquet(ENDS)
    with zipfile.ZipFile(tmp_path / "kg.zip", "w") as archive:
        archive.writestr("kg.parquet", content)
    (tmp_path / "kg.parquet.gz").write_bytes(gzip.compress(content))
    for name in ("kg.zip", "kg.parquet.gz"):
        with pytest.raises(DataError, match=r"kg\.parquet.*unpack it first"):
            import_graph("g", [tmp_path / name], ImportSettings())


def test_two_dictionaries_of_the_same_kind_are_one_or_refused(tmp_path):
    ids = {"entity2id.txt": "2\na\t0\nb\t1\n", "relation2id.txt": "1\nr\t0\n"}
    content = ids | {"train2id.txt": "1\n0 1 0\n", "entity_to_id.tsv": "a\t0\nb\t1\n"}
    assert facts(read(tmp_path, content)) == [("a", "r", "b")]
    with pytest.raises(DataError, match="entity ids"):
        read(tmp_path, {"entity_to_id.tsv": "b\t0\na\t1\n"})


def test_a_node_that_is_not_of_neo4j_keeps_its_name(tmp_path):
    nodes = [{"type": "node", "id": "e0", "name": "zero"}, {"type": "node", "id": "e1"}]
    text = "".join(json.dumps(node) + "\n" for node in nodes)
    found = read(tmp_path, {"kg.tsv": lines(DISTINCT), "nodes.jsonl": text})
    assert found.graph.entities.label(0) == "zero"


@pytest.mark.parametrize(("labels", "expected"), [(("r", "s"), ["r", "s"]), (("", ""), ["kg"])])
def test_the_direction_of_an_edge_is_no_relation(tmp_path, labels, expected):
    rows = [("a", "b", "Directed", "0", labels[0]), ("b", "c", "Undirected", "1", labels[1])]
    table = lines([("Source", "Target", "Type", "Id", "Label"), *rows], ",")
    assert list(read(tmp_path, {"kg.csv": table}).graph.relations) == expected


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a\tr\tb\rb\tr\tc\r", "carriage returns"),
        ("@prefix x: <http://x/> .\nx:a\tx:r\tx:b\t.\n", r"\.ttl"),
        ("<http://x/a> <http://x/r> <http://x/b> .\n", r"\.nt"),
    ],
)
def test_what_is_wrong_with_all_lines_is_named(tmp_path, content, named):
    with pytest.raises(DataError, match=named):
        read(tmp_path, {"kg.tsv": content})


def test_annotations_of_go_are_read_with_what_they_deny(tmp_path):
    rows = [
        ("DB", h, f"N{h}", f"{'NOT|' * (h == 'e1')}{r}", t, "x", "IEA", "", "F", "", "", "protein",
         "taxon:1", "20240101", "x", "", "")
        for h, r, t in DISTINCT
    ]  # fmt: skip
    found = read(tmp_path, {"goa.gaf": "!gaf-version: 2.2\n!\n" + lines(rows)})
    kept = [row for row in DISTINCT if row[0] != "e1"]
    assert facts(found) == kept
    assert found.counts["denied"] == len(DISTINCT) - len(kept)
    assert found.graph.entities.label(0) == "Ne0"


WIDE = {
    "unknown": (("geneId", "DSI", "diseaseId", "value"), [("7", "0.5", "C1", "2")] * 3),
    "none": ((), [("CID1", "CID0", "C1", "LLT", "C1", "pain")] * 3),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_table_without_usual_names_is_asked_for(tmp_path, name):
    header, rows = WIDE[name]
    content = {"kg.tsv": lines([header, *rows] if header else rows)}
    with pytest.raises(DataError, match="--columns"):
        read(tmp_path, content)
    columns = "head=geneId,tail=diseaseId" if header else "head=1,tail=3"
    assert facts(read(tmp_path, content, columns=columns)) == [(rows[0][0], "kg", "C1")]


def test_a_measure_is_no_tail_of_numbered_ends(tmp_path):
    rows = [(str(i), str(i + 3), f"{i}.5") for i in range(9)]
    with pytest.raises(DataError, match="weight=3"):
        read(tmp_path, {"kg.tsv": lines(rows)})


def test_a_second_column_of_few_words_is_a_kind(tmp_path):
    nodes = lines([(f"e{i}", ("GENE", "DRUG")[i % 2]) for i in range(20)])
    entities = read(tmp_path, {"edges.csv": lines(DISTINCT), "nodes.csv": nodes}).graph.entities
    assert entities.label_array is None
    assert entities.category_array[entities.id("e1")].as_py() == "DRUG"


IDS = {name: i for i, name in enumerate(sorted({e for h, _, t in DISTINCT for e in (h, t)}))}
NUMBERED = lines([(str(IDS[h]), r[1:], str(IDS[t])) for h, r, t in DISTINCT])


@pytest.mark.parametrize("header", ["entity\tid", "Name\tNummer", "id\tentity"])
def test_the_first_line_of_a_dictionary_can_name_its_columns(tmp_path, header):
    pairs = [(e, str(i)) if header[0] != "i" else (str(i), e) for e, i in IDS.items()]
    content = {
        "train.txt": NUMBERED + "\n",  # with a blank line at the end
        "entities.txt": f"{header}\n" + lines(pairs),
        "predicate2id.txt": "r0\t0\nr1\t1\n",
    }
    assert facts(read(tmp_path, content)) == DISTINCT


def test_columns_are_those_of_the_files_that_have_them(tmp_path):
    swapped = lines([(h, t, r) for h, r, t in DISTINCT])
    ids = {"entity2id.txt": lines([(e, str(i)) for e, i in IDS.items()])}
    found = read(tmp_path / "numbers", {"train.txt": swapped} | ids, columns="head,tail,relation")
    assert facts(found) == DISTINCT
    content = {
        "edges.csv": lines([("drug", "act", "disease"), *DISTINCT], ","),
        "nodes.csv": "id,name,kind\ne0,zero,Gene\n",
    }
    found = read(tmp_path / "names", content, columns="head=drug,relation=act,tail=disease")
    assert facts(found) == DISTINCT
    assert found.graph.entities.label(0) == "zero"
    with pytest.raises(DataError, match="drugs"):
        read(tmp_path / "names", {}, columns="head=drugs,relation=act,tail=disease")


def test_a_list_of_names_and_other_files_beside_facts_are_not_read(tmp_path):
    content = {
        "train.tsv": lines(DISTINCT), "entities.txt": "e0\ne1\n", "relations.txt": "r0\n",
        "stat.txt": "11\t2\t0\n", "base.pth": b"PK\0\0",
        "wordnet-mlj12-definitions.txt": lines([("e0", "__a_1", "being")]),
    }  # fmt: skip
    assert facts(read(tmp_path, content)) == DISTINCT
    with pytest.raises(DataError, match=r"train\.tsv"):
        read(tmp_path, {"train.tsv": "a::r::b\n"})
    with pytest.raises(DataError, match=r"entities\.txt"):
        import_graph("g", [tmp_path / "entities.txt"], ImportSettings())


def test_names_of_nodes_belong_to_the_index_that_edges_use(tmp_path):
    content = {
        "edges.csv": "relation,display_relation,x_index,y_index\nr,r,0,1\nr,r,1,2\n",
        "nodes.csv": "node_index,node_id,node_type,node_name,node_source\n"
        "0,2,gene,zero,NCBI\n1,0,gene,one,NCBI\n2,1,gene,two,NCBI\n",
    }
    names = read(tmp_path, content).graph.entities
    assert [names.label(i) for i in range(3)] == ["zero", "one", "two"]


def test_quotes_after_a_space_are_removed(tmp_path):
    rows = [[f'"{value}"' for value in row] for row in DISTINCT]
    assert facts(read(tmp_path, {"kg.csv": lines(rows, ", ")})) == DISTINCT


def test_a_file_with_a_header_alone_has_no_facts_and_does_no_harm(tmp_path):
    header = ("head", "relation", "tail")
    content = {"train.tsv": lines([header, *DISTINCT]), "test.tsv": lines([header])}
    assert facts(read(tmp_path, content)) == DISTINCT


def test_what_says_more_of_relations_and_entities_is_no_fact(tmp_path):
    content = {
        "drkg.tsv": lines(DISTINCT),
        "relation_glossary.tsv": "Relation-name\tData-source\tDescription\nr0\tx\ty\n",
        "entity2src.tsv": "e0\tHetionet\ne1\tHetionet\tGNBR\n",
        "biokg.metadata.drug.tsv": "e0\tNAME\tLepirudin\n",
    }
    found = read(tmp_path, content)
    assert facts(found) == DISTINCT
    assert all(name in found.notes["files not read"] for name in list(content)[1:])


def test_edges_of_primekg_are_not_read_twice(tmp_path):
    rows = [dict(zip(PRIMEKG[0], row, strict=True)) for row in PRIMEKG[1:]]
    edges = ["relation", "display_relation", "x_index", "y_index"]
    content = {
        "edges.csv": lines([edges, *([row[name] for name in edges] for row in rows)], ","),
        "nodes.csv": "node_index,node_id,node_type,node_name,node_source\n0,x,gene,zero,NCBI\n",
    }
    alone = read(tmp_path, {"kg.csv": lines(PRIMEKG, ",")})
    assert read(tmp_path, content).graph.fingerprint == alone.graph.fingerprint
