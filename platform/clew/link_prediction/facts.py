"""Facts of the parts that files hold: flags, qualifiers, identifiers, splits, times, weights."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from clew.biolink import DENIED
from clew.config.data import ImportSettings
from clew.errors import DataError, quoted
from clew.link_prediction.column_names import MEANINGS, is_qualifier
from clew.link_prediction.denials import MEANS, NO_VALUE, affirmed, words_of
from clew.link_prediction.descriptions import Noticed
from clew.link_prediction.dictionaries import fields_to_ids, may_be_ids
from clew.link_prediction.formats import Part
from clew.link_prediction.tables import Texts, as_texts, by_row
from clew.link_prediction.triples import SPLITS, Split
from clew.link_prediction.vocabulary import Kind, Vocabulary

ROLES = ("head", "relation", "tail")
NUMBER_OF_A_KIND = re.compile(r"(?s)\d+(\.0)?\t.+")
NO_NAME = r"^$|[\x00-\x1f\x7f]"
EXPECTED_NAME = ", which is not a name; expected text without tabs and line ends"
SPLIT_WORDS: dict[Split, str] = {
    "train": "train trains training trn trainval",
    "valid": "valid validation validate validating val dev devel develop development eval "
    "evaluation evaluate evaluating",
    "test": "test tests testing tst holdout heldout hold_out held_out",
}
SPLIT_OF = {word: split for split in SPLIT_WORDS for word in SPLIT_WORDS[split].split()}
SPLIT_NAME = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_OF)})(?![a-z])")


@dataclass
class FileNames:
    """What the names of files and folders say of their facts; nothing of a file in neither."""

    splits: Mapping[Path, Split]
    negative: frozenset[Path] = frozenset()
    """Files whose facts are denied."""
    are_given: bool = False
    """Whether not names but a person says the splits."""


def facts_of(
    parts: Sequence[Part], settings: ImportSettings, names: FileNames, found: Noticed
) -> tuple[list[pa.ChunkedArray], np.ndarray, np.ndarray, np.ndarray]:
    """Return head, relation and tail of all facts, their split (-1: none), time and weight."""
    dictionaries: dict[str, pa.StringArray] = {}
    for part in [part for part in parts if "ids" in part.holds]:
        listed = part.columns["name"].cast(pa.string())
        if not listed.equals(dictionaries.setdefault(part.holds, listed)):
            raise DataError(
                f"{part.path}: {part.holds} that differ from those of another file; expected one "
                "dictionary for entities and one for relations"
            )
    for role in ("source", "group"):
        _tell_apart(parts, role, found)
    if not dictionaries and _only_kinds_say(parts):
        _tell_apart(parts, "kind", found)
    columns: dict[str, list[Texts]] = {role: [] for role in ROLES}
    given, weights = [], []
    facts = [part for part in parts if part.holds == "facts"]
    for part in facts:
        _replace_ids(part, dictionaries)
        for role in ROLES:
            bad = pc.match_substring_regex(part.columns[role].dictionary, NO_NAME)
            part.refuse(part.columns[role], bad, f"{role} is", EXPECTED_NAME)
        _use_flags(part, settings, found, is_negative=part.path in names.negative)
        _use_qualifiers(part, settings, found)
        for role, column in columns.items():
            column.append(part.columns[role])
        given.append(_splits_of(part, names))
        weights.append(_weights_of(part, settings, found, given[-1]))
    if not sum(map(len, given)):
        raise DataError(_none_left(facts, names, found))
    if not names.are_given:
        _note_splits(facts, given, found)
    times = [np.zeros(part.num_rows) for part in facts]
    if settings.split == "time":
        parse = _as_dates if any(map(_is_dated, facts)) else _as_numbers
        times = [_numbers_of(part, "time", parse) for part in facts]
    joined = [pa.chunked_array(c) for c in columns.values()]
    return joined, np.concatenate(given), np.concatenate(times), np.concatenate(weights)


def _note_splits(parts: Sequence[Part], given: Sequence[np.ndarray], found: Noticed) -> None:
    """Write into the report which facts are split anew, or go to training without being told to."""

    def files(split: int) -> str:
        pairs = zip(parts, given, strict=True)
        names = [part.path.name for part, numbers in pairs if (numbers == split).any()]
        return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")

    unsaid = sum(int((numbers < 0).sum()) for numbers in given)
    others = f"{unsaid:,} facts of {files(-1)}" if unsaid else ""
    if any((numbers > 0).any() for numbers in given):
        if unsaid:
            found.note("split", f"{others} go to training: no split is given")
    elif train := files(0):
        also = f", with {others}" if unsaid else ""
        found.note("split", f"{train} is split anew{also}: nothing says validation or test")


def _none_left(parts: Sequence[Part], names: FileNames, found: Noticed) -> str:
    more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    edges, denied, old = (found.counts[key] for key in ("edges", "denied", "deprecated"))
    if not edges:
        return f"{parts[0].path}{more}: no facts; expected at least one"
    by_name = any(part.path in names.negative for part in parts)
    why = ", as the name says (else rename the file)" * by_name
    return (
        f"{parts[0].path}{more}: no edge that is neither denied nor deprecated ({edges:,} "
        f"edges, {denied:,} denied{why}, {old:,} deprecated); expected at least one"
    )


def _joined(columns: Sequence[Texts], name: Callable[[Sequence[str]], str]) -> Texts:
    """Return one text for the values of several columns; `name` is called once for each kind."""
    keys = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        keys = keys * max(len(column.dictionary), 1) + column.indices.to_numpy()
        keys = pd.factorize(keys)[0]  # numbers by first occurrence
    first = np.flatnonzero(np.diff(np.maximum.accumulate(keys), prepend=-1))
    rows = [column.take(pa.array(first)).to_pylist() for column in columns]
    return as_texts([name(row) for row in zip(*rows, strict=True)]).take(pa.array(keys))


def _only_kinds_say(parts: Sequence[Part]) -> bool:
    """Return whether facts name the kinds of both ends, and not where identifiers are from."""
    ends = [(p, end) for p in parts if p.holds == "facts" for end in ("head", "tail")]
    return all(f"{end}_kind" in p.columns for p, end in ends) and not any(
        f"{end}_source" in p.columns or p.groups.get(end) for p, end in ends
    )


def _tell_apart(parts: Sequence[Part], by: str, found: Noticed) -> None:
    """Prefix identifiers with their source, if two sources use the same identifier.

    `by` is `source` (PrimeKG's `x_source`), `group` (Neo4j's `:ID(Group)`) or `kind`: one number
    is two entities if it has two kinds (TxGNN). A name of two kinds is one entity; only numbers
    get a prefix.
    """
    places: list[tuple[Part, str, Texts]] = []
    pairs, unused = set[str](), set[str]()
    for part in parts:
        for end in ("head", "tail", "id"):
            if by == "group" and part.groups.get(end) and end in part.columns:
                group = pa.array([part.groups[end]]).dictionary_encode()
                places.append((part, end, group.take(pa.array(np.zeros(part.num_rows, np.int32)))))
            name = by if end == "id" else f"{end}_{by}"
            if by != "group" and name in part.columns and end in part.columns:
                places.append((part, end, part.columns[name]))
    if by == "kind":
        places = _spelled_alike(places)
    for part, end, sources in places:
        joined = _joined([part.columns[end], sources], "\t".join).dictionary.to_pylist()
        is_used = by != "kind" or end != "id"  # facts decide: nodes may have other kinds
        (pairs if is_used else unused).update(
            pair for pair in joined if by != "kind" or NUMBER_OF_A_KIND.fullmatch(pair)
        )
    if len({pair.partition("\t")[0] for pair in pairs}) == len(pairs):
        return
    ids = "number" if by == "kind" else "one"
    found.note("identifiers", f"several {by}s use the same ones; each {ids} begins with its {by}")
    if unused := unused - pairs:
        shown = ":".join(reversed(min(unused).split("\t", 1)))
        found.note("identifiers", f"{len(unused):,} of nodes in no fact, such as {quoted(shown)}")

    def apart(row: Sequence[str]) -> str:
        is_apart = by != "kind" or NUMBER_OF_A_KIND.fullmatch(f"{row[1]}\t{row[0]}")
        return ":".join(filter(None, row)) if is_apart else row[1]

    for part, end, sources in places:
        part.columns[end] = _joined([sources, part.columns[end]], apart)


def _spelled_alike(places: Sequence[tuple[Part, str, Texts]]) -> list[tuple[Part, str, Texts]]:
    """Return places with kinds that differ by case only as the first fact's one."""
    known: dict[str, str] = {}
    return [
        (
            part,
            end,
            as_texts([known.setdefault(t.casefold(), t) for t in kinds.dictionary.to_pylist()])
            .take(kinds.indices),
        )
        for part, end, kinds in sorted(places, key=lambda place: place[1] == "id")
    ]  # fmt: skip


