"""Explanations for the pages: from trace runs or uploaded files, one test triple at a time."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from clew.errors import ClewError, DataError
from clew.runs.influence_report import ReportModel
from clew.runs.reading import reports
from clew.runs.reading.explanation import SharedExplanation, triple_of, with_run
from clew.runs.reading.facts import TRAIN_KEY, by_side, with_agreement
from clew.runs.reading.run_details import find_validation
from clew.runs.validation_record import ValidationSummary
from clew.runs.verification import Verification, read_kept
from clew.runs.window_report import TextInfluenceReport
from clew.ui import access
from clew.ui.components import basics, jobs
from clew.ui.components.reviews import visible
from clew.ui.components.runs import vocabulary

SIDES = ("all", "▲ helping", "▼ opposing")
TRIPLE_COLUMNS = ("head", "relation", "tail", "head_id", "tail_id")

# All sessions share what is read without a copy: never change a frame in place.
of_files = st.cache_resource(
    max_entries=32,
    show_spinner="Reading the explanation …",
    hash_funcs={reports.ReportFiles: lambda files: files.identity},
)


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def report_of_run(run_id: str) -> reports.ReportFiles:
    return reports.report_files(run_id, jobs.jobs().folder)


report_head = of_files(reports.read_head)
"""A report without its training facts."""


@of_files
def text_report_of(files: reports.ReportFiles) -> TextInfluenceReport:
    assert files.text is not None
    return TextInfluenceReport.read(files.text)


@of_files
def facts_of(files: reports.ReportFiles, index: int) -> pd.DataFrame:
    """Return a test triple's training facts with `sibling`."""
    head = report_head(files)
    test = triple_at(head, index)
    facts = reports.read_facts(files, index)
    shared = (facts["head_id"] == test["head_id"]) | (facts["tail_id"] == test["tail_id"])
    siblings = shared & (facts["relation_id"] == test["relation_id"])
    return with_agreement(facts.assign(sibling=siblings.to_numpy(bool)), len(head.model.runs))


paths_of = of_files(reports.read_paths)
"""The paths of facts between a test triple's ends, the most specific first."""


def report_of_upload(content: Mapping[str, bytes]) -> reports.ReportFiles:
    """Return the files of an uploaded report; `content` maps file names to their bytes.

    Raises:
        DataError: A file is not part of a report, or takes too much memory or time to read.
    """
    access.authorize("upload")
    found: dict[str, Path] = {}
    for name, data in content.items():
        kind = name.rpartition(".")[2].lower()
        if kind not in {"json", "parquet"}:
            raise DataError(f"{name}: expected an explanation as .json or .parquet")
        report, path = _admitted(data, hashlib.sha256(data).hexdigest()[:24], kind, name)
        found.setdefault(report, path)
    return reports.ReportFiles(**found)


@st.cache_data(max_entries=64, show_spinner="Reading the files …")
def _admitted(_data: bytes, digest: str, kind: str, name: str) -> tuple[str, Path]:
    path = jobs.jobs().folder / f"{digest}.{kind}"
    try:
        path.write_bytes(_data)
        return reports.admitted(path, name)
    except BaseException:  # also one that is not written whole is not kept
        path.unlink(missing_ok=True)
        raise


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def _validation(model: ReportModel, settings: dict[str, Any]) -> ValidationSummary | None:
    return find_validation(model, settings)


def with_validation(head: reports.ReportHead) -> reports.ReportHead:
    """Return a report's head with the newest test of such explanations of its model, if any."""
    return replace(head, validation=_validation(head.model, head.settings) or head.validation)


@st.cache_data(ttl=30, max_entries=64, show_spinner=False)
def verification_of(run_id: str, triple: tuple[str, str, str]) -> Verification | None:
    """Return what a check found about one triple of an explanation; None if there was none."""
    kept = read_kept(Verification, run_id) if run_id else None
    return kept.of(triple) if kept else None


def triple_at(head: reports.ReportHead, index: int) -> pd.Series:
    if index not in head.tests.index:
        raise DataError(f"no test triple {index} in this report; it has {len(head.tests)}")
    test: pd.Series = head.tests.loc[index]  # type: ignore[assignment]
    return test


@dataclass(frozen=True)
class FactFilter:
    """Which facts a person wants to see; an empty field does not restrict them."""

    text: str = ""
    relation: str = ""
    side: str = SIDES[0]
    hide_siblings: bool = False
    cosine: bool = False

    def column(self, rows: pd.DataFrame) -> str:
        """Return the column to show: `cosine` if it is wanted and present, else `influence`."""
        return "cosine" if self.cosine and "cosine" in rows else "influence"


