"""Reads influence reports for display: the head once, and the facts of one test triple at a time.

The JSON file contains the head: model, settings, and each test triple with its score and rank. The
Parquet file contains all training facts and is read one test triple at a time; without it, the
facts come from the lists in the JSON file. The CSV file is for other programs.
The explanation of a text is a separate file, see `clew.runs.window_report`.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from clew import names
from clew.errors import DataError, TrackingError
from clew.input_files import columns_of, read_columns
from clew.runs import influence_forms as forms
from clew.runs import influence_report, store, window_report
from clew.runs.reading.facts import TRIPLE_COLUMNS, Paths, distinct, paths_of, ranked, texts_of
from clew.runs.reading.runs import RunRecord, client, download_artifact, find_run
from clew.untrusted import read_limited

OF_TEST = ("score", "rank", "self_influence", "candidates", "truncated", "untrained")
TEST_COLUMNS = (*TRIPLE_COLUMNS, *OF_TEST)
FURTHER_COLUMNS = (forms.COSINE_COLUMN, forms.SPREAD_COLUMN, forms.AGREEING_COLUMN)
"""Optional columns with further numbers about a score."""
INFLUENCE_TABLE = "an influence table"
REPORT_FILES = {
    "json": names.INFLUENCE_JSON,
    "parquet": names.INFLUENCE_PARQUET,
    "text": window_report.TEXT_INFLUENCE_JSON,
    "sequence": window_report.SEQUENCE_INFLUENCE_JSON,
    "picture": window_report.SEQUENCE_INFLUENCE_PICTURE,
}
"""File name of each field of `ReportFiles`."""


@dataclass(frozen=True)
class ReportFiles:
    """The files of one report on the local disk; a missing file is None."""

    json: Path | None = None
    parquet: Path | None = None
    text: Path | None = None
    """The explanation of a text, in place of triples."""
    sequence: Path | None = None
    """The explanation of an image sequence, in place of triples."""
    picture: Path | None = None
    """The picture of the frames of an image sequence."""

    @property
    def identity(self) -> tuple[tuple[str, int, int], ...]:
        """Path, modification time and size of each file, to detect changes of a file."""
        try:
            states = [(path, path.stat()) for path in vars(self).values() if path]
        except OSError as error:
            problem = f"{error.filename}: the file no longer exists ({error.strerror})"
            raise DataError(f"{problem}; reload the page, or trace again") from None
        return tuple((str(path), state.st_mtime_ns, state.st_size) for path, state in states)


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))
class ReportHead(influence_report.ReportFrame):
    """The contents of a report except the training facts.

    `tests` has one row per test triple, with the columns `TEST_COLUMNS` and the triple's position
    as index.
    """

    tests: pd.DataFrame


def read_head(files: ReportFiles) -> ReportHead:
    if files.json is None:
        raise DataError(
            "influence.json is missing; expected it, with influence.parquet if you like"
        )
    report = influence_report.read_influence_outline(files.json)
    rows = [(*texts_of(t.test), *(getattr(t, name) for name in OF_TEST)) for t in report.tests]
    tests = distinct(pd.DataFrame(rows, columns=list(TEST_COLUMNS)))
    frame = {each.name: getattr(report, each.name) for each in fields(influence_report.ReportFrame)}
    return ReportHead(**frame, tests=tests)


def read_facts(files: ReportFiles, test_index: int) -> pd.DataFrame:
    """Return the training facts of one test triple: those that helped, then those that opposed.

    The columns are `TRIPLE_COLUMNS`, `place`, `rank`, `influence`, and `part_*` and `checkpoint_*`
    as in the Parquet file. `cosine`, `spread`, `runs_agreeing`, `counterpart` and `train_index` are
    present if the file has them. Labels are `distinct`.
    Rows are in the order of `by_side`: `place` counts them from 1, and `rank` counts each side.
    """
    if files.parquet is not None:
        types, own = _types_of(files.parquet), (forms.TEST_INDEX_COLUMN, test_index)
        table = read_columns(files.parquet, types, INFLUENCE_TABLE, where=own)
        rows: pd.DataFrame = table.to_pandas(strings_to_categorical=True)
    else:
        assert files.json is not None
        rows = _json_rows(files.json, test_index)
    terms = zip(TRIPLE_COLUMNS, forms.TERM_COLUMNS[6:], strict=True)
    columns = {column: rows[name] for column, name in terms}
    columns["influence"] = rows[forms.SCORE_COLUMN].astype(float)
    split = [column for column in map(str, rows.columns) if column.startswith(forms.SPLIT)]
    numbers = [*(column for column in FURTHER_COLUMNS if column in rows), *split]
    columns |= {column: rows[column].astype(float) for column in numbers}
    columns |= {c: rows[c].astype(str) for c in [forms.COUNTERPART_COLUMN] if c in rows}
    columns |= {c: rows[c] for c in [forms.TRAIN_INDEX_COLUMN] if c in rows}
    # Build the frame at once: pandas warns if hundreds of columns are added one by one.
    test = rows[[*forms.TERM_COLUMNS[:6]]].head(1).astype(str).to_numpy().ravel().tolist()
    return distinct(ranked(pd.DataFrame(columns)), dict(zip(test[::2], test[1::2], strict=True)))


def read_paths(files: ReportFiles, test_index: int) -> Paths:
    """Return the paths of one test triple, which only the JSON file has."""
    assert files.json is not None
    report, test = influence_report.read_explained_triple(files.json, test_index)
    return paths_of(test.paths, len(report.model.runs))


def _types_of(path: Path) -> dict[str, pa.DataType]:
    """Return the columns of an influence table with their types, without other programs' ones."""
    needed = [*forms.TERM_COLUMNS, forms.SCORE_COLUMN, forms.TEST_INDEX_COLUMN]
    present = columns_of(path, INFLUENCE_TABLE)
    if missing := [column for column in needed if column not in present]:
        raise DataError(f"{path}: column {missing[0]} is missing; expected {INFLUENCE_TABLE}")
    whole = (forms.TEST_INDEX_COLUMN, forms.TRAIN_INDEX_COLUMN, forms.RANK_COLUMN)
    split = [name for name in present if name.startswith(forms.SPLIT)]
    known = dict.fromkeys((*forms.TERM_COLUMNS, forms.COUNTERPART_COLUMN), pa.string())
    known |= dict.fromkeys((forms.SCORE_COLUMN, *FURTHER_COLUMNS, *split), pa.float64())
    known |= dict.fromkeys(whole, pa.int64())
    return {name: known[name] for name in dict.fromkeys((*needed, *present)) if name in known}


