"""Which facts a source denies, by the words of files' and columns' names and by values.

What might deny a fact and is not understood is asked for; it is never taken as true in silence.
"""

import re
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import DataError, quoted
from clew.link_prediction.tables import Texts, as_texts

Flag = Literal["negated", "deprecated", "stated"]

NO_VALUE = ("", "none", "null", "nan", "na", "n/a", "-", "unknown")
TRUE = ("true", "t", "yes", "y", "1", "1.0", "on")
FALSE = ("false", "f", "no", "n", "0", "0.0", "off")
DENIALS = ("negated", "denied", "refute", "refutes", "refuted", "absent", "excluded", "invalid")
AFFIRMATIONS = ("positive", "affirmed", "confirmed", "support", "supports", "present", "valid")
STATED = (*TRUE, "+", "+1", *AFFIRMATIONS)
NOT_STATED = (*FALSE, "-", "-1", "-1.0", "negative", "not", *DENIALS)
MEANS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "negated": ((*TRUE, "not"), (*FALSE, *NO_VALUE)),
    "deprecated": (TRUE, (*FALSE, *NO_VALUE)),
    "stated": (STATED, NOT_STATED),
}
"""Values of a flag that mean true, and those that mean false."""

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
BEFORE = "(is|has|was|edge|biolink|association|statement|fact|assertion)*"
AFTER = "(value|flag|bool|boolean)*"
NEGATED_NAME = re.compile(f"{BEFORE}(negated|negative|negation|neg|not|denied|false){AFTER}")
STATED_NAME = re.compile(f"{BEFORE}(true|truth|stated|correct){AFTER}(label)?")
LABEL_NAME = re.compile(f"{BEFORE}labels?{AFTER}")
"""Names of columns that say whether a fact is true, if their values are true and false."""
MAY_BE_STATED_NAME = re.compile(
    f"{BEFORE}(labels?|class|target|y|gold|positive|valid|exists|holds|supported){AFTER}"
)
"""Names of columns that can say it; all but the labels are asked for."""
QUALIFIER_NAME = re.compile("qualifier|modifier")
DENIED_RELATION = r"^\s*NOT(\s*\|\s*|\s+)"
DENIED_VERB = r"^(.*[:/#])?(?:NEG_|(?i:not)[_ |:-])|^((?i:semmeddb:))neg_"
"""`NEG_` as SemMedDB writes it: `neg_regulates` beside `regulates` denies nothing."""
NOT_IN_A_LIST = r"(?i)(^|[|;,])\s*not\s*([|;,]|$)"
ONLY_NOT = r"^\s*NOT\s*(\||$)"

NEGATIVE_WORDS = {
    "negative", "negatives", "neg", "negs", "tn", "negated", "denied", "false", "corrupted",
}  # fmt: skip
ALWAYS_NEGATIVE, NEVER_ALONE = {"negatives", "negs"}, {"tn", "false"}
DATA_WORDS = {
    "train", "training", "valid", "validation", "val", "dev", "eval", "test", "testing", "holdout",
    "edge", "edges", "triple", "triples", "fact", "facts", "link", "links", "sample", "samples",
    "example", "examples", "data", "set", "list", "all", "hard", "random", "easy", "tp", "kg",
}  # fmt: skip
"""Words beside which `negative` speaks of the data. In `negative_regulation.tsv` it does not."""
SUFFIXES = {"csv", "tsv", "tab", "txt", "sif", "nt", "nq", "ttl", "json", "jsonl", "parquet", "id"}


def words_of(text: str) -> list[str]:
    """Return the words of a name, in lower case: `is`, `negated` of `isNegated`."""
    return [word.lower() for word in WORD.findall(text)]


def says_negative(name: str) -> bool:
    """Return whether the name of a file or folder says that its facts are denied."""
    words = [word for word in words_of(name) if word not in SUFFIXES]
    if ALWAYS_NEGATIVE & {*words}:
        return True
    said = [place for place, word in enumerate(words) if word in NEGATIVE_WORDS]
    others = [word for word in words if word not in NEGATIVE_WORDS]
    is_alone = not DATA_WORDS & {*others} and bool(NEVER_ALONE & {*words})
    only_data = DATA_WORDS.issuperset(others) and not is_alone
    return bool(said) and (only_data or any(DATA_WORDS & {*words[p + 1 : p + 2]} for p in said))


