"""Explanations for the pages: from trace runs or uploaded files, one test triple at a time."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import streamlit as st

from clew import names
from clew.errors import DataError
from clew.runs.influence_forms import CHECKPOINT_PREFIX, PART_PREFIX
from clew.runs.reading.facts import (
    FactPath,
    by_side,
    find_paths,
)
from clew.runs.reading.reports import (
    ReportFiles,
    ReportHead,
    add_hops,
    admitted,
    read_facts,
    read_head,
    report_files,
)
from clew.runs.reading.results import find_validation_of_report
from clew.runs.reading.runs import RunRecord
from clew.runs.reading.search import RunQuery
from clew.runs.validation_record import ValidationSummary
from clew.ui import access
from clew.ui.components.runs import runs_page

NUM_TRACE_RUNS = 200
Side = Literal["all", "proponents", "opponents"]
TRIPLE_COLUMNS = ("head", "relation", "tail", "head_id", "tail_id")
Identity = tuple[tuple[str, int, int], ...]


def trace_runs() -> list[RunRecord]:
    """Return the latest trace runs that have ended, finished ones first."""
    found = runs_page(RunQuery(kind=names.KIND_TRACE), size=NUM_TRACE_RUNS).runs
    ended = [run for run in found if run.status != "RUNNING"]
    return sorted(ended, key=lambda run: run.status != "FINISHED")


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def report_of_run(run_id: str) -> ReportFiles:
    return report_files(run_id, _copies_folder())


# All sessions share these frames without a copy: never change one in place.
@st.cache_resource(max_entries=16, show_spinner="Reading the explanations …")
def _head(_files: ReportFiles, identity: Identity) -> ReportHead:
    return read_head(_files)


@st.cache_resource(max_entries=32, show_spinner=False)
def _facts(_files: ReportFiles, identity: Identity, index: int) -> pd.DataFrame:
    head = report_head(_files)
    test = triple_at(head, index)
    facts = add_hops(read_facts(_files, index), str(test["head_id"]), str(test["tail_id"]))
    shared = (facts["head_id"] == test["head_id"]) | (facts["tail_id"] == test["tail_id"])
    siblings = shared & (facts["relation_id"] == test["relation_id"])
    facts = facts.assign(sibling=siblings.to_numpy(bool))
    if "runs_agreeing" not in facts or not head.runs:
        return facts
    of = f" of {len(head.runs)}"
    return facts.assign(agreement=facts["runs_agreeing"].astype(int).astype(str) + of)


def report_of_upload(content: Mapping[str, bytes]) -> ReportFiles:
    """Return the files of an uploaded report; `content` maps file names to their bytes.

    Raises:
        DataError: A file is not part of a report, or takes too much memory or time to read.
    """
    access.authorize("upload")
    found: dict[str, Path] = {}
    for name, data in content.items():
        kind = name.rpartition(".")[2].lower()
        if kind not in {"json", "parquet", "csv"}:
            raise DataError(f"{name}: expected an explanation as .json, .parquet or .csv")
        report, path = _admitted(data, hashlib.sha256(data).hexdigest()[:24], kind, name)
        found.setdefault(report, path)
    if {"json", "parquet"} & found.keys():
        found.pop("csv", None)
    # The table of a CSV file was written again as Parquet.
    return ReportFiles(**{"parquet" if k == "csv" else k: path for k, path in found.items()})


@st.cache_data(max_entries=64, show_spinner="Reading the files …")
def _admitted(_data: bytes, digest: str, kind: str, name: str) -> tuple[str, Path]:
    path = _copies_folder() / f"{digest}.{kind}"
    path.write_bytes(_data)
    return admitted(path, name)


@st.cache_resource(show_spinner=False)
def _copies() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="clew-reports-")


def _copies_folder() -> Path:
    return Path(_copies().name)


def report_head(files: ReportFiles) -> ReportHead:
    """Return a report without its training facts."""
    return _head(files, files.identity)


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def _validation(
    source_run: str, settings: dict[str, Any], ensemble: tuple[str, ...]
) -> ValidationSummary | None:
    return find_validation_of_report(source_run, settings, ensemble=ensemble)


def with_validation(head: ReportHead) -> ReportHead:
    """Return a report's head with the validation of such explanations of its model, if any."""
    if head.validation is not None or not head.run_id:
        return head
    return replace(head, validation=_validation(head.run_id, dict(head.settings), head.runs))


def triple_at(head: ReportHead, index: int) -> pd.Series:
    """Return a test triple by its place in the report."""
    if index not in head.tests.index:
        raise DataError(f"no test triple {index} in this report; it has {len(head.tests)}")
    test: pd.Series = head.tests.loc[index]  # type: ignore[assignment]
    return test


def facts_of(files: ReportFiles, index: int) -> pd.DataFrame:
    """Return a test triple's training facts with `hops` and `sibling`."""
    return _facts(files, files.identity, index)