def _json_rows(path: Path, test_index: int) -> pd.DataFrame:
    report, test = influence_report.read_explained_triple(path, test_index)
    steps = [checkpoint.step for checkpoint in report.model.checkpoints]
    rows = []
    for entry in (*test.proponents, *reversed(test.opponents)):
        texts = (*texts_of(test.test), *texts_of(entry.train))
        row: dict[str, object] = dict(zip(forms.TERM_COLUMNS, texts, strict=True))
        row |= {forms.SCORE_COLUMN: entry.influence, forms.TEST_INDEX_COLUMN: test_index}
        row |= window_report.numbers_of(entry, steps)
        rows.append(row | {forms.COUNTERPART_COLUMN: entry.counterpart or ""})
    return pd.DataFrame(rows, columns=None if rows else [*forms.TERM_COLUMNS, forms.SCORE_COLUMN])


def report_files(run_id: str, folder: Path) -> ReportFiles:
    """Return the report files of a trace run; remote files are downloaded into `folder` once."""
    run = find_run(run_id)
    with store.using(f"the explanations of run {run_id}"):
        infos = client().list_artifacts(run_id, names.ARTIFACT_INFLUENCE)
    sizes = {info.path: info.file_size for info in infos}
    found: dict[str, Path] = {}
    for kind, file in REPORT_FILES.items():
        path = f"{names.ARTIFACT_INFLUENCE}/{file}"
        if path in sizes:
            found[kind] = _local_copy(run, path, sizes[path], folder)
    if not found:
        where = f"under {names.ARTIFACT_INFLUENCE}/ in {store.in_use()}"
        why = "it may still be running or may have failed: check its status"
        raise TrackingError(f"run {run_id} ({run.name}) has no influence files {where}; {why}")
    return ReportFiles(**found)


def _local_copy(run: RunRecord, path: str, size: int | None, folder: Path) -> Path:
    """Return the local path of an artifact; download it if the store keeps it on another machine.

    MLflow's own download makes a new copy each time, even of a local file.
    """
    if run.artifact_uri and (local := store.local_path(run.artifact_uri)) is not None:
        return local / path
    target = folder / run.run_id / str(size)
    if not (target / path).is_file():
        download_artifact(run.run_id, path, target)
    return target / path


def admitted(path: Path, name: str) -> tuple[str, Path]:
    """Return the field of `ReportFiles` that an uploaded file is for, and the file to read.

    Args:
        path: The file, with the suffix .json or .parquet.
        name: Its name on the person's computer, for messages.
    """
    try:
        table = read_limited(__name__, str(path), path=str(path))
    except DataError as error:
        raise DataError(str(error).replace(str(path), name)) from None
    kind = table.schema.metadata[b"kind"].decode()
    if kind == "parquet":
        path = path.with_name(f"{path.stem}-read.parquet")
        pq.write_table(table, path)
    return kind, path


def answer(path: str) -> pa.Table:
    """Read a file in the child; return its rows if it is a table, and what it is."""
    file, table = Path(path), pa.table({})
    kind = file.suffix[1:]
    if kind == "json":
        kind = _kind_of_json(file)
        {
            "text": window_report.TextInfluenceReport.read,
            "sequence": window_report.SequenceInfluenceReport.read,
        }.get(kind, influence_report.read_influence_json)(file)
    else:
        table = read_columns(file, _types_of(file), INFLUENCE_TABLE)
        for place, column in enumerate(forms.TERM_COLUMNS):
            table = table.set_column(place, column, table[column].dictionary_encode())
    return table.replace_schema_metadata({"kind": kind})


def _kind_of_json(path: Path) -> str:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # the reader of the report describes the error
        return "json"
    keys = content if isinstance(content, dict) else ()
    return "text" if "prompt" in keys else "sequence" if "prediction" in keys else "json"
