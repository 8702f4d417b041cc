"""Graphs by name and by configuration: the bundled graph, and real ones if they are available."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from clew.config.data import TripleData
from clew.errors import ConfigError, DataError
from clew.input_files import read_lines
from clew.link_prediction.sources import (
    BUNDLED,
    describe,
    leave_out,
    load_graph,
    named_data_sets,
)
from clew.link_prediction.triple_batches import KvsAllExamples
from clew.link_prediction.triples import FilterIndex, KnowledgeGraph
from clew.workflows.data import pack_data

TRAIN = "a\tlikes\tb\nb\tlikes\tc\n"


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEW_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def real(request: pytest.FixtureRequest) -> KnowledgeGraph:
    """Return the data set under CLEW_DATA that the test's parameter names."""
    folder = os.environ.get("CLEW_DATA")
    if not folder or not (Path(folder) / request.param / "train.txt").is_file():
        pytest.skip(f"no {request.param} under CLEW_DATA ({folder or 'not set'})")
    return load_graph(TripleData(name=request.param))


def test_umls_is_bundled_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_DATA", raising=False)
    graph = load_graph(TripleData(name="umls"))
    summary = describe(graph)
    assert (summary["num_entities"], summary["num_relations"]) == (135, 46)
    assert (summary["num_train"], summary["num_valid"], summary["num_test"]) == (5216, 652, 661)
    assert summary["num_unseen_entities"] == 0
    assert (summary["num_duplicates"], summary["num_leaked"]) == (0, 0)
    assert (summary["num_unseen_relations"], summary["num_untrained"]) == (0, 0)
    assert graph.fingerprint == "c68b546f56cdaeed"
    note = (BUNDLED / "umls" / "NOTE.md").read_text(encoding="utf-8")
    for name in ("train.txt", "valid.txt", "test.txt"):
        assert hashlib.sha256((BUNDLED / "umls" / name).read_bytes()).hexdigest() in note


def test_bundled_umls_is_that_of_pykeen() -> None:
    umls = pytest.importorskip("pykeen.datasets.umls")
    for path in (umls.UMLS_TRAIN_PATH, umls.UMLS_VALIDATE_PATH, umls.UMLS_TEST_PATH):
        assert (BUNDLED / "umls" / path.name).read_bytes() == path.read_bytes()


def test_folder_of_a_named_data_set(data_folder: Path, write) -> None:
    write("mine/train.txt.gz", gzip.compress(TRAIN.encode()))
    write("mine/test.txt", "a\tlikes\tc\n")
    write("mine/entity_names.tsv", "a\tAnna\n")
    write("mine/relations.en.json", '{"likes": {"label": "is fond of"}}')
    write("no_data_set/readme.txt", "nothing")
    assert list(named_data_sets()) == ["mine", "umls"]
    graph = load_graph(TripleData(name="mine"))
    assert (graph.name, len(graph.train), len(graph.valid), len(graph.test)) == ("mine", 2, 0, 1)
    assert (graph.entities.label(0), graph.relations.label(0)) == ("Anna", "is fond of")


def test_configuration_overrules_the_folder(data_folder: Path, write) -> None:
    write("mine/train.txt", TRAIN)
    write("mine/entity_names.tsv", "a\tAnna\n")
    config = TripleData(
        name="mine",
        entity_to_id=str(write("ids.txt", "c\t0\nb\t1\na\t2\n")),
        node_name_dict=str(write("other.tsv", "2\tAlbert\n")),
        edge_map=str(write("edges.tsv", "likes\tadores\n")),
    )
    graph = load_graph(config)
    assert (graph.entities.label(2), graph.relations.label(0)) == ("Albert", "adores")


def test_labels_of_the_configuration_are_read_for_a_path_too(write) -> None:
    folder = write("mine/train.txt", TRAIN).parent
    config = TripleData(
        path=str(folder),
        node_name_dict=str(write("names.tsv", "a\tAnna\n")),
        edge_map=str(write("edges.tsv", "likes\tadores\n")),
    )
    graph = load_graph(config)
    assert (graph.entities.label(0), graph.relations.label(0)) == ("Anna", "adores")


def test_unknown_name_lists_what_is_there(data_folder: Path, write) -> None:
    write("mine/train.txt", TRAIN)
    with pytest.raises(ConfigError) as caught:
        load_graph(TripleData(name="fb15k"))
    assert str(caught.value) == (
        f"data.name is 'fb15k'; expected one of mine, umls (CLEW_DATA is {data_folder}), or "
        "data.train with a file of triples"
    )


def test_unknown_name_says_how_to_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"expected one of umls \(set CLEW_DATA to add more"):
        load_graph(TripleData(name="fb15k"))


def test_two_forms_of_one_file_are_refused(data_folder: Path, write) -> None:
    write("mine/train.txt", TRAIN)
    write("mine/train.txt.gz", gzip.compress(TRAIN.encode()))
    with pytest.raises(DataError, match=r"has train\.txt and train\.txt\.gz; expected one"):
        load_graph(TripleData(name="mine"))


@pytest.mark.parametrize(
    ("path", "name"),
    [("kg/train.txt", "kg"), ("kg/train.tsv.gz", "kg"), ("robokop.txt", "robokop")],
)
def test_files_of_the_configuration(write, path: str, name: str) -> None:
    content = gzip.compress(TRAIN.encode()) if path.endswith(".gz") else TRAIN
    graph = load_graph(TripleData(train=str(write(path, content)), valid="", test=""))
    assert (graph.name, len(graph.train), len(graph.valid)) == (name, 2, 0)


def test_empty_path_of_training_triples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.train is ''"):
        load_graph(TripleData(train=""))


