"""What a source denies is never read as a fact: names of files, and names and values of columns."""

import json
from pathlib import Path

import pytest

from clew.config.data import ImportSettings, TripleData
from clew.errors import DataError
from clew.link_prediction.imports import Imported, import_graph
from clew.link_prediction.sources import load_graph

FACTS = [(f"e{i % 7}", f"r{i % 3}", f"e{7 + i % 11}") for i in range(24)]
KEPT = [row for i, row in enumerate(FACTS) if i % 3]
ALL = {"valid_fraction": 0.0, "test_fraction": 0.0}
BY_NUMBER = "head=1,relation=2,tail=3"


def table(rows, separator="\t") -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


def marked(false: str, true: str, header: str = "") -> str:
    """Return the facts with a column in which every third value is `false`."""
    rows = [(*row, true if i % 3 else false) for i, row in enumerate(FACTS)]
    return table([tuple(header.split("\t"))] * bool(header) + rows)


def read(place: Path, content: dict[str, str], **settings: object) -> Imported:
    for name, text in content.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return import_graph("g", [place], ImportSettings(**settings))


def facts(found: Imported) -> list[tuple[str, str, str]]:
    graph = found.graph
    rows = [row for split in (graph.train, graph.valid, graph.test) for row in split.tolist()]
    names = graph.entities.name, graph.relations.name, graph.entities.name
    return sorted(tuple(name(i) for name, i in zip(names, row, strict=True)) for row in rows)


def sizes(found: Imported) -> tuple[int, int, int]:
    return len(found.graph.train), len(found.graph.valid), len(found.graph.test)


SAMPLES = {
    "train_sample.csv": table([(*row, "1") for row in FACTS[:12]]),
    "negative_train_sample.csv": table([(*row, "0") for row in FACTS[12:18]]),
    "test_sample.csv": table([(*row, "1") for row in FACTS[18:22]]),
    "negative_test_sample.csv": table([(*row, "0") for row in FACTS[22:]]),
}
CODEX = {
    "train.txt": table(FACTS[:12]),
    "valid.txt": table(FACTS[12:15]),
    "valid_negatives.txt": table(FACTS[15:18]),
    "test.txt": table(FACTS[18:21]),
    "test_negatives.txt": table(FACTS[21:]),
}
SCORED = table([(*row, "700", "SOURCE") for row in FACTS])


@pytest.mark.parametrize(
    ("content", "expected", "denied"),
    [
        (CODEX, (12, 3, 3), 6),
        (SAMPLES, (12, 0, 4), 8),
        ({"edges.csv": SCORED, "TN_edges.csv": table([("x", "r0", "y", "9", "S")])}, (24, 0, 0), 1),
        ({"a.tsv": table(FACTS), "hardNegatives.tsv": "n0\tr0\tn1\n"}, (24, 0, 0), 1),
        ({"a.tsv": table(FACTS), "negatives/a.tsv": "n0\tr0\tn1\n"}, (24, 0, 0), 1),
        ({"a.tsv": table(FACTS), "negative.txt": "n0\tr0\tn1\n"}, (24, 0, 0), 1),
        ({"a.tsv": table(FACTS), "test_neg2id.txt": "n0\tr0\tn1\n"}, (24, 0, 0), 1),
        *(
            ({"a.tsv": table(FACTS[1:]), name: table(FACTS[:1])}, (24, 0, 0), 0)
            for name in (
                "negative_regulation.tsv",
                "triple_negative_breast_cancer.tsv",
                "negative_allosteric_modulator.tsv",
                "HIV_negative.tsv",
                "tn.tsv",
                "false_positives/a.tsv",
            )
        ),
        ({"negative_edges.tsv": marked("no", "yes", "head\trelation\ttail\ttruth")}, (16, 0, 0), 8),
    ],
)
def test_facts_of_files_that_are_called_negative_are_denied(
    tmp_path: Path, content: dict[str, str], expected: tuple[int, int, int], denied: int
) -> None:
    found = read(tmp_path / "in", content, **ALL)
    assert (sizes(found), found.counts["denied"]) == (expected, denied)
    assert "weight" not in found.notes or "edges.csv" in content
    silent = [path for path, said in found.read.items() if "egatives" in path and "den" not in said]
    assert not silent


def test_denied_facts_of_a_file_can_be_relations_of_their_own(tmp_path: Path) -> None:
    found = read(tmp_path / "in", CODEX, negated="relation")
    assert sizes(found) == (12, 6, 6)
    assert {name.partition(";")[2] for name in found.graph.relations} == {"", "negated=true"}