@st.cache_resource(max_entries=32, show_spinner=False)
def _paths(_files: ReportFiles, identity: Identity, index: int) -> list[FactPath]:
    return find_paths(triple_at(report_head(_files), index), facts_of(_files, index))


def paths_of(files: ReportFiles, index: int) -> list[FactPath]:
    """Return the paths of facts between a test triple's ends, the best first."""
    return _paths(files, files.identity, index)


def value_column(facts: pd.DataFrame, *, cosine: bool) -> str:
    """Return the column to show: `cosine` if it is wanted and present, else `influence`."""
    return "cosine" if cosine and "cosine" in facts else "influence"


@dataclass(frozen=True)
class FactFilter:
    """Which facts a person wants to see; an empty field does not restrict them."""

    text: str = ""
    relation: str = ""
    side: Side = "all"
    hide_siblings: bool = False
    cosine: bool = False


def filter_facts(facts: pd.DataFrame, wanted: FactFilter) -> pd.DataFrame:
    keep = np.ones(len(facts), bool)
    if wanted.hide_siblings:
        keep &= ~facts["sibling"].to_numpy(bool)
    if wanted.relation:
        keep &= (facts["relation"] == wanted.relation).to_numpy(bool)
    return filter_rows(facts[keep], wanted, TRIPLE_COLUMNS)


def filter_rows(rows: pd.DataFrame, wanted: FactFilter, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows on a filter's side whose columns, joined by spaces, contain its text."""
    keep = np.ones(len(rows), bool)
    if wanted.side != "all":
        values = rows["influence"].to_numpy(float)
        keep &= values > 0 if wanted.side == "proponents" else values < 0
    if text := wanted.text.strip().casefold():
        texts = pd.Series("", index=rows.index).str.cat(rows[list(columns)].astype(str), sep=" ")
        keep &= texts.str.casefold().str.contains(text, regex=False).to_numpy(bool)
    return rows[keep]


def filter_tests(tests: pd.DataFrame, *, text: str, relation: str, order: str) -> pd.DataFrame:
    """Return the test triples that a person wants to see, sorted by rank or self-influence."""
    found = tests[tests["relation"] == relation] if relation else tests
    found = filter_rows(found, FactFilter(text=text), TRIPLE_COLUMNS)
    if order == "file":
        return found
    return found.sort_values(order, ascending=order == "rank", kind="stable")


def strongest(facts: pd.DataFrame, column: str, number: int) -> pd.DataFrame:
    """Return the `number` facts with the largest absolute values, in the order of `by_side`."""
    values = facts[column].abs().to_numpy()
    if len(facts) > number:
        facts = facts.iloc[np.argpartition(-values, number)[:number]]
    return by_side(facts, column)


def grouped(facts: pd.DataFrame, by: str, head: str, tail: str) -> pd.DataFrame:
    """Return sums by relation, or by the entity shared with the test triple.

    Columns: `group`, `facts`, `helping`, `opposing` (sums of influence), `net`.
    """
    if by == "relation":
        labels = facts["relation"].astype(str)
    else:
        in_head = (facts["head"] == head) | (facts["tail"] == head)
        in_tail = (facts["head"] == tail) | (facts["tail"] == tail)
        choices = [f"both {head} and {tail}", head, tail]
        conditions = [in_head & in_tail, in_head, in_tail]
        labels = pd.Series(
            np.select(conditions, choices, default="neither entity"), index=facts.index
        )
    values = facts["influence"]
    frame = pd.DataFrame(
        {
            "group": labels,
            "facts": 1,
            "helping": values.clip(lower=0),
            "opposing": values.clip(upper=0),
            "net": values,
        }
    )
    sums = frame.groupby("group", sort=False).sum().reset_index()
    order = sums["net"].abs().sort_values(ascending=False, kind="stable").index
    return sums.loc[order].reset_index(drop=True)


def part_columns(facts: pd.DataFrame) -> list[str]:
    """Return the columns that split the influence by part of the model."""
    return [str(column) for column in facts.columns if str(column).startswith(PART_PREFIX)]


def checkpoint_columns(facts: pd.DataFrame) -> list[str]:
    """Return the columns that split the influence by checkpoint, in order of the steps."""
    found = [str(c) for c in facts.columns if str(c).startswith(CHECKPOINT_PREFIX)]
    return sorted(found, key=lambda column: int(column.removeprefix(CHECKPOINT_PREFIX) or 0))


def same_test(tests: pd.DataFrame, test: pd.Series) -> int | None:
    """Return the place of the same test triple in another report, None if it is not there."""
    keys = ["head_id", "relation_id", "tail_id"]
    equal = (tests[keys].astype(str) == test[keys].astype(str)).all(axis=1)
    found = tests.index[equal]
    return int(found[0]) if len(found) else None
