r"""Dictionaries `name<TAB>id`: what is wrong with one, and the ids of fields of data files.

A field is looked up as a name. A field that is not a name but a whole number (`0`, `17`, not `017`)
is an id. If any name in the dictionary is itself a whole number, every field is a name. Therefore,
a field has only one meaning, which does not depend on the rest of the file.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import quoted
from clew.link_prediction.vocabulary import Vocabulary

WHOLE_NUMBER = r"\A(?:0|[1-9][0-9]{0,9})\z"


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


def fault_of_ids(ids: pa.StringArray, lines: Sequence[int] | np.ndarray) -> str:
    """Return what keeps texts from being the ids 0, 1, 2 and so on, each once; or nothing."""
    is_number = np.asarray(pc.match_substring_regex(ids, WHOLE_NUMBER), bool)
    if not is_number.all():
        row = int(np.argmin(is_number))
        return f"line {lines[row]}: {quoted(ids[row].as_py())} is not an id"
    numbers = np.asarray(ids.cast(pa.int64()))
    if len(large := np.flatnonzero(numbers >= len(numbers))):
        row = int(large[0])
        needed = f"{len(ids)} names need the ids 0 to {len(ids) - 1}"
        return f"line {lines[row]}: id {numbers[row]}, but {needed}"
    return repeated_in(ids, lines)


def repeated_in(texts: pa.StringArray, lines: Sequence[int] | np.ndarray) -> str:
    codes = texts.dictionary_encode().indices.to_numpy()
    later = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1) == 0)
    if not len(later):
        return ""
    row = int(later[0])
    first = int(np.argmax(codes == codes[row]))
    return f"line {lines[row]}: {quoted(texts[row].as_py())} is on line {lines[first]} already"