def test_negatives_need_no_weights(tmp_path: Path) -> None:
    content = {"train.tsv": marked("0.5", "2.5"), "negatives.tsv": table(FACTS[:2])}
    found = read(tmp_path / "in", content, weights="use", **ALL)
    assert sizes(found) == (24, 0, 0)
    assert found.graph.weights is not None


NEGATED_NAMES = [
    "negated", "Negated", "is_negated", "isNegated", "is_negative", "isNegative", "negation", "neg",
    "not", "biolink:negated", "edge_negated", "is_false",
]  # fmt: skip


@pytest.mark.parametrize("chosen", ["", "head=subject,relation=predicate,tail=object"])
@pytest.mark.parametrize("name", NEGATED_NAMES)
def test_a_column_of_any_name_for_it_denies(tmp_path: Path, name: str, chosen: str) -> None:
    text = marked("true", "false", f"subject\tpredicate\tobject\t{name}")
    assert facts(read(tmp_path / "in", {"a.tsv": text}, columns=chosen)) == sorted(KEPT)


def test_chosen_columns_drop_nothing_that_others_say(tmp_path: Path) -> None:
    keys = ("drug", "action", "disease")
    records = [
        dict(zip(keys, row, strict=True)) | {"negated": not i % 3, "split": "training"}
        for i, row in enumerate(FACTS)
    ]
    records[1]["split"] = "dev"
    text = "".join(json.dumps(record) + "\n" for record in records)
    chosen = "head=drug,relation=action,tail=disease"
    found = read(tmp_path / "in", {"edges.jsonl": text}, columns=chosen)
    assert facts(found) == sorted(KEPT)
    assert sizes(found) == (15, 1, 0)
    with pytest.raises(DataError):
        read(tmp_path / "b", {"a.tsv": marked("0", "1")}, columns=BY_NUMBER)


@pytest.mark.parametrize("values", [("0", "1"), ("False", "True"), ("-1", "1"), ("no", "yes")])
@pytest.mark.parametrize("name", ["label", "is_true", "truth", "stated"])
def test_a_column_beside_a_relation_says_what_is_true(
    tmp_path: Path, name: str, values: tuple[str, str]
) -> None:
    text = marked(*values, f"head\trelation\ttail\t{name}")
    found = read(tmp_path / "in", {"a.tsv": text})
    assert facts(found) == sorted(KEPT)
    assert any(name in note for note in found.notes.values())


@pytest.mark.parametrize("name", ["class", "edge_class", "target", "valid", "is_valid", "gold"])
def test_a_named_column_that_may_deny_is_asked_for(tmp_path: Path, name: str) -> None:
    text = marked("0", "1", f"head\trelation\ttail\t{name}")
    with pytest.raises(DataError):
        read(tmp_path / "in", {"a.tsv": text})
    assert facts(read(tmp_path / "in", {}, columns=f"unused={name}")) == sorted(FACTS)
    assert facts(read(tmp_path / "in", {}, columns=f"stated={name}")) == sorted(KEPT)


@pytest.mark.parametrize("values", [("negative", "positive"), ("-", "+"), ("false", "true")])
def test_the_sign_of_an_effect_denies_nothing(tmp_path: Path, values: tuple[str, str]) -> None:
    text = marked(*values, "head\trelation\ttail\tpolarity")
    assert facts(read(tmp_path / "in", {"a.tsv": text})) == sorted(FACTS)


def test_a_label_that_is_a_text_denies_nothing(tmp_path: Path) -> None:
    text = marked("treats", "1", "head\trelation\ttail\tlabel")
    assert facts(read(tmp_path / "in", {"a.tsv": text})) == sorted(FACTS)


def test_a_relation_of_zeros_and_ones_is_asked_for(tmp_path: Path) -> None:
    text = table([("source", "target", "label"), *((h, t, str(i % 2)) for i, (h, _, t) in enumerate(FACTS))])  # fmt: skip  # noqa: E501
    with pytest.raises(DataError):
        read(tmp_path / "in", {"a.tsv": text})
    assert list(read(tmp_path / "in", {}, columns="relation=label").graph.relations) == ["0", "1"]
    assert list(read(tmp_path / "in", {}, columns="stated=label").graph.relations) == ["a"]