def _replace_ids(part: Part, dictionaries: Mapping[str, pa.Array]) -> None:
    """Replace ids by the names that a dictionary in another file gives them."""
    for role in ROLES:
        kind: Kind = "relation" if role == "relation" else "entity"
        names = dictionaries.get(f"{kind} ids")
        if names is None:
            continue
        column = part.columns[role]
        known = Vocabulary(kind, names, fields_may_be_ids=may_be_ids(names))
        if part.are_ids:
            known = replace(known, name_array=pa.array([""] * len(names)), fields_may_be_ids=True)
        ids = fields_to_ids(column.dictionary, known)
        if (unknown := np.flatnonzero(by_row(column, ids < 0))).size:
            row = int(unknown[0])
            name = column[row].as_py()
            said = f"id {quoted(name)} has no name"
            if not part.are_ids:
                said = known.unknown_name_message(name)
            raise DataError(f"{part.path}, line {part.lines[row]}: {said}")
        known_names = names.take(pa.array(np.maximum(ids, 0)))  # a value in no row has no id
        part.columns[role] = Texts.from_arrays(column.indices, known_names)


def _use_flags(part: Part, settings: ImportSettings, found: Noticed, *, is_negative: bool) -> None:
    """Drop edges that are denied or not valid any more, or give denied ones their own relation."""
    found.counts["edges"] += part.num_rows
    flags = _flags(part, found)
    if is_negative and not flags["negated"].any():
        flags["negated"][:] = True
    if is_negative and flags["negated"].all():
        found.note("negative files", f"{part.num_rows:,} facts of {part.path.name}, all denied")
        found.read[str(part.path)] += "; denied, as its name says"
    for flag, word in (("deprecated", "deprecated"), ("negated", "denied")):
        if not flags[flag].any():
            continue
        found.counts[word] += int(flags[flag].sum())
        rows = np.flatnonzero(flags[flag])[:3]
        facts = zip(*(part.columns[role].take(rows).to_pylist() for role in ROLES), strict=True)
        found.examples.setdefault(word, []).extend(map(" ".join, facts))
        if word == "denied" and settings.negated == "relation":
            said = as_texts(["", DENIED]).take(pa.array(flags[flag].astype(np.int32)))
            relations = [part.columns["relation"], said]
            part.columns["relation"] = _joined(relations, lambda row: ";".join(filter(None, row)))
        else:
            if word == "denied":
                rows = pa.array(np.flatnonzero(flags[flag]))
                found.denied.append([part.columns[role].take(rows) for role in ROLES])
            part.keep(~flags[flag])
            flags = {name: values[~flags[flag]] for name, values in flags.items()}


