"""Further cases that the attack found: manifests, leftover files, stores, journals, servers."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from clew.config.load import load
from clew.errors import CheckpointError, ClewError, ConfigError, TrackingError
from clew.influence.retraining import IDENTITY_FILE, KeptRetrainings, Retraining
from clew.influence.unrolling import KeptInFile
from clew.runs.base import RECORDS, Unreadable
from clew.runs.delivery import sync_spool
from clew.runs.influence_report import read_influence_outline
from clew.runs.reading.run_details import read_by_relation, read_study
from clew.runs.request_door import (
    LIMIT_VARIABLE,
    SERVED_PATH,
    Budget,
    Door,
    _fault_in_table,
    close_door,
)
from clew.runs.store import creation_lock
from clew.runs.window_report import TextInfluenceReport
from clew.training.manifest import MANIFEST_FILE, read_manifest
from clew.training.progress import last_step
from clew.workflows.explaining.result_files import (
    NOTE_FILE,
    SETTINGS_FILE,
    SUMMARY_FILE,
    OutputFolder,
    _join_csv,
    _join_parquet,
)
from clew.workflows.model_source import open_model
from tests.attack.cases import refused, require_one_line
from tests.edited import with_digest

SETTINGS = {"model": "0" * 32}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_fingerprint": "\x1b[2J"}, "data_fingerprint"),
        ({"run_id": "x" * 5_000}, "run_id"),
        ({"sha256": {"x" * 400: "0"}}, "sha256"),
        ({"sha256": {"/proc/kcore": "0"}}, "sha256"),
    ],
)
def test_manifests_whose_names_are_none(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    content = {
        "step": 1, "epoch": 1, "learning_rate_weight": 0.5, "task": "toy", "config": {},
        "config_hash": "0", "data_fingerprint": "0", "schema_version": 1, "sha256": {},
    }  # fmt: skip
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(with_digest(content)))
    assert read_manifest(tmp_path).task == "toy"
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(with_digest(content | change)))
    refused(lambda: read_manifest(tmp_path), says, CheckpointError)


def test_a_task_that_is_not_that_of_the_data(tmp_path: Path) -> None:
    content = {
        "step": 1, "epoch": 1, "learning_rate_weight": 0.5, "config_hash": "0",
        "data_fingerprint": "0", "schema_version": 1, "task": "language_modeling",
        "config": load("umls").model_dump(mode="json"), "sha256": {},
    }  # fmt: skip
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(with_digest(content)))
    (tmp_path / "model.safetensors").touch()

    def opened() -> None:
        with open_model(str(tmp_path)):
            pass

    refused(opened, "does not use data of kind triples", CheckpointError)


@pytest.mark.parametrize(
    "content", ["", "[", '{"a": ' + "[" * 900 + "]" * 900 + "}", "7", "\udcff"]
)
@pytest.mark.parametrize("name", [SETTINGS_FILE, SUMMARY_FILE, f"tests/000000/{NOTE_FILE}"])
def test_results_of_a_batch_that_are_none(tmp_path: Path, name: str, content: str) -> None:
    output = OutputFolder(tmp_path)
    output.prepare(SETTINGS)
    (tmp_path / "tests/000000").mkdir(parents=True)
    (tmp_path / "tests/1abc").mkdir()
    (tmp_path / f"tests/1abc/{NOTE_FILE}").write_text("{}")
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))

    def go_on() -> None:
        output.prepare(SETTINGS)
        output.kept(0, "a")
        output.summarise([])

    refused(go_on, "not what batch-tracin writes")


def test_a_table_of_a_batch_whose_pages_are_none(tmp_path: Path) -> None:
    folder, path = tmp_path / "tests/000000", tmp_path / "tests/000000/influence.parquet"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"test_index": list(range(99))}), path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 20 + content[24:])
    refused(lambda: _join_parquet([folder], tmp_path / "all.parquet"), "not what batch-tracin")


def test_a_csv_of_a_batch_that_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "tests/000000"
    folder.mkdir(parents=True)
    (folder / "influence.csv").write_bytes(b"head,tail\n" + b"a,b\n" * 9_000 + b"\x85\n")
    refused(lambda: _join_csv([folder], tmp_path / "all.csv"), "not what batch-tracin")
    assert not (tmp_path / "all.csv").exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(40), b"", b"\x93NUMPY\x01\x00"])
def test_retrainings_that_are_none(tmp_path: Path, content: bytes) -> None:
    retraining, kept = Retraining(0, np.array([1])), KeptRetrainings(tmp_path / "a", "of this")
    (tmp_path / "a").mkdir()
    (tmp_path / f"a/{retraining.key}.npz").write_bytes(content)
    refused(lambda: kept.read(retraining), "delete it")
    (tmp_path / "a" / IDENTITY_FILE).write_bytes(b"\xff{")
    refused(lambda: KeptRetrainings(tmp_path / "a", "of this"), "something else|another", ClewError)


def test_a_damaged_pass_begins_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "pass.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert KeptInFile(tmp_path / "pass.safetensors", torch.device("cpu")).read() is None
    assert "the pass begins again" in caplog.text


def test_a_history_of_words(tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    pq.write_table(pa.table({"step": ["many"]}), path)
    refused(lambda: last_step(path), "not a run's history", CheckpointError)


@pytest.mark.parametrize(
    "content",
    ["[" * 900 + "]" * 900, '{"study": "a", "machine": "b", "reference": "c", "results": [{'
     '"variant": "", "label": "", "ratio": null, "median": "many"}]}'],
)  # fmt: skip
def test_studies_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "study.json").write_text(content)
    monkeypatch.setattr(
        "clew.runs.reading.runs.download_artifact", lambda *_: tmp_path / "study.json"
    )
    refused(lambda: read_study("0" * 32), "not a study's report", TrackingError)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "metrics", "values": {}, "step": 2**63, "time_ms": 1},
        {"kind": "metrics", "values": {}, "step": 1, "time_ms": -(2**70)},
        {"kind": "finish", "status": "FINISHED", "time_ms": 2**63},
        {"kind": "artifact", "staged": "files/7/..", "folder": ""},
        {"kind": "artifact", "staged": "files/7/.", "folder": ""},
        {"kind": "artifact", "staged": f"files/{'7' * 300}/a", "folder": ""},
        {"kind": "checkpoint", "staged": "files/7/a", "folder": "a", "step": 1,
         "metrics": {"a": 1.0}, "metric_times_ms": {}},
    ],
)  # fmt: skip
def test_messages_that_no_store_can_take(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        RECORDS.validate_python(change)
    assert isinstance(RECORDS.validate_python({"kind": "unreadable", "line": "", "reason": ""}),
                      Unreadable)  # fmt: skip


@pytest.mark.parametrize("damage", ["sent", "refused.jsonl", "files", "an address with NUL"])
def test_one_journal_that_is_none_keeps_no_other(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "spool" / ("0" * 32)
    folder.mkdir(parents=True, mode=0o700)
    origin = {"tracking_uri": "sqlite:///a", "run_id": folder.name, "experiment_id": "1"}
    (folder / "journal.jsonl").touch()
    if damage == "files":
        (folder / damage).touch()
    elif damage in {"sent", "refused.jsonl"}:
        (folder / damage).mkdir()
    else:
        origin["tracking_uri"] += "\0"
    (folder / "run.json").write_text(json.dumps(origin))
    (result,) = sync_spool(folder.parent)
    assert any(said in (result.problem or "") for said in ("not readable", "not a regular file"))
    require_one_line(result.problem or "")


@pytest.mark.parametrize(
    "table",
    [{"columns": [{}], "data": [[1]]}, {"columns": ["a"], "index": [[1]], "data": [[1]]},
     {"columns": 7, "data": []}],
)  # fmt: skip
def test_a_table_whose_columns_have_no_names(table: dict[str, object]) -> None:
    assert "is not a list as pandas writes it" in (_fault_in_table(table) or "")


@pytest.mark.parametrize("read", [read_influence_outline, TextInfluenceReport.read])
def test_versions_without_end_are_shown_in_part(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"schema_version": "x" * 9_000}))
    refused(lambda: read(path), "schema_version is 'xxx")


def test_ranks_that_are_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_by_relation.parquet"
    columns = {key: ["many"] for key in ("label", "side", "num_queries", "mrr", "mean_rank")}
    pq.write_table(pa.table(columns), path)
    monkeypatch.setattr("clew.runs.reading.runs.download_artifact", lambda *_: path)
    refused(lambda: read_by_relation("0" * 32, "test"), "not a table of ranks")


BUDGET = Budget(1, "rows", lambda num_rows, num_bytes, params: num_rows)


@pytest.mark.parametrize("text", ["[1]", "null", "7", "[" * 100_000, ""])
def test_an_answer_that_is_no_object(text: str) -> None:
    code, line = Door("rows", frozenset(), frozenset(), BUDGET)._told(text)
    assert code == "BAD_REQUEST"
    require_one_line(line)
    assert io.StringIO(line).readline() == line


@pytest.mark.parametrize("given", ["x", "inf", "nan", "0", "-1", "1e999"])
def test_a_limit_of_requests_that_is_no_size(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVED_PATH, "model")
    monkeypatch.setenv(LIMIT_VARIABLE, given)
    with pytest.raises(
        SystemExit, match=f"CLEW_REQUEST_MIB='{given}'; expected a number of MiB"
    ) as caught:
        close_door("rows", frozenset(), frozenset(), BUDGET)
    require_one_line(str(caught.value))


def test_a_frame_model_without_end_is_not_built() -> None:
    refused(lambda: load("era5", {"model.temporal_layers": 10**6}), "temporal_layers", ConfigError)


@pytest.mark.parametrize("folder", ["/proc", "/proc/self", "/dev/null/x"])
def test_a_lock_that_cannot_be_made_is_not_waited_for(folder: str) -> None:
    uri = f"sqlite:///{folder}/runs.db"
    refused(lambda: creation_lock(uri).__enter__(), "its lock cannot be made", TrackingError)