@pytest.mark.parametrize(
    "values", [("0", "1"), ("0.0", "1.0"), ("-", "+"), ("False", "True"), ("0", "0"), ("no", "yes")]
)
def test_an_unnamed_column_that_may_deny_is_asked_for(
    tmp_path: Path, values: tuple[str, str]
) -> None:
    place, text = tmp_path / "in", marked(*values) + "\n"
    with pytest.raises(DataError):
        read(place, {"a.tsv": text})
    assert facts(read(place, {}, columns=f"{BY_NUMBER},unused=4")) == sorted(FACTS)
    if values[0] != values[1]:
        assert facts(read(place, {}, columns=f"{BY_NUMBER},stated=4")) == sorted(KEPT)


@pytest.mark.parametrize(
    ("form", "header"),
    [
        ("Not", "subject_id\tpredicate_id\tobject_id\tpredicate_modifier"),
        ("NOT", "subject\tpredicate\tobject\tqualifier"),
        ("NOT|part_of", "subject\tpredicate\tobject\trelation_note"),
        ("NOT", ""),
    ],
)
def test_the_value_not_denies(tmp_path: Path, form: str, header: str) -> None:
    found = read(tmp_path / "in", {"a.tsv": marked(form, "", header)})
    assert facts(found) == sorted(KEPT)
    assert found.counts["denied"] == 8


@pytest.mark.parametrize("values", ["true false", "True FALSE", "1 0", "1.0 0.0", "yes no", "1 -1"])
def test_stated_takes_every_spelling(tmp_path: Path, values: str) -> None:
    true, false = values.split()
    found = read(tmp_path / "in", {"a.tsv": marked(false, true)}, columns=f"{BY_NUMBER},stated=4")
    assert facts(found) == sorted(KEPT)


@pytest.mark.parametrize("value", ["perhaps", "2", ""])
def test_stated_takes_nothing_else(tmp_path: Path, value: str) -> None:
    text = table([(*row, "1") for row in FACTS[:4]] + [(*FACTS[4], value)])
    with pytest.raises(DataError) as raised:
        read(tmp_path / "in", {"a.tsv": text}, columns=f"{BY_NUMBER},stated=4")
    assert "a.tsv, line 5" in str(raised.value)
    assert repr(value) in str(raised.value)


def test_an_import_of_denied_facts_alone_is_refused_with_its_counts(tmp_path: Path) -> None:
    text = marked("true", "true", "subject\tpredicate\tobject\tnegated")
    with pytest.raises(DataError) as raised:
        read(tmp_path / "in", {"a.tsv": text})
    assert "a.tsv" in str(raised.value)
    assert "24 denied" in str(raised.value)


def test_not_beside_other_words_of_an_ordinary_column_is_asked_for(tmp_path: Path) -> None:
    text = marked("NOT", "AND", "subject\tpredicate\tobject\tsymbol")
    with pytest.raises(DataError, match="unused=symbol"):
        read(tmp_path / "in", {"a.tsv": text})
    assert facts(read(tmp_path / "in", {}, columns="unused=symbol")) == sorted(FACTS)
    qualified = text.replace("symbol", "qualifier")
    assert facts(read(tmp_path / "in", {"a.tsv": qualified})) == sorted(KEPT)
    unnamed = marked("NOT|enables", "part_of")
    assert facts(read(tmp_path / "in", {"a.tsv": unnamed})) == sorted(KEPT)


@pytest.mark.parametrize("separator", ["|", " ", " | "])
def test_not_before_a_relation_denies(tmp_path: Path, separator: str) -> None:
    rows = [(h, r if i % 3 else f"NOT{separator}{r}", t) for i, (h, r, t) in enumerate(FACTS)]
    rows += [("e1", "Not yet", "e2"), ("e1", "NOTCH", "e2")]
    found = read(tmp_path / "in", {"a.tsv": table(rows)})
    assert (found.counts["denied"], found.graph.num_relations) == (8, 4)


@pytest.mark.parametrize("form", ["NEG_{}", "not_{}", "NOT {}", "not|{}", "semmeddb:neg_{}"])
def test_not_in_a_verb_denies_the_verb(tmp_path: Path, form: str) -> None:
    """SemMedDB has `NEG_TREATS` beside `TREATS`."""
    prefix = "semmeddb:" * form.startswith("semmeddb:")
    named = [(h, f"{prefix}{r}", t) for h, r, t in FACTS]
    rows = [
        (h, r if i % 4 else form.format(r[len(prefix) :]), t) for i, (h, r, t) in enumerate(named)
    ]
    found = read(tmp_path / "in", {"a.tsv": table([*rows, ("e1", "NEG_REGULATION", "e8")])})
    assert (found.counts["denied"], found.graph.num_relations) == (6, 4)