def _flags(part: Part, found: Noticed) -> dict[str, np.ndarray]:
    """Return which rows are denied or deprecated, and take away what says so.

    Such a column's role is a flag, or a flag and the column's own name: `stated is_true`.
    """
    relations = part.columns["relation"]
    plain = affirmed(relations.dictionary)
    is_denied = by_row(relations, pc.not_equal(plain, relations.dictionary))
    if is_denied.any():
        found.note("true or denied", "taken from NOT in the relation")
        part.columns["relation"] = plain.take(relations.indices).dictionary_encode()
    flags = {"negated": is_denied, "deprecated": np.zeros(part.num_rows, bool)}
    for role in [role for role in part.columns if role.partition(" ")[0] in MEANS]:
        flag, _, name = role.partition(" ")
        column = part.columns.pop(role)
        yes, no = MEANS[flag]
        texts = [text.strip().lower() for text in column.dictionary.to_pylist()]
        is_wrong = np.array([text not in yes + no for text in texts], bool)
        part.refuse(column, is_wrong, f"{name or flag} is", "; expected true or false")
        is_true = by_row(column, np.array([text in yes for text in texts], bool))
        flags["negated" if flag == "stated" else flag] |= is_true ^ (flag == "stated")
    return flags


def _use_qualifiers(part: Part, settings: ImportSettings, found: Noticed) -> None:
    """Make qualifiers part of the relation, or count them and the other columns with a meaning."""
    names = sorted(filter(is_qualifier, part.columns))
    if settings.qualifiers and names:
        columns = [part.columns["relation"], *(part.columns[name] for name in names)]
        part.columns["relation"] = _joined(
            columns,
            lambda row: ";".join(
                [row[0], *(f"{k}={v}" for k, v in zip(names, row[1:], strict=True) if v)]
            ),
        )
        names = []
    for name in (*names, *(name for name in MEANINGS if name in part.columns)):
        counts = pc.value_counts(part.columns[name].cast(pa.string())).to_pylist()
        values = Counter({c["values"]: c["counts"] for c in counts if c["values"]})
        if values:
            listed = ", ".join(f"{n:,} {quoted(v)[1:-1]}" for v, n in values.most_common(5))
            end = "" if name in MEANINGS else "; --qualifiers makes it part of the relation"
            more = ", …" * (len(values) > 5)
            found.note(name, f"not used, on {values.total():,} edges: {listed}{more}{end}")