def affirmed(relations: pa.Array) -> pa.Array:
    """Return what is denied by `NOT|enables` (GO), and `NEG_TREATS` beside `TREATS` (SemMedDB)."""
    plain = pc.replace_substring_regex(relations, DENIED_RELATION, "")
    verbs = pc.replace_substring_regex(plain, DENIED_VERB, r"\1\2")
    return pc.if_else(pc.is_in(verbs, value_set=relations), verbs, plain)


def flag_of(path: Path, name: str, column: Texts) -> tuple[Flag, Texts] | None:
    """Return the flag that a column without another role holds, and its values.

    Raises:
        DataError: If the column may deny facts, or mean something else.
    """
    joined = "".join(words_of(name))
    if NEGATED_NAME.fullmatch(joined):
        return "negated", column
    may_be = may_be_flag(name, column)
    if STATED_NAME.fullmatch(joined) or (may_be and LABEL_NAME.fullmatch(joined)):
        return "stated", column
    is_qualifier = QUALIFIER_NAME.search(joined) is not None
    pattern = NOT_IN_A_LIST if is_qualifier else ONLY_NOT
    is_not = pc.match_substring_regex(column.dictionary, pattern)
    values = values_of(column)
    said = {value.strip().lower() for value in values} & {*DENIALS}
    if pc.any(is_not.take(column.indices)).as_py():
        others = {v.strip().lower() for v in values if not re.search(pattern, v)}
        if not name or is_qualifier or others <= {*NO_VALUE}:
            denied = as_texts(["false", "true"]).take(is_not.cast(pa.int32()))
            return "negated", denied.take(column.indices)
        said = {"NOT"}
    if may_be or (name and said):
        held = f"{quoted(min(said))} among others" if said else "only true and false"
        raise DataError(
            f"{path}: {quoted(name)} holds {held}, which can deny facts, or mean something else; "
            f"say which: --columns stated={name} or unused={name}"
        )
    return None


def may_be_flag(name: str, column: Texts) -> bool:
    """Return whether an ordinary name and its values can say which facts are true."""
    is_name = MAY_BE_STATED_NAME.fullmatch("".join(words_of(name)))
    return is_name is not None and are_truths(values_of(column))


def values_of(column: Texts) -> list[str]:
    """Return up to 1,000 of the values that a column's rows have."""
    used = pc.unique(column.indices)[:1000]
    return [str(text) for text in column.dictionary.take(used).to_pylist()]


def are_truths(values: list[str]) -> bool:
    """Return whether values are true and false in some spelling, and false is among them."""
    words = {value.strip().lower() for value in values}
    known = {*STATED, *NOT_STATED, *NO_VALUE}
    return words <= known and bool(words & {*NOT_STATED} - {"-"} or ("-" in words and "+" in words))


def is_stated(path: Path, index: int, column: Texts) -> bool:
    """Return whether a column without a name says which facts are true.

    Raises:
        DataError: If the values are truths that can mean something else.
    """
    values = values_of(column)
    first = column[0].as_py() if len(column) else ""
    is_title = NEGATED_NAME.fullmatch("".join(words_of(first))) is not None
    if first.strip().lower() not in (*STATED, *NOT_STATED) and (
        is_title or (are_truths(values_of(column.slice(1))) and not are_truths(values))
    ):
        raise DataError(
            f"{path}: {quoted(first)} seems to name column {index + 1}, which can deny facts; say "
            "--header, or which columns hold what: --columns head=1,relation=2,tail=3"
        )
    words = {value.strip().lower() for value in values}
    is_sample = "sample" in path.name.lower() and words <= {"0", "1"}
    if is_sample or (words == {"0"} and says_negative(path.name)):
        return True
    if {"-1", "-1.0"} & words and words <= {"1", "1.0", "-1", "-1.0"}:
        return True
    if are_truths(values) and {value.strip() for value in values} - {*NO_VALUE} != {"NOT"}:
        number = index + 1
        weight = f"weight={number}, " if words <= {"0", "1", "0.0", "1.0", ""} else ""
        raise DataError(
            f"{path}: column {number} holds only {quoted(', '.join(sorted(values)))[1:-1]}, which "
            "can deny facts, or mean something else; say which, by role and number: --columns "
            f"head=1,relation=2,tail=3, and one of stated={number}, {weight}unused={number}"
        )
    return False
