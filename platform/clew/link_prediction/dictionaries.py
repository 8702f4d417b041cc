"""Reads dictionaries `name<TAB>id`, and turns fields of data files into ids.

A field is looked up as a name. A field that is not a name but a whole number (`0`, `17`, not `017`)
is an id. If any name in the dictionary is itself a whole number, every field is a name. Therefore,
a field has only one meaning, which does not depend on the rest of the file.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, quoted
from clew.link_prediction.fields import Layout, read_coded
from clew.link_prediction.vocabulary import Kind, Vocabulary

DICTIONARY = Layout(("name", "id"))
WHOLE_NUMBER = r"\A(?:0|[1-9][0-9]{0,9})\z"


def read_dictionary(path: Path, kind: Kind) -> Vocabulary:
    """Read a dictionary; its ids must be 0, 1, 2 and so on, each once, in any order."""
    (codes,), values = read_coded([path], DICTIONARY)
    names = values.take(pa.array(codes[:, 0]))
    ids = _whole_numbers(path, values.take(pa.array(codes[:, 1])), names)
    _refuse_repeats(path, codes[:, 0], "name", names)
    _refuse_repeats(path, ids, "id", names)
    _refuse_gaps(path, ids, names)
    name_array = names.take(pa.array(np.argsort(ids)))
    may_be_ids = not pc.any(pc.match_substring_regex(name_array, WHOLE_NUMBER)).as_py()
    return Vocabulary(kind, name_array, fields_may_be_ids=may_be_ids)


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


def _whole_numbers(path: Path, fields: pa.StringArray, names: pa.StringArray) -> np.ndarray:
    is_number = np.asarray(pc.match_substring_regex(fields, WHOLE_NUMBER), dtype=bool)
    if is_number.all():
        return np.asarray(fields.cast(pa.int64()))
    row = int(np.argmin(is_number))
    swapped = pc.all(pc.match_substring_regex(names, WHOLE_NUMBER)).as_py()
    hint = "the columns seem to be swapped" if swapped else "ids are whole numbers from 0"
    raise DataError(
        f"{path}, line {row + 1}: {quoted(fields[row].as_py())} is not an id; expected "
        f"{DICTIONARY}, {hint}"
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
