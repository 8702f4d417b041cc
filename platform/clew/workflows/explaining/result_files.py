"""The files that `tracin` and `batch_tracin` write; results of other settings are not overwritten.

`batch_tracin` has a folder with one folder per test triple, a summary and a joined report:

settings.json                 the settings of the results; other settings are refused
tests/000012/influence.json   and .csv, .parquet: written under a temporary name and renamed, so
                              that a test triple is either finished or absent
summary.json                  every test triple: finished, or why it failed
influence/influence.json      and .csv, .parquet: all finished test triples together

The last two cover the whole folder, so a file of test triples can be explained in parts.
"""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from clew import names
from clew.errors import ConfigError, quoted, refusing
from clew.files import replacing, write_whole
from clew.influence.link_prediction.report import Findings, ReportSource, write_report
from clew.link_prediction.triples import Triples
from clew.runs.influence_forms import SPLIT, TEST_INDEX_COLUMN
from clew.runs.influence_report import (
    ExplainedTriple,
    InfluenceReport,
    read_influence_json,
    write_influence_json,
)

R = TypeVar("R")

SETTINGS_FILE = "settings.json"
SUMMARY_FILE = "summary.json"
TESTS_FOLDER = "tests"
VERSION, FILES_VERSION = "version_of_files", 3
"""In the settings; higher if the columns of the files change, as results are joined."""
NOTE_FILE = "test.json"
"""File next to a finished test triple's results that holds its outcome."""
REPORT_FILES = (names.INFLUENCE_JSON, names.INFLUENCE_CSV, names.INFLUENCE_PARQUET)
WITHOUT_EFFECT = {
    "batch_size",
    "enable_memory_cleanup",
    "half_precision_deviation",
    names.SETTING_BEST,
    "memory_budget_mib",
    "seeds",  # the report names the runs
    "tests_per_group",
    "tests_per_pass",
    "tile_triples",
    "use_gradient_checkpointing",
}
"""Settings that change time or memory, or that the rest of a report says, but not the results."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test triple."""

    index: int
    text: str
    status: str
    """`done`, `failed`, or `kept` from an earlier run."""
    message: str = ""
    candidates: int = 0
    score: float | None = None
    rank: float | None = None


@dataclass(frozen=True)
class Summary:
    """The part of `summary.json` that is read back."""

    tests: list[Outcome]


_SETTINGS, _OUTCOMES = TypeAdapter(dict[str, Any]), TypeAdapter(Outcome)
_SUMMARIES = TypeAdapter(Summary)


@dataclass(frozen=True)
class OutputFolder:
    """The folder that results are written to, and the results that are already there."""

    root: Path

    def prepare(self, settings: Mapping[str, Any]) -> None:
        """Create the folder, or accept one that holds results for the same settings."""
        path = self.root / SETTINGS_FILE
        settings = {**settings, VERSION: FILES_VERSION}
        if path.is_file():
            earlier: dict[str, Any] = _read(path, _SETTINGS)
            _require_same(self.root, earlier, settings, "output folder")
        elif self.root.is_dir() and any(self.root.iterdir()):
            raise ConfigError(
                f"{self.root}: is not empty and has no {SETTINGS_FILE}; give a new folder, or the "
                "folder of an earlier batch-tracin"
            )
        (self.root / TESTS_FOLDER).mkdir(parents=True, exist_ok=True)
        _write_json(path, settings)

    def kept(self, index: int, text: str) -> Outcome | None:
        """Return the outcome of a test triple that is finished already; else None."""
        note = self._folder(index) / NOTE_FILE
        if not note.is_file():
            return None
        earlier = _read(note, _OUTCOMES)
        if earlier.text != text:
            raise ConfigError(
                f"{note.parent}: holds results for {quoted(earlier.text)}, line {index + 1} of the "
                f"test triples is now {quoted(text)}; give another output folder"
            )
        return replace(earlier, status="kept")

    def write(self, outcome: Outcome, source: ReportSource, findings: Findings) -> None:
        """Write the results of one test triple, all or nothing."""
        with replacing(self._folder(outcome.index)) as temporary:
            write_report(temporary, source, findings)
            _write_json(temporary / NOTE_FILE, asdict(outcome))

    def summarise(self, outcomes: Sequence[Outcome]) -> None:
        """Write the summary: these outcomes, and the other test triples of the folder.

        The folders are read because a killed command wrote no summary.
        """
        path = self.root / SUMMARY_FILE
        earlier = _read(path, _SUMMARIES).tests if path.is_file() else []
        every = {outcome.index: outcome for outcome in earlier if outcome.status == "failed"}
        for folder in self._finished_folders():
            outcome = _read(folder / NOTE_FILE, _OUTCOMES)
            every[outcome.index] = replace(outcome, status="kept")
        every |= {outcome.index: outcome for outcome in outcomes}
        counts = Counter(done=0, kept=0, failed=0)
        counts.update(outcome.status for outcome in every.values())
        _write_json(path, {**counts, "tests": [asdict(every[index]) for index in sorted(every)]})

    def join(self, frame: InfluenceReport) -> Path:
        """Join the results of all finished test triples, in order, and return their folder.

        `frame` has the common fields.
        """
        target = self.root / names.ARTIFACT_INFLUENCE
        target.mkdir(exist_ok=True)
        folders = self._finished_folders()
        tests, seconds = list[ExplainedTriple](), 0.0
        for path in (folder / names.INFLUENCE_JSON for folder in folders):
            one = read_influence_json(path)
            with _undamaged(path):
                if len(one.tests) != 1:
                    raise ValueError(f"{len(one.tests)} test triples")
            tests += one.tests
            seconds += one.seconds
        report = replace(frame, tests=tuple(tests), seconds=seconds)
        write_influence_json(report, target / names.INFLUENCE_JSON)
        _join_csv(folders, target / names.INFLUENCE_CSV)
        _join_parquet(folders, target / names.INFLUENCE_PARQUET)
        return target

    def _finished_folders(self) -> list[Path]:
        notes = (self.root / TESTS_FOLDER).glob(f"[0-9]*/{NOTE_FILE}")
        found = (note.parent for note in notes if note.parent.name.isdecimal())
        return sorted(found, key=lambda folder: int(folder.name))

    def _folder(self, index: int) -> Path:
        return self.root / TESTS_FOLDER / f"{index:06d}"


