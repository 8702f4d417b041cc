"""Files of graphs: triples, dictionaries, labels, edge maps, lists, queries, wrong answers."""

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.link_prediction.given_negatives import read_given_negatives
from clew.link_prediction.sources import leave_out
from clew.link_prediction.triple_files import GraphFiles, read_graph
from clew.link_prediction.triples import KnowledgeGraph
from clew.workflows.explaining.trace_source import read_test_triples, usable
from clew.workflows.predict import read_queries
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import as_json, damaged_bytes, damaged_json, texts
from tests.attack.material import Material

pytestmark = pytest.mark.slow

PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
FILES = {
    "train": "train.txt",
    "valid": "valid.txt",
    "test": "test.txt",
    "entity_to_id": "entities.tsv",
    "relation_to_id": "relations.tsv",
    "entity_labels": "names.tsv",
}


@pytest.fixture(scope="module")
def files(material: Material) -> GraphFiles:
    return GraphFiles(**{field: material.graph / name for field, name in FILES.items()})


@pytest.fixture(scope="module")
def graph(files: GraphFiles) -> KnowledgeGraph:
    return read_graph("attacked", files)


def test_triples_dictionaries_and_labels(files: GraphFiles, place: Path) -> None:
    def case(draw: DrawFn) -> None:
        field = draw(st.sampled_from(sorted(FILES)))
        suffix = draw(st.sampled_from(sorted(PACKED)))
        content = getattr(files, field).read_bytes()
        content = draw(damaged_bytes(content[-draw(st.sampled_from([40, 400, 40_000])) :]))
        packed = PACKED[suffix](content)
        if suffix and draw(st.booleans()):
            packed = draw(damaged_bytes(packed))
        path = place / f"damaged.txt{suffix}"
        path.write_bytes(packed)
        given_files = replace(files, **{field: path})
        if draw(st.booleans()):
            given_files = replace(given_files, entity_to_id=None, relation_to_id=None)
        attempt(lambda: read_graph("attacked", given_files))

    fuzz(0.08, case)


def test_edge_maps(files: GraphFiles, graph: KnowledgeGraph, place: Path) -> None:
    def case(draw: DrawFn) -> None:
        names = [graph.relations.name(i) for i in range(graph.num_relations)]
        forms = [
            {name: name.title() for name in names},
            {name: {"label": name} for name in names},
            {name: {"predicate": name, "qualifier": 1} for name in names},
            {as_json({"predicate": name}).decode(): name for name in names},
            {draw(texts): name for name in names[:3]},
        ]
        path = place / "map.json"
        path.write_bytes(draw(damaged_json(draw(st.sampled_from(forms)))))
        attempt(lambda: read_graph("attacked", replace(files, relation_labels=path)))

    fuzz(0.04, case)


def test_lists_of_wrong_facts(material: Material, graph: KnowledgeGraph, place: Path) -> None:
    def case(draw: DrawFn) -> None:
        path = place / "wrong.txt"
        path.write_bytes(draw(damaged_bytes((material.graph / "wrong.txt").read_bytes())))
        attempt(lambda: leave_out(graph, path))

    fuzz(0.03, case)


def test_triples_to_explain(files: GraphFiles, graph: KnowledgeGraph, place: Path) -> None:
    def case(draw: DrawFn) -> None:
        def read(test: str) -> object:
            return usable(read_test_triples(test, graph), test)

        path = place / "tests.txt"
        if draw(st.booleans()):
            path.write_bytes(draw(damaged_bytes(files.test.read_bytes())))
            attempt(lambda: read(str(path)))
        else:
            text = draw(damaged_bytes(b"virus,causes,disease_or_syndrome"))
            attempt(lambda: read(text.decode("utf-8", "replace")))

    fuzz(0.02, case)


def test_files_of_queries(place: Path) -> None:
    def case(draw: DrawFn) -> None:
        rows = [{"head": "virus", "relation": "causes"}, {"tail": "virus", "relation": "causes"}]
        lines = b"\n".join(map(as_json, rows)) + b"\nvirus\tcauses\t?\n?\tcauses\tvirus\n"
        path = place / "queries.txt"
        one = draw(damaged_json(rows[0])) + b"\n" if draw(st.booleans()) else b""
        path.write_bytes(one + draw(damaged_bytes(lines)))
        attempt(lambda: read_queries(path))

    fuzz(0.03, case)


def test_given_wrong_answers(graph: KnowledgeGraph, place: Path) -> None:
    def case(draw: DrawFn) -> None:
        name, relation = graph.entities.name(0), graph.relations.name(0)
        arrays: dict[str, Any] = {
            "head": np.array([name] * 4),
            "relation": np.array([relation] * 4),
            "tail": np.array([name] * 4),
            "head_neg": np.array([[name] * 3] * 4),
            "tail_neg": np.array([[name] * 3] * 4),
        }
        others = [
            np.zeros(4), np.zeros((4, 3), complex), np.array(7), np.zeros((0, 3)),
            np.array([b"\xff"] * 4), np.array([["\ud800"] * 3] * 4), np.array([{}] * 4, object),
            np.zeros(4, "datetime64[s]"), np.zeros(4, [("a", float)]),
        ]  # fmt: skip
        for key in draw(st.lists(st.sampled_from([*arrays, "head_type"]), max_size=2)):
            arrays[key] = draw(st.sampled_from(others))
        written = io.BytesIO()
        np.savez(written, **arrays)
        path = place / "wrong.npz"
        path.write_bytes(draw(damaged_bytes(written.getvalue(), most=2)))
        attempt(lambda: read_given_negatives(path, graph.entities, graph.relations))

    fuzz(0.02, case)
