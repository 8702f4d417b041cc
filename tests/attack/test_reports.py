"""Damaged files of explanations, and tables and records of models and runs."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from pydantic import ValidationError

from clew.runs.influence_report import (
    read_explained_triple,
    read_influence_json,
    read_influence_outline,
)
from clew.runs.reading.explanation import html_report, open_explanation, trapi_json
from clew.runs.reading.reports import ReportFiles, read_facts, read_head
from clew.runs.validation_record import ValidationRecord
from clew.runs.window_report import TextInfluenceReport
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import as_json, damaged_bytes, damaged_json, damaged_value, values
from tests.attack.material import Material

pytestmark = pytest.mark.slow


def show(files: ReportFiles) -> None:
    """Read the parts of a report that the dashboard shows."""
    head = read_head(files)
    for index in head.tests.index[:1]:
        read_facts(files, int(index))


def no_utf8(count: int) -> pa.StringArray:
    """Return values that are not texts."""
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32))
    return pa.StringArray.from_buffers(count, ends, pa.py_buffer(b"\xff" * count))


def damaged_parquet(draw: DrawFn, content: bytes) -> bytes:
    """Return the bytes of a table with damage, or with a changed or missing column."""
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged_bytes(content, most=2))
    table = pq.read_table(io.BytesIO(content))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, table.num_columns - 1))
        count = table.num_rows
        others = [
            pa.array(["text"] * count),
            pa.array(["7"] * count),
            pa.array([b"\xff"] * count).cast(pa.binary()),
            pa.nulls(count),
            pa.array([2**40] * count),
            pa.array([-1] * count),
            pa.array([1.5] * count),
            pa.array([float("nan")] * count),
            pa.array([[1]] * count),
            pa.array([{"a": 1}] * count),
            no_utf8(count),
        ]
        match draw(st.integers(0, 3)):
            case 0 if table.num_columns > 1:
                table = table.remove_column(place)
            case 1:
                table = table.slice(0, draw(st.integers(0, 2)))
            case _:
                name = table.column_names[place]
                table = table.set_column(place, name, draw(st.sampled_from(others)))
    written = io.BytesIO()
    pq.write_table(table, written)
    return written.getvalue()


def test_explanations_as_json(material: Material, place: Path) -> None:
    content = json.loads((material.report / "influence.json").read_bytes())
    path = place / "influence.json"
    reads: list[Callable[[Path], object]] = [
        read_influence_json,
        read_influence_outline,
        lambda path: read_explained_triple(path, 0),
        lambda path: show(ReportFiles(json=path)),
    ]

    def case(draw: DrawFn) -> None:
        small = content | {"tests": content["tests"][: draw(st.integers(0, 2))]}
        path.write_bytes(draw(damaged_json(small)))
        read = draw(st.sampled_from(reads))
        attempt(lambda: read(path))

    fuzz(0.025, case)


def test_explanations_as_tables(material: Material, place: Path) -> None:
    table = (material.report / "influence.parquet").read_bytes()
    path = place / "influence.parquet"

    def case(draw: DrawFn) -> None:
        path.write_bytes(damaged_parquet(draw, table))
        attempt(lambda: show(ReportFiles(json=material.report / "influence.json", parquet=path)))

    fuzz(0.025, case)


def test_explanations_that_are_handed_on(material: Material, place: Path) -> None:
    content = json.loads((material.report / "influence.json").read_bytes())
    content["tests"] = content["tests"][:1]
    path = place / "handed on.json"

    def write() -> None:
        explanation = open_explanation(str(path), 0)
        html_report(explanation).encode()
        json.loads(trapi_json(explanation))

    def case(draw: DrawFn) -> None:
        test = draw(damaged_value(content["tests"][0]))
        path.write_bytes(as_json(content | {"tests": [test]}))
        attempt(write)

    fuzz(0.005, case)


def test_explanations_of_texts(material: Material, place: Path) -> None:
    content = json.loads((material.folder / "text.json").read_bytes())
    path = place / "text.json"

    def case(draw: DrawFn) -> None:
        path.write_bytes(draw(damaged_json(content)))
        attempt(lambda: TextInfluenceReport.read(path))

    fuzz(0.01, case)


def test_results_of_tests_of_explanations(place: Path) -> None:
    measured = {"mean": 0.5, "half_width": 0.1}
    score = {"form": "raw", "drop": 0.1, "seeds": "same", "correlation": measured}
    content = {
        "source_run": "0" * 32,
        "data_fingerprint": "0" * 16,
        "config_hash": "0",
        **dict.fromkeys(("num_tests", "num_subsets", "num_other_seeds", "num_retrainings"), 1),
        "largest_difference": 0.0,
        "scores": [score],
        "ceilings": [{"drop": 0.1, "correlation": 0.9}],
        "deletions": [],
    }
    path = place / "validation.json"

    def read() -> None:
        try:
            record = ValidationRecord.model_validate_json(path.read_bytes())
        except ValidationError:
            return
        list(record.markdown())
        record.summary("raw", "0" * 32)

    def case(draw: DrawFn) -> None:
        path.write_bytes(draw(damaged_json(draw(st.sampled_from([content, {}, draw(values)])))))
        attempt(read)

    fuzz(0.01, case)
