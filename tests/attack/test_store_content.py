"""Hostile content of a shared store: reviews, decisions, studies, names."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew import names
from clew.runs.reading import run_details
from clew.runs.reading.disagreements import find_disagreements, settled, wrong_facts_tsv
from clew.runs.reading.models import read_vocabulary
from clew.runs.reading.reviews import (
    DataOrigin,
    count_verdicts,
    read_reviews,
    reviews_csv,
)
from clew.runs.reading.runs import client, find_run
from tests.attack.cases import attempt, fuzz, require_one_line
from tests.attack.damage import damaged_bytes, damaged_json, texts, values
from tests.attack.material import Material
from tests.attack.test_reports import damaged_parquet
from tests.workflows.trained import use_store

pytestmark = pytest.mark.slow

FACT = {key: key for key in ("head", "relation", "tail", "head_label", "tail_label")}
REVIEW: dict[str, Any] = {
    "schema_version": 1, "run_id": "", "test": FACT, "verdict": "plausible", "reviewer": "ada",
    "comment": "why", "convincing": [FACT], "wrong": [FACT | {"head": "b"}],
    "created": "2026-01-01T00:00:00+00:00", "review_id": "0" * 32,
}  # fmt: skip
DECISION: dict[str, Any] = {
    "schema_version": 1, "run_id": "", "about": "fact", "triple": FACT, "verdict": "wrong",
    "person": "ada", "comment": "why", "review_ids": ["0" * 32],
    "created": "2026-01-01T00:00:00+00:00", "decision_id": "1" * 32,
}  # fmt: skip
ROW = {
    "variant": "mixed", "metric": "m", "label": "examples/s", "values": {"0": 2.0}, "median": 2.0,
    "ratio": {"value": 0.5, "low": 0.4, "high": 0.6, "rounds": 3},
}  # fmt: skip
STUDY = {"study": "precision", "machine": "x", "reference": "fp32", "results": [ROW, ROW]}


@pytest.fixture
def artifacts(material: Material) -> Iterator[Path]:
    """Return the folder of a trace run's files, and restore it after the test."""
    run_id = material.trace_run
    folder = next(material.folder.glob(f"mlartifacts/*/{run_id}/artifacts"))
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        yield folder
    for name in ("reviews", "decisions", "study", "evaluation"):
        shutil.rmtree(folder / name, ignore_errors=True)


def written(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def test_reviews_and_decisions(material: Material, artifacts: Path) -> None:
    run_id = material.trace_run
    run, origin = find_run(run_id), DataOrigin("umls", "0" * 16)
    good = REVIEW | {"run_id": run_id, "reviewer": "bob", "convincing": REVIEW["wrong"]}
    written(artifacts / "reviews/good.json", json.dumps(good).encode())

    def show() -> None:
        found = read_reviews(run_id)
        for problem in found.problems:
            require_one_line(problem)
        assert found.records
        ours = [each for each in found.records if each.run_id == run_id]
        count_verdicts(settled(found.records), "relation")
        find_disagreements(ours, [run])
        reviews_csv(found.records).encode()
        wrong_facts_tsv(found.records, origin).encode()

    def case(draw: DrawFn) -> None:
        for name, record in (("reviews", REVIEW), ("decisions", DECISION)):
            content = draw(damaged_json(record | {"run_id": run_id}))
            written(artifacts / name / "damaged.json", content)
        attempt(show)

    fuzz(0.002, case)


def test_studies(material: Material, artifacts: Path) -> None:
    def show() -> None:
        run_details.read_study(material.trace_run)

    def case(draw: DrawFn) -> None:
        written(artifacts / run_details.STUDY_FILE, draw(damaged_json(STUDY)))
        attempt(show)

    fuzz(0.002, case)


def test_names_and_ranks(material: Material, artifacts: Path) -> None:
    run_id = material.graph_run
    own = next(material.folder.glob(f"mlartifacts/*/{run_id}/artifacts"))
    table = {name: ["a", "b"] for name in ("label", "side")} | {"num_queries": [1, 2]}
    table |= {names.MRR: [0.5, 0.5], names.MEAN_RANK: [2.0, 2.0]}
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    wholes = {path: path.read_bytes() for path in sorted((own / "vocabulary").iterdir())}
    wholes[own / "evaluation/attacked_by_relation.parquet"] = buffer.getvalue()

    def show() -> None:
        read_vocabulary(run_id)
        frame = run_details.read_by_relation(run_id, "attacked")
        np.asarray(frame["num_queries"], float)

    for path, whole in wholes.items():
        written(path, whole)

    def case(draw: DrawFn) -> None:
        path = draw(st.sampled_from(list(wholes)))
        path.write_bytes(damaged_parquet(draw, wholes[path]))
        try:
            attempt(show)
        finally:
            path.write_bytes(wholes[path])

    fuzz(0.002, case)
    (own / "evaluation/attacked_by_relation.parquet").unlink()


def test_tags_and_logs(material: Material, artifacts: Path) -> None:
    """Read a run's records, which any program can have written."""
    run_id, log = material.trace_run, artifacts / names.ARTIFACT_LOG
    before = log.read_bytes() if log.is_file() else None

    def show() -> None:
        run_details.read_text(run_id, names.ARTIFACT_LOG).encode()
        run_details.list_data(run_id)
        find_run(run_id)

    def case(draw: DrawFn) -> None:
        written(log, draw(damaged_bytes(before or b"epoch 1\n")))
        key = draw(st.sampled_from([names.TAG_HEARTBEAT, names.TAG_KIND, names.TAG_DATASET]))
        value = draw(st.one_of(texts, values.map(str))).encode("utf-8", "replace").decode()
        earlier = find_run(run_id).tags.get(key, "")
        client().set_tag(run_id, key, value)
        try:
            attempt(show)
        finally:
            client().set_tag(run_id, key, earlier)

    fuzz(0.001, case)
    if before is not None:
        log.write_bytes(before)
