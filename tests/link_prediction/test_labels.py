"""Labels of entities and relations in their usual file formats."""

import json

import pytest

from clew.errors import DataError
from clew.link_prediction.descriptions import read_dictionary, read_edge_map, read_labels
from clew.link_prediction.vocabulary import Vocabulary

ENTITIES = Vocabulary.from_names("entity", ["Q1", "Q2", "Q3"])
RELATIONS = Vocabulary.from_names("relation", ["predicate:0", "predicate:1"])


def labels(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.label(id) for id in range(len(vocabulary))]


@pytest.mark.parametrize(
    "content",
    ["Q2\tPeru\nQ1\tChile\nQ9\tMars\n", "Q2\tPeru\tcountry\nQ1\tChile\t\nQ9\tMars\tplanet\n"],
)
def test_tables_with_and_without_kinds(write, content: str) -> None:
    assert labels(read_labels(write("names.tsv", content), ENTITIES)) == ["Chile", "Peru", "Q3"]


def test_tables_may_hold_ids_of_a_dictionary(write) -> None:
    vocabulary = read_dictionary(write("ids.txt", "Q1\t1\nQ2\t0\n"), "entity")
    assert labels(read_labels(write("names.tsv", "0\tPeru\n1\tChile\n"), vocabulary)) == [
        "Peru",
        "Chile",
    ]


def test_empty_labels_and_repeated_lines_do_no_harm(write) -> None:
    path = write("names.tsv", "Q1\t\nQ2\tPeru\nQ2\tPeru\n")
    assert labels(read_labels(path, ENTITIES)) == ["Q1", "Peru", "Q3"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            "Q1\tChile\nQ2\tPeru\nQ1\tCuba\n",
            "Q1: Chile / Cuba",
        ),
        (
            "Chile\tQ1\nPeru\tQ2\n",
            "labels 2 names, but no entity of the graph, which has for example",
        ),
        ("Q1\tChile\nQ2\n", "line 2: "),
        ("Q1\tChile\tx\nQ2\tPeru\n", "line 2: "),
        ("Q1\n", "line 1: "),
        ("", "empty file"),
    ],
)
def test_bad_tables_are_refused(write, content: str, complaint: str) -> None:
    path = write("names.tsv", content)
    with pytest.raises(DataError) as caught:
        read_labels(path, ENTITIES)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


TREATS = json.dumps({"predicate": "biolink:treats", "object_aspect_qualifier": ""})
AFFECTS = json.dumps({"predicate": "biolink:affects", "object_aspect_qualifier": "activity"})


@pytest.mark.parametrize(
    "edge_map",
    [
        {"predicate:0": "treats", "predicate:1": "affects"},
        {
            "predicate:0": {"label": "treats", "description": "x"},
            "predicate:1": {"name": "affects"},
        },
        {"treats": "predicate:0", "affects": "predicate:1", "never": "predicate:2"},
    ],
)
def test_edge_maps_from_predicates_and_to_them(write, edge_map: dict) -> None:
    path = write("edge_map.json", json.dumps(edge_map))
    assert labels(read_edge_map(path, RELATIONS)) == ["treats", "affects"]


@pytest.mark.parametrize(
    "edge_map",
    [
        {"predicate:0": json.loads(TREATS), "predicate:1": json.loads(AFFECTS)},
        {TREATS: "predicate:0", AFFECTS: "predicate:1"},
    ],
)
def test_edge_maps_with_qualifiers(write, edge_map: dict) -> None:
    path = write("edge_map.json", json.dumps(edge_map))
    assert labels(read_edge_map(path, RELATIONS)) == [
        "biolink:treats",
        "biolink:affects (object_aspect_qualifier: activity)",
    ]


def test_keys_that_are_relations_decide_the_direction(write) -> None:
    path = write("edge_map.json", '{"predicate:0": "predicate:1"}')
    assert labels(read_edge_map(path, RELATIONS)) == ["predicate:1", "predicate:1"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            '{"a": "predicate:0", "b": "predicate:0"}',
            "predicate:0: a / b",
        ),
        ('{"a": "b"}', "labels 1 names, but no relation of the graph, which has for example"),
        ('{"predicate:0": 7}', "the label of 'predicate:0' is '7'; expected a text, or an object"),
        ('{"predicate:0": {"x": "y"}}', "the label of 'predicate:0' is"),
        ('{\n"a": "b",\n}', "not JSON"),
        (b'{\n"a": "\xff"}', "byte 0xff in position 8"),
        ("[]", "expected a JSON object from predicate to label"),
        ("{}", "expected a JSON object"),
        ("", "empty file"),
    ],
)
def test_bad_edge_maps_are_refused(write, content: str | bytes, complaint: str) -> None:
    path = write("edge_map.json", content)
    with pytest.raises(DataError) as caught:
        read_edge_map(path, RELATIONS)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert complaint in message
    assert "\n" not in message
