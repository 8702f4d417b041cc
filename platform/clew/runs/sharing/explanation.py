"""Collects everything about one explained triple that an export needs."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from clew import names
from clew.errors import ConfigError, TrackingError
from clew.files import expanded
from clew.runs.reading.facts import FactPath, find_paths
from clew.runs.reading.models import read_vocabulary
from clew.runs.reading.reports import ReportFiles, ReportHead, read_facts, read_head, report_files
from clew.runs.reading.results import find_validation_of_report
from clew.runs.reading.reviews import Review, read_reviews
from clew.runs.reading.runs import RunRecord, find_run


@dataclass(frozen=True)
class SharedExplanation:
    """A test triple, the training facts that influenced it, and their origin."""

    test: pd.Series
    """A row of the report's tests."""
    facts: pd.DataFrame
    """The training facts of the triple, most helpful first."""
    paths: tuple[FactPath, ...]
    head: ReportHead
    run: RunRecord | None = None
    """The run that made the explanation; None if it was read from files."""
    model: RunRecord | None = None
    """The run of the explained model; None if it does not exist any more."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of entities by their ids; empty if the data contain no kinds."""
    reviews: tuple[Review, ...] = ()
    """Reviews of the explanation; the last final one counts, if there is one."""

    @property
    def title(self) -> str:
        return " ".join(str(self.test[key]) for key in ("head", "relation", "tail"))


def open_explanation(source: str, index: int) -> SharedExplanation:
    """Return an explained triple of a trace run, or of a local `influence.json` file.

    Args:
        source: Id of the run, or path of the file or its folder.
        index: Position of the triple in the report, from 0.
    """
    path = expanded(source)
    if path.suffix == ".json" or path.is_dir():
        return _explanation_in(_files_at(path), index)
    with tempfile.TemporaryDirectory(prefix="clew-report-") as folder:
        files = report_files(source, Path(folder))
        if files.text is not None or files.sequence is not None:
            raise ConfigError(f"run {source} explains no triples; give a run that explains triples")
        return _with_run(_explanation_in(files, index), source)


def _explanation_in(files: ReportFiles, index: int) -> SharedExplanation:
    """Return an explained triple with only the data in the report files."""
    head = read_head(files)
    if index not in head.tests.index:
        raise ConfigError(
            f"--test is {index}; expected a position in the report, from 0 to {len(head.tests) - 1}"
        )
    test: pd.Series = head.tests.loc[index]  # type: ignore[assignment]
    facts = read_facts(files, index)
    return SharedExplanation(test, facts, tuple(find_paths(test, facts)), head)


def _with_run(explanation: SharedExplanation, run_id: str) -> SharedExplanation:
    run = find_run(run_id)
    model = _model_run(run)
    triple, head = triple_of(explanation.test), explanation.head
    validation = head.validation or find_validation_of_report(
        head.run_id, head.settings, ensemble=head.runs
    )
    reviews = read_reviews(run_id).records
    return replace(
        explanation,
        head=replace(head, validation=validation),
        run=run,
        model=model,
        kinds={} if model is None else _kinds(model),
        reviews=tuple(r for r in reviews if r.verdict and r.test.triple == triple),
    )


def _files_at(path: Path) -> ReportFiles:
    """Return a report's files in a folder; only the JSON file is required."""
    folder = path if path.is_dir() else path.parent
    found = [folder / name for name in (names.INFLUENCE_PARQUET, names.INFLUENCE_CSV)]
    parquet, csv = (file if path.is_dir() and file.is_file() else None for file in found)
    json = folder / names.INFLUENCE_JSON if path.is_dir() else path
    if not json.is_file():
        raise ConfigError(
            f"{path}: no {json.name} there; give a trace run, a folder that tracin wrote, or its "
            "JSON file"
        )
    return ReportFiles(json=json, parquet=parquet, csv=csv)


def _model_run(run: RunRecord) -> RunRecord | None:
    source = run.tags.get(names.TAG_SOURCE_RUN, "")
    try:
        return find_run(source) if source else None
    except TrackingError:  # the run was deleted, but the explanation is still readable
        return None


def _kinds(model: RunRecord) -> Mapping[str, str]:
    try:
        return read_vocabulary(model.run_id).kinds
    except TrackingError:  # a run without a vocabulary has no kinds
        return {}


def triple_of(test: pd.Series) -> tuple[str, str, str]:
    """Return the triple of a row of a report's tests, with the names in the data set."""
    return (str(test["head_id"]), str(test["relation_id"]), str(test["tail_id"]))