def split_of(text: str) -> Split | None:
    """Return the split that a name or a value names; None for no split, or for several."""
    found = {SPLIT_OF[word] for word in SPLIT_NAME.findall("_".join(words_of(text)))}
    if found == {"train", "valid"}:  # both are for training
        return "train"
    if found == {"valid", "test"}:  # held out, whatever for
        return "test"
    return found.pop() if len(found) == 1 else None


def _splits_of(part: Part, names: FileNames) -> np.ndarray:
    """Return the number of each fact's split; -1 if nothing says it."""
    own = names.splits.get(part.path)
    of_file = SPLITS.index(own) if own else -1
    if "split" not in part.columns:
        return np.full(part.num_rows, of_file, np.int8)
    column = part.columns["split"]
    if len(names.splits) == 1:  # the only file can hold all splits
        own = None
    texts = column.dictionary.to_pylist()
    said = [split_of(text) for text in texts]
    is_wrong = [
        text.strip().lower() not in NO_VALUE and (split is None or own not in (None, split))
        for text, split in zip(texts, said, strict=True)
    ]
    expected = f"{own}, as the file" if own else "a word for train, valid or test"
    advice = f"; expected {expected}; without the column: --columns unused=NAME"
    part.refuse(column, np.array(is_wrong, bool), "the split is", advice)
    numbers = np.array([SPLITS.index(split) if split else of_file for split in said], np.int8)
    return by_row(column, numbers)


def _weights_of(
    part: Part, settings: ImportSettings, found: Noticed, split: np.ndarray
) -> np.ndarray:
    """Return how often each fact counts; only training facts need a weight."""
    if "weight" in part.columns and settings.weights == "ignore" and part.num_rows:
        found.note("weight", f"{part.num_rows:,} facts have one; not used: --weights use")
    if settings.weights == "ignore" or ("weight" not in part.columns and (split > 0).all()):
        return np.ones(part.num_rows)
    return _numbers_of(part, "weight", _as_numbers)


def _numbers_of(
    part: Part, role: Literal["weight", "time"], parse: Callable[[pa.Array], "pd.Series[Any]"]
) -> np.ndarray:
    if not part.num_rows:
        return np.zeros(0)
    if role not in part.columns:
        raise DataError(
            f"{part.path}: no column of {role}s; name it, for example --columns "
            f"head,relation,tail,{role}"
        )
    column = part.columns[role]
    numbers = parse(column.dictionary).to_numpy(float)
    is_right = (numbers > 0) & (numbers < np.inf) if role == "weight" else ~np.isnan(numbers)
    expected = "a number above 0" if role == "weight" else "a number or a date"
    part.refuse(column, ~is_right, f"the {role} is", f"; expected {expected}")
    return by_row(column, numbers)


def _as_numbers(values: pa.Array) -> "pd.Series[Any]":
    return pd.to_numeric(pd.Series(values.to_pylist(), dtype=object), errors="coerce")


def _as_dates(values: pa.Array) -> "pd.Series[Any]":
    texts: pd.Series[Any] = pd.Series(values.to_pylist(), dtype=object)
    times = pd.to_datetime(texts, errors="coerce", format="mixed", utc=True)
    return times.dt.as_unit("us").astype("int64").where(times.notna())


def _is_dated(part: Part) -> bool:
    """Return whether a time of a file is no number."""
    times = part.columns.get("time", as_texts([])).cast(pa.string()).unique().to_pylist()
    given = pa.array([text for text in times if text.strip().lower() not in NO_VALUE], pa.string())
    return bool(_as_numbers(given).isna().any())