def test_summary_counts(graph: KnowledgeGraph) -> None:
    summary = describe(graph)
    splits = [[tuple(row) for row in graph.split(s).tolist()] for s in ("train", "valid", "test")]
    train, valid, test = splits
    assert summary["num_duplicates"] == sum(len(s) - len(set(s)) for s in splits)
    assert summary["num_leaked"] == len(set(train) & set(valid)) + len(set(train) & set(test))
    assert summary["num_unseen_entities"] == 5
    ends = np.array([e for h, _, t in train for e in (h, t)])
    degrees = np.bincount(ends)
    assert (summary["max_degree"], summary["hub"]) == (degrees.max(), f"e{degrees.argmax():02d}")
    assert summary["mean_degree"] == pytest.approx(2 * len(train) / len(set(ends.tolist())))


PUBLISHED = {
    # entities, relations, train, valid, test, entities without a training triple
    "FB15k-237": (14_541, 237, 272_115, 17_535, 20_466, 36),
    "WN18RR": (40_943, 11, 86_835, 3_034, 3_134, 384),
    "codex-s": (2_034, 42, 32_888, 1_827, 1_828, 0),
    "drugmechdb": (5_128, 67, 13_842, 768, 768, 0),
}


@pytest.mark.data
@pytest.mark.parametrize("real", PUBLISHED, indirect=True)
def test_published_counts(real: KnowledgeGraph) -> None:
    summary = describe(real)
    assert (
        summary["num_entities"],
        summary["num_relations"],
        summary["num_train"],
        summary["num_valid"],
        summary["num_test"],
        summary["num_unseen_entities"],
    ) == PUBLISHED[real.name]
    assert (summary["num_duplicates"], summary["num_leaked"]) == (0, 0)


@pytest.mark.data
@pytest.mark.parametrize("real", ["FB15k-237"], indirect=True)
def test_real_graph_reads_as_plain_python_reads_it(real: KnowledgeGraph) -> None:
    path = Path(os.environ["CLEW_DATA"]) / real.name / "test.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [
        "\t".join((real.entities.name(h), real.relations.name(r), real.entities.name(t)))
        for h, r, t in real.test
    ] == lines
    usa = real.entities.id("/m/09c7w0")
    assert real.entities.label(usa) == "United States of America"
    known = {tuple(row) for row in np.concatenate([real.train, real.valid, real.test]).tolist()}
    row, entity = FilterIndex.from_graph(real).lookup(real.test[:, 0], real.test[:, 1])
    heads, relations = real.test[row, 0].tolist(), real.test[row, 1].tolist()
    assert all(triple in known for triple in zip(heads, relations, entity.tolist(), strict=True))
    assert len(KvsAllExamples(real.train, real.num_relations, inverse_relations=True)) == 149_689


@pytest.mark.data
@pytest.mark.parametrize("real", ["codex-s"], indirect=True)
def test_labels_of_a_real_edge_map(real: KnowledgeGraph) -> None:
    assert real.relations.label(real.relations.id("P509")) == "cause of death"
    assert real.relations.num_labels == 42


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"columns": "head,tail,relation"}, "a\tb\tlikes\nb\tc\tlikes\n"),
        ({"clean": True}, "a \tlikes\tb\nb\tlikes\tc \n"),
        ({"header": True}, "drug\taction\tdisease\n" + TRAIN),
        ({}, "head\trelation\ttail\n" + TRAIN),
    ],
)
def test_settings_and_header_count_for_a_file_of_training_triples(
    settings: dict[str, object], text: str, write
) -> None:
    config = TripleData(train=str(write("train.txt", text)), **settings)
    graph = load_graph(config)
    assert (list(graph.entities), list(graph.relations)) == (["a", "b", "c"], ["likes"])
    assert len(graph.train) == 2
    with pytest.raises(ConfigError, match=r"train\.txt"):
        pack_data(config, write("x", "").with_name("packed"))


@pytest.mark.parametrize("first", ["e1\tr\te2\n", "node\ttype\tclass\n"])
def test_a_first_triple_that_could_name_columns_is_a_triple(first: str, write) -> None:
    head, relation, tail = first.split()
    later = f"{tail}\t{relation}\tx\n"
    file = str(write("train.txt", first + later))
    parts = {"valid_fraction": 0.0, "test_fraction": 0.0}
    for config in (TripleData(train=file), TripleData(path=file, **parts)):
        graph = load_graph(config)
        assert len(graph.train) == 2
        assert head in graph.entities


@pytest.mark.parametrize("text", ["head\tpart_of\tbody\n", "a\tsubject\tb\n"])
def test_a_name_of_a_column_can_be_a_name_too(text: str, write) -> None:
    file = write("train.txt", "head\trelation\ttail\n" + TRAIN + text)
    assert len(load_graph(TripleData(train=str(file))).train) == 3


@pytest.mark.parametrize("key", ["columns", "clean", "negated", "weights", "split", "seed"])
def test_settings_that_would_change_nothing_are_refused(key: str) -> None:
    value = {"columns": "head,tail", "clean": True, "negated": "relation", "weights": "use",
             "split": "time", "seed": 1}[key]  # fmt: skip
    sources = [{"packed": "x"}, *([{"name": "umls"}] if key in ("split", "seed") else [])]
    for source in sources:
        with pytest.raises(ValueError, match=f"data.{key}"):
            TripleData(**source, **{key: value})


def test_lists_saved_by_a_spreadsheet_begin_with_no_mark(write) -> None:
    graph = load_graph(TripleData(train=str(write("train.txt", TRAIN))))
    marked = write("list.txt", "\ufeffa\tlikes\tb\n")
    assert len(leave_out(graph, marked).train) == 1
    assert read_lines(marked) == ["a\tlikes\tb"]
