"""Dictionaries `name<TAB>id` and the unique meaning of a field."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import DataError
from clew.link_prediction.descriptions import read_dictionary
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.vocabulary import Vocabulary


def test_ids_may_stand_in_any_order(write) -> None:
    vocabulary = read_dictionary(write("ids.txt", "c\t2\na\t0\nb\t1\n"), "entity")
    assert list(vocabulary) == ["a", "b", "c"]
    assert vocabulary.fields_may_be_ids


def meaning(field: str, names: list[str], may_be_ids: bool) -> int:
    """Return the id of one field by the module's rule, or -1."""
    if field in names:
        return names.index(field)
    if may_be_ids and field.isascii() and field.isdecimal() and str(int(field)) == field:
        return int(field) if int(field) < len(names) else -1
    return -1


@given(
    st.lists(st.sampled_from(["a", "b", "01", "-1", "1.0", "c"]), min_size=1, unique=True),
    st.lists(
        st.sampled_from(["a", "c", "0", "1", "2", "01", "-1", "+1", "1.0", "9", "x", "٣", "9" * 30])
    ),
    st.booleans(),
)
def test_fields_mean_what_the_rule_says(names: list[str], fields: list[str], may: bool) -> None:
    vocabulary = Vocabulary("entity", pa.array(names), fields_may_be_ids=may)
    found = fields_to_ids(pa.array(fields, pa.string()), vocabulary)
    assert found.tolist() == [meaning(field, names, may) for field in fields]


def test_names_that_are_whole_numbers_leave_no_room_for_ids(write) -> None:
    vocabulary = read_dictionary(write("ids.txt", "7\t0\na\t1\n"), "entity")
    assert not vocabulary.fields_may_be_ids
    assert fields_to_ids(pa.array(["7", "0", "a"]), vocabulary).tolist() == [0, -1, 1]


def test_numbers_with_leading_zeros_are_names(write) -> None:
    vocabulary = read_dictionary(write("ids.txt", "00260881\t0\n00000001\t1\n"), "entity")
    assert fields_to_ids(pa.array(["00000001", "0"]), vocabulary).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a\t0\nb\t1\na\t2\n", 3),
        ("a\t0\nb\t1\nc\t1\n", 3),
        ("a\t0\nb\t3\nc\t1\n", 2),
        ("a\t1\nb\t2\n", 2),
        ("a\t0\nb\tx\n", 2),
        ("a\t0\n\n# x\nb\tx\n", 4),
        ("a\t-1\n", 1),
        ("3\na\t0\nb\t1\n", 1),
        ("id\tlabel\n0\ta\n2\tb\n", 3),
        ("", None),
    ],
)
def test_bad_dictionaries_are_refused(write, content: str, line: int | None) -> None:
    path = write("ids.txt", content)
    with pytest.raises(DataError) as caught:
        read_dictionary(path, "entity")
    assert str(caught.value).startswith(f"{path}, line {line}: " if line else f"{path}: ")


@pytest.mark.parametrize(
    "content",
    [
        "0\ta\n1\tb\n2\tc\n",
        "1\tb\n2\tc\n0\ta\n",
        "3\na\t0\nb\t1\nc\t2\n",
        "3\na 0\nb 1\nc 2\n",
        "\x1c3\r\na\t0\r\nb\t1\r\nc\t2\r\n",
        "id\tlabel\n0\ta\n1\tb\n2\tc\n",
        "label\tid\nc\t2\na\t0\nb\t1\n",
    ],
)
def test_published_dictionaries_are_read(write, content: str) -> None:
    """Ids first, OpenKE's count, PyKEEN's header."""
    assert list(read_dictionary(write("ids.txt", content), "entity")) == ["a", "b", "c"]