def _read(path: Path, kind: TypeAdapter[R]) -> R:
    with _undamaged(path):
        found = kind.validate_json(path.read_bytes())
    return found


def _undamaged(path: Path, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """Refuse a file in the output folder that cannot be read; `kinds` of errors say so."""
    wrong = f"{path}: not what batch-tracin writes"
    advice = "; give another output folder, or remove the damaged one within it to explain that "
    kinds = kinds or (OSError, ValueError, pa.ArrowException)
    return refusing(wrong, *kinds, advice=f"{advice}triple again")


def _join_csv(folders: Sequence[Path], target: Path) -> None:
    headers = {}
    for path in (folder / names.INFLUENCE_CSV for folder in folders):
        with _undamaged(path), path.open(newline="", encoding="utf-8") as part:
            headers[path] = part.readline()
    widest = max(headers.values(), key=len)
    with replacing(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        file.write(widest)
        writer = csv.writer(file, lineterminator="\n")
        for path, header in headers.items():
            part = path.open(newline="", encoding="utf-8")
            with _undamaged(path, UnicodeDecodeError, csv.Error), part:
                part.readline()
                if header == widest:
                    shutil.copyfileobj(part, file)
                else:  # no fact of this test triple is its inverse or duplicate
                    writer.writerows([*row, ""] for row in csv.reader(part))


def _join_parquet(folders: Sequence[Path], target: Path) -> None:
    """Join the tables, so that row groups hold many tests, and renumber the test triples."""
    tables = []
    for place, folder in enumerate(folders):
        path = folder / names.INFLUENCE_PARQUET
        if path.is_file():
            with _undamaged(path):
                table = pq.read_table(path)
                column = table.schema.names.index(TEST_INDEX_COLUMN)
                numbers = pa.array(np.full(len(table), place, np.int32))
                tables.append(table.set_column(column, TEST_INDEX_COLUMN, numbers))
    if not tables:
        target.unlink(missing_ok=True)
        return
    # A group whose shares would not fit into memory has none, so the joined table has none either.
    common = set.intersection(*(set(table.column_names) for table in tables))
    for place, table in enumerate(tables):
        lost = [name for name in set(table.column_names) - common if name.startswith(SPLIT)]
        tables[place] = table.drop_columns(lost)
    with _undamaged(target):  # a table can have columns that the others lack
        table = pa.concat_tables(tables).unify_dictionaries()
    with replacing(target) as temporary:
        pq.write_table(table, temporary, compression="lz4")


def _write_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def check_output(output: Path | None, source: ReportSource, tests: Triples) -> None:
    """Refuse to overwrite results of other settings, models or tests, or of unknown ones."""
    existing = [path for path in targets_of(output) if path.exists()]
    said = [path for path in existing if path.suffix == ".json"]
    if existing and not said:
        raise ConfigError(
            f"{existing[0]} exists and does not say with which settings it was made; give another "
            "output, or move that file away"
        )
    for path in said:
        report = read_influence_json(path)
        otherwise = "output, or move that file away"
        _require_same(path, identity_of(report), identity_of(source), otherwise)
        if [explained.test for explained in report.tests] != [*map(source.triple, tests)]:
            raise ConfigError(f"{path} explains other test triples; give another {otherwise}")


def identity_of(report: ReportSource | InfluenceReport) -> dict[str, Any]:
    """Return what the scores depend on: the model, its checkpoints, and settings with an effect."""
    model = report.model
    checkpoints = [[checkpoint.step, checkpoint.weight] for checkpoint in model.checkpoints]
    content = {key: value for key, value in report.settings.items() if key not in WITHOUT_EFFECT}
    content |= {"model": model.run_id, "checkpoints": checkpoints}
    return content | ({"runs": list(model.runs)} if model.runs else {})


def _require_same(path: Path, earlier: dict[str, Any], now: dict[str, Any], otherwise: str) -> None:
    for key in {**now, **earlier}:
        if earlier.get(key) != now.get(key):
            raise ConfigError(
                f"{path} holds results for other settings ({quoted(key)[1:-1]}: "
                f"{quoted(earlier.get(key))} there, {quoted(now.get(key))} now); give another "
                f"{otherwise}"
            )


def copy_files(folder: Path, output: Path | None) -> None:
    """Copy the three files to a folder, or one of them to a file, each all or nothing."""
    for target in targets_of(output):
        if (found := folder / f"influence{target.suffix}").is_file():
            with replacing(target) as temporary:
                shutil.copyfile(found, temporary)


def targets_of(output: Path | None) -> list[Path]:
    """Return the files that an output path means: itself, or three in a folder."""
    if output is None:
        return []
    files = [output / name for name in REPORT_FILES]
    return [output] if output.suffix in {file.suffix for file in files} else files