def filter_rows(
    rows: pd.DataFrame, wanted: FactFilter, columns: Sequence[str] = TRIPLE_COLUMNS
) -> pd.DataFrame:
    """Return the rows that pass a filter; its text is searched in the columns, joined by spaces."""
    if wanted.hide_siblings:
        rows = rows[~rows["sibling"].to_numpy(bool)]
    if wanted.relation:
        rows = rows[(rows["relation"] == wanted.relation).to_numpy(bool)]
    if wanted.side != SIDES[0]:
        values = rows["influence"].to_numpy(float)
        rows = rows[values > 0 if wanted.side == SIDES[1] else values < 0]
    if text := wanted.text.strip().casefold():
        texts = pd.Series("", index=rows.index).str.cat(rows[list(columns)].astype(str), sep=" ")
        rows = rows[texts.str.casefold().str.contains(text, regex=False).to_numpy(bool)]
    return rows


def passing(
    rows: pd.DataFrame, wanted: FactFilter, called: str, columns: Sequence[str] = TRIPLE_COLUMNS
) -> pd.DataFrame:
    """Return the rows that pass a filter; say so if there are none."""
    shown = filter_rows(rows, wanted, columns)
    if shown.empty:
        none = f"None of the {len(rows):,} {called} passes these filters"
        basics.note(f"{none}; clear one of them.")
    return shown


def strongest(facts: pd.DataFrame, column: str, number: int) -> pd.DataFrame:
    """Return the `number` facts with the largest absolute values, in the order of `by_side`."""
    values = facts[column].abs().to_numpy()
    if len(facts) > number:
        facts = facts.iloc[np.argpartition(-values, number)[:number]]
    return by_side(facts, column)


def grouped(facts: pd.DataFrame, by: str, test: pd.Series) -> pd.DataFrame:
    """Return sums by relation, or by the entity shared with the test triple.

    Columns: `group`, `facts`, `helping`, `opposing` (sums of influence), `net`.
    """
    if by == "relation":
        labels = facts["relation"].astype(str).to_numpy()
    else:
        in_head, in_tail = (
            (facts["head_id"] == test[end]) | (facts["tail_id"] == test[end])
            for end in ("head_id", "tail_id")
        )
        head, tail = str(test["head"]), str(test["tail"])
        choices, conditions = [f"both {head} and {tail}", head, tail], [in_head & in_tail, in_head]
        labels = np.select([*conditions, in_tail], choices, default="neither entity")
    values = facts["influence"]
    frame = pd.DataFrame({"group": labels, "facts": 1}, index=facts.index)
    frame = frame.assign(helping=values.clip(lower=0), opposing=values.clip(upper=0), net=values)
    sums = frame.groupby("group", sort=False).sum().reset_index()
    return sums.sort_values("net", key=abs, ascending=False, kind="stable", ignore_index=True)


def same_test(tests: pd.DataFrame, test: pd.Series) -> int | None:
    """Return the place of the same test triple in another report, None if it is not there."""
    equal = (tests[TRAIN_KEY].astype(str) == test[TRAIN_KEY].astype(str)).all(axis=1)
    found = tests.index[equal]
    return int(found[0]) if len(found) else None


def explained(run_id: str, files: reports.ReportFiles, index: int) -> SharedExplanation:
    """Return an explained triple for a page; `run_id` is empty for files from the disk."""
    head = report_head(files)
    if run_id:
        head = with_validation(head)
    test = triple_at(head, index)
    kinds: Mapping[str, str] = {}
    with suppress(ClewError):  # the run of the explained model may be gone
        kinds = vocabulary(head.model.run_id).kinds if head.model.run_id else kinds
    facts, paths = facts_of(files, index), paths_of(files, index)
    verified = verification_of(run_id, triple_of(test))
    return SharedExplanation(test, facts, paths, head, kinds=kinds, verified=verified)


def shared(run_id: str, files: reports.ReportFiles, index: int) -> SharedExplanation:
    """Return what is shared of an explanation; `run_id` is empty for files from the disk."""
    found = explained(run_id, files, index)
    if not run_id:
        return found
    found = with_run(found, run_id)
    return replace(found, reviews=tuple(visible(found.reviews)))