def test_a_negative_effect_denies_nothing(tmp_path: Path) -> None:
    """`neg_regulates` beside `regulates` is another effect, not a denial."""
    rows = [(h, f"neg_{r}" if i % 4 else r, t) for i, (h, r, t) in enumerate(FACTS)]
    found = read(tmp_path / "in", {"a.tsv": table(rows)})
    assert not found.counts["denied"]
    assert (found.counts["edges"], found.graph.num_relations) == (len(FACTS), 6)


def test_training_drops_denied_facts_of_plain_triples_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "train.txt"
    path.write_text(
        table([(h, r if i % 4 else f"NOT|{r}", t) for i, (h, r, t) in enumerate(FACTS)])
    )
    with caplog.at_level("INFO", logger="clew"):
        graph = load_graph(TripleData(train=str(path)))
    assert (len(graph.train), graph.num_relations) == (18, 3)
    assert "denied: 6" in caplog.text


TRAPI_EDGES = [
    {
        "subject": h, "predicate": r, "object": t,
        "attributes": [{"attribute_type_id": "biolink:negated", "value": not i % 3}],
    }
    for i, (h, r, t) in enumerate(FACTS)
]  # fmt: skip


def test_an_attribute_denies(tmp_path: Path) -> None:
    lines = "".join(json.dumps(edge) + "\n" for edge in TRAPI_EDGES)
    assert facts(read(tmp_path / "lines", {"a.jsonl": lines})) == sorted(KEPT)
    nodes = {"e0": {"name": "zero", "categories": ["biolink:Gene"]}}
    graph = {"nodes": nodes, "edges": {f"e{i}": edge for i, edge in enumerate(TRAPI_EDGES)}}
    for name, content in (("kg", graph), ("message", {"message": {"knowledge_graph": graph}})):
        found = read(tmp_path / name, {"a.json": json.dumps(content)})
        entities = found.graph.entities
        assert facts(found) == sorted(KEPT)
        assert entities.label(entities.id("e0")) == "zero"
        assert entities.category_array.drop_null().to_pylist() == ["Gene"]


@pytest.mark.parametrize("clean", [False, True])
def test_facts_that_are_stated_and_denied_are_counted(tmp_path: Path, clean: bool) -> None:
    rows = [(*row, "false") for row in FACTS] + [(f"{h} ", r, t, "true") for h, r, t in FACTS[:3]]
    rows += [(*FACTS[5], "true"), ("new", "r0", "e9", "true")]
    text = table([("head", "relation", "tail", "negated"), *rows])
    found = read(tmp_path / "in", {"a.tsv": text}, clean=clean, **ALL)
    assert facts(found) == sorted(FACTS)
    assert found.counts["denied"] == 5
    assert found.counts["both stated and denied"] == (4 if clean else 1)
    assert (" ".join(FACTS[5]) in found.examples["both stated and denied"]) != clean


@pytest.mark.parametrize("value", ["absent", "Refuted", "negated", "invalid"])
def test_a_word_that_denies_is_asked_for(tmp_path: Path, value: str) -> None:
    text = marked(value, "present", "head\trelation\ttail\tassertion")
    with pytest.raises(DataError, match="stated=assertion"):
        read(tmp_path / "in", {"a.tsv": text})
    assert facts(read(tmp_path / "in", {}, columns="unused=assertion")) == sorted(FACTS)
    assert facts(read(tmp_path / "in", {}, columns="stated=assertion")) == sorted(KEPT)


@pytest.mark.parametrize(
    ("title", "values"),
    [("stated", ("no", "yes")), ("negiert", ("true", "false")), ("biolink:negated", ("true", ""))],
)
def test_a_column_below_a_title_that_is_not_known_denies_nothing_in_silence(
    tmp_path: Path, title: str, values: tuple[str, str]
) -> None:
    text = marked(*values, f"drug\taction\tillness\t{title}")
    for columns in ("", BY_NUMBER):
        with pytest.raises(DataError, match="--header"):
            read(tmp_path / "in", {"a.tsv": text}, columns=columns)
    if title != "negiert":
        assert facts(read(tmp_path / "in", {}, header=True)) == sorted(KEPT)
