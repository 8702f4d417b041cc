r"""Reads dictionaries `name<TAB>id`, turns fields of data files into ids, and reads labels.

A field is looked up as a name. A field that is not a name but a whole number (`0`, `17`, not `017`)
is an id. If any name in the dictionary is itself a whole number, every field is a name. Therefore,
a field has only one meaning, which does not depend on the rest of the file.

A table of labels contains `id<TAB>name`. Further columns contain the kind (`Drug`, `Disease`) and
other names, separated by `|`. Labels of relations can also be in a JSON edge map from predicate to
label. `id` and predicate are written as in the triples. A file can contain more or fewer entries
than the graph. An entity or relation without a label is shown by its name.

In JSON, a label is a text, an object with `label` or `name`, or an object with `predicate` and
qualifiers. If no key is a relation of the graph, the map is read in reverse
(`{"{\"predicate\": \"biolink:treats\"}": "predicate:0"}`): its values are the relations and its
keys are the labels. Such a key can also be one of these objects, written as text.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, described, quoted
from clew.input_files import line_blocks
from clew.link_prediction.fields import Layout, read_coded
from clew.link_prediction.formats import read_file
from clew.link_prediction.vocabulary import Kind, Vocabulary

DICTIONARY = Layout(("name", "id"))
WHOLE_NUMBER = r"\A(?:0|[1-9][0-9]{0,9})\z"


def read_dictionary(path: Path, kind: Kind) -> Vocabulary:
    """Read a dictionary; its ids must be 0, 1, 2 and so on, each once, in any order.

    A header, OpenKE's count and ids before names (PyKEEN) are understood.
    """
    first = next(line_blocks(path)).partition(b"\n")[0]
    if first.strip().isdigit() or {b"id", b"label", b"name"} >= set(first.lower().split(b"\t")):
        part = read_file(path)[0]
        if not part.holds.endswith("ids"):
            raise DataError(f"{path}: no column holds the ids 0, 1, 2 and so on, each once")
        names = part.columns["name"].cast(pa.string())
        return Vocabulary(kind, names, fields_may_be_ids=may_be_ids(names))
    (codes,), values = read_coded([path], DICTIONARY)
    is_id = np.asarray(pc.match_substring_regex(values, WHOLE_NUMBER), dtype=bool)
    if is_id[codes[:, 0]].all() and not is_id[codes[:, 1]].all():
        codes = codes[:, ::-1]
    names = values.take(pa.array(codes[:, 0]))
    ids = _whole_numbers(path, values.take(pa.array(codes[:, 1])))
    _refuse_repeats(path, codes[:, 0], "name", names)
    _refuse_repeats(path, ids, "id", names)
    _refuse_gaps(path, ids, names)
    name_array = names.take(pa.array(np.argsort(ids)))
    return Vocabulary(kind, name_array, fields_may_be_ids=may_be_ids(name_array))


def may_be_ids(names: pa.StringArray) -> bool:
    """Whether fields can be ids beside these names: none of them is itself a whole number."""
    return not pc.any(pc.match_substring_regex(names, WHOLE_NUMBER)).as_py()


def fields_to_ids(fields: pa.StringArray, vocabulary: Vocabulary) -> np.ndarray:
    """Return the ids of fields `(field,)` as int32, -1 for an unknown field."""
    ids = vocabulary.find(fields)
    if vocabulary.fields_may_be_ids:
        unknown = np.flatnonzero(ids < 0)
        texts = fields.take(pa.array(unknown))
        is_number = np.asarray(pc.match_substring_regex(texts, WHOLE_NUMBER), dtype=bool)
        numbers = np.asarray(texts.filter(pa.array(is_number)).cast(pa.int64()))
        ids[unknown[is_number]] = np.where(numbers < len(vocabulary), numbers, -1)
    return ids


def _whole_numbers(path: Path, fields: pa.StringArray) -> np.ndarray:
    is_number = np.asarray(pc.match_substring_regex(fields, WHOLE_NUMBER), dtype=bool)
    if is_number.all():
        return np.asarray(fields.cast(pa.int64()))
    row = int(np.argmin(is_number))
    raise DataError(
        f"{path}, line {row + 1}: {quoted(fields[row].as_py())} is not an id; expected "
        f"{DICTIONARY}, ids are whole numbers from 0"
    )


def _refuse_repeats(path: Path, values: np.ndarray, what: str, names: pa.StringArray) -> None:
    """Refuse a name or an id that is on two lines."""
    order = np.argsort(values, kind="stable")
    repeats = order[1:][values[order[1:]] == values[order[:-1]]]
    if len(repeats):
        row = int(repeats.min())
        earlier = int(np.argmax(values == values[row]))
        name = quoted(names[row].as_py())
        text = name if what == "name" else f"{values[row]} (of {name})"
        raise DataError(
            f"{path}, line {row + 1}: {what} {text} is already on line {earlier + 1}; each "
            f"{what} must be unique"
        )


def _refuse_gaps(path: Path, ids: np.ndarray, names: pa.StringArray) -> None:
    """Refuse n different ids that are not exactly 0 to n - 1."""
    too_large = np.flatnonzero(ids >= len(ids))
    if len(too_large):
        row = int(too_large[0])
        missing = int(np.setdiff1d(np.arange(len(ids)), ids)[0])
        raise DataError(
            f"{path}, line {row + 1}: id {ids[row]} of {quoted(names[row].as_py())}, but id "
            f"{missing} is missing; {len(ids)} lines need the ids 0 to {len(ids) - 1} without gaps"
        )


log = logging.getLogger(__name__)

MAX_EDGE_MAP_BYTES = 2**26
COLUMNS = ("id", "name", "kind", "synonyms")


def read_labels(path: Path, vocabulary: Vocabulary) -> Vocabulary:
    first_line = next(line_blocks(path)).partition(b"\n")[0]
    num_columns = min(max(first_line.count(b"\t") + 1, 2), len(COLUMNS))
    (codes,), values = read_coded([path], Layout(COLUMNS[:num_columns], empty_fields=True))
    ids = fields_to_ids(values.take(pa.array(codes[:, 0])), vocabulary)
    labels = values.take(pa.array(codes[:, 1]))
    found = _labelled(path, vocabulary, ids, labels, unit="line")
    places = _places(ids, len(vocabulary))
    kinds, synonyms = (
        values.take(pa.array(codes[:, column])).take(places) if column < num_columns else None
        for column in (2, 3)
    )
    if kinds is not None:
        found = replace(found, category_array=pc.if_else(pc.equal(kinds, ""), None, kinds))
    if synonyms is not None:
        found = replace(found, synonym_array=pc.if_else(pc.equal(synonyms, ""), None, synonyms))
    return found


def read_edge_map(path: Path, relations: Vocabulary) -> Vocabulary:
    edge_map = _read_json_object(path)
    keys, values = list(edge_map), list(edge_map.values())
    ids = _ids_of(keys, relations)
    texts = values
    if (ids < 0).all():
        ids = _ids_of([value if isinstance(value, str) else "" for value in values], relations)
        texts = [_parsed_object(key) for key in keys]
    labels = [_label_text(path, key, text) for key, text in zip(keys, texts, strict=True)]
    return _labelled(path, relations, ids, pa.array(labels, pa.string()), unit="entry")


def _labelled(
    path: Path, vocabulary: Vocabulary, ids: np.ndarray, labels: pa.StringArray, *, unit: str
) -> Vocabulary:
    """Give the name with id `ids[i]` the label `labels[i]`; id -1 is not in the graph."""
    known = np.flatnonzero(ids >= 0)
    if len(known) == 0:
        raise DataError(
            f"{path}: labels {len(ids)} names, but no {vocabulary.kind} of the graph, which has "
            f"for example {vocabulary.name(0)!r}; expected labels of the same graph"
        )
    _refuse_two_labels(path, vocabulary, ids, labels, unit=unit)
    taken = labels.take(_places(ids, len(vocabulary)))
    found = len(vocabulary) - taken.null_count
    log.info("%s: labels of %d of %d %s names", path, found, len(vocabulary), vocabulary.kind)
    return vocabulary.with_labels(taken)


def _places(ids: np.ndarray, num_names: int) -> pa.Array:
    """Return the position of each name in `ids`; null if it is not in `ids`."""
    known = np.flatnonzero(ids >= 0)
    source = np.full(num_names, -1)
    source[ids[known]] = known
    return pa.array(source, mask=source < 0)


def _refuse_two_labels(
    path: Path,
    vocabulary: Vocabulary,
    ids: np.ndarray,
    labels: pa.StringArray,
    *,
    unit: str,
) -> None:
    """Refuse two different labels of one name; a repeated label is allowed."""
    known = np.flatnonzero(ids >= 0)
    codes = np.asarray(labels.dictionary_encode().indices)
    order = known[np.argsort(ids[known], kind="stable")]
    first, second = order[:-1], order[1:]
    clash = np.flatnonzero((ids[first] == ids[second]) & (codes[first] != codes[second]))
    if len(clash):
        here, there = int(second[clash[0]]), int(first[clash[0]])
        raise DataError(
            f"{path}, {unit} {here + 1}: label {quoted(labels[here].as_py())} of "
            f"{quoted(vocabulary.name(ids[here]))}, which {unit} {there + 1} labels "
            f"{quoted(labels[there].as_py())}; expected one label per name"
        )


def _ids_of(names: list[str], vocabulary: Vocabulary) -> np.ndarray:
    return fields_to_ids(pa.array(names, pa.string()), vocabulary)


def _read_json_object(path: Path) -> dict[str, object]:
    if path.is_file() and path.stat().st_size > MAX_EDGE_MAP_BYTES:
        raise DataError(
            f"{path}: larger than {MAX_EDGE_MAP_BYTES:,} bytes; expected an object from predicate "
            "to label"
        )
    text = b"".join(line_blocks(path))
    try:
        content = json.loads(text)
        json.dumps(content, ensure_ascii=False).encode()  # fails for a lone surrogate
    except json.JSONDecodeError as error:
        line = text.split(b"\n")[error.lineno - 1].decode("utf-8", "replace")
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}) in {quoted(line)}; expected an "
            "object from predicate to label"
        ) from None
    except UnicodeDecodeError as error:
        number = text.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {number}: byte 0x{text[error.start]:02x} is not UTF-8; save the file as "
            "UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON that can be used ({described(error)})") from None
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: expected a JSON object from predicate to label")
    return content


def _parsed_object(key: str) -> object:
    try:
        content = json.loads(key)
    except (ValueError, RecursionError):
        return key
    return content if isinstance(content, dict) else key


def _label_text(path: Path, key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in ("label", "name"):
            if isinstance(value.get(name), str):
                return str(value[name])
        if isinstance(value.get("predicate"), str):
            qualifiers = [f"{k}: {v}" for k, v in value.items() if k != "predicate" and v]
            shown = f" ({', '.join(qualifiers)})" if qualifiers else ""
            return f"{value['predicate']}{shown}"
    raise DataError(
        f"{path}: the label of {quoted(key)} is {quoted(json.dumps(value))}; expected a text, or "
        "an object with label, name or predicate"
    )
