"""Small cases that the attack found: each once crashed, and is now refused in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.__main__ import MAX_CHARACTERS, run
from clew.config.data import TokenData
from clew.config.load import from_mapping, load, parse_assignments
from clew.errors import CheckpointError, ConfigError
from clew.image_sequences.errors import HeldOutErrors
from clew.language_modeling.documents import plan_units, read_unit
from clew.language_modeling.model import Sampling
from clew.language_modeling.packed_tokens import read_manifest
from clew.language_modeling.tokens import load_tokens
from clew.link_prediction.calibration import AnswerSets, Calibration
from clew.link_prediction.descriptions import read_edge_map
from clew.link_prediction.given_negatives import read_given_negatives
from clew.link_prediction.subject import read_known
from clew.link_prediction.triples import KnowledgeGraph, no_triples
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.influence_forms import SCORE_COLUMN, TERM_COLUMNS, TEST_INDEX_COLUMN
from clew.runs.influence_report import read_influence_json
from clew.runs.reading.reports import ReportFiles, read_facts
from clew.workflows.explaining.trace_source import read_test_triples, usable
from clew.workflows.predict import read_queries
from clew.workflows.subjects import build_task
from tests.attack.cases import refused

RELATIONS = Vocabulary.from_names("relation", ["likes"])
ENTITIES = Vocabulary.from_names("entity", ["a", "b"])


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("\r", "map.json: not JSON .*line 2"),
        ('{"likes"\r', "map.json: not JSON .*line 2"),
        ("[" * 100_000, "map.json: not JSON"),
        ('{"likes": ' + "9" * 5_000 + "}", "map.json: not JSON"),
        ('{"likes": "\\ud800"}', "is not UTF-8|surrogates not allowed"),
    ],
)
def test_edge_maps(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "map.json"
    path.write_bytes(content.encode())
    refused(lambda: read_edge_map(path, RELATIONS), says)


def test_an_edge_map_of_senseless_size_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    with path.open("wb") as file:
        file.truncate(2**26 + 1)
    refused(lambda: read_edge_map(path, RELATIONS), "larger than 67,108,864 bytes")


@pytest.mark.parametrize("test", [",".join("a" * 3_000), "a\0,likes,b", "x" * 9_000, "\udcff,a,b"])
def test_triples_that_are_none(test: str) -> None:
    graph = KnowledgeGraph(
        "g", ENTITIES, RELATIONS, train=no_triples(), valid=no_triples(), test=no_triples()
    )
    refused(lambda: usable(read_test_triples(test, graph), test), "no such file|line 1: ")


@pytest.mark.parametrize("line", ["{" + "[" * 100_000, '{"x": ' + "9" * 5_000 + "}", "a" * 9_000])
def test_queries_that_are_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "queries.txt"
    path.write_text(line)
    refused(lambda: read_queries(path), "line 1: ")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(40), b"\x93NUMPY\x01\x00"])
def test_wrong_answers_that_are_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.npz"
    path.write_bytes(content)
    refused(lambda: read_given_negatives(path, ENTITIES, RELATIONS), "not an .npz file")


@pytest.mark.parametrize("head", [np.array(7), np.zeros(1, complex), np.array([b"\xff"])])
def test_wrong_answers_that_are_no_names(tmp_path: Path, head: np.ndarray) -> None:
    path, one, likes = tmp_path / "wrong.npz", np.array(["a"]), np.array(["likes"])
    np.savez(path, head=head, relation=likes, tail=one, head_neg=one[None], tail_neg=one[None])
    refused(lambda: read_given_negatives(path, ENTITIES, RELATIONS), "array head")


@pytest.mark.parametrize(
    ("key", "value"), [("data.train", "a\0b"), ("tracking.run_name", "\ud800")]
)
def test_settings_that_no_file_can_hold(key: str, value: str) -> None:
    refused(
        lambda: load("umls", {key: value}), "valid Unicode text without NUL characters", ConfigError
    )


def test_settings_without_end_are_shown_in_part() -> None:
    refused(lambda: load("umls", parse_assignments(["x" * 9_000 + "=1"])), "xxx…", ConfigError)
    refused(lambda: load("umls", {f"model.{'x' * 9_000}": 1}), "unknown key", ConfigError)
    refused(lambda: load("umls", {"model.kind": "x" * 9_000}), "is not valid", ConfigError)
    refused(lambda: load("umls", {"evaluation.metric": "x" * 9_000}), "valid: ", ConfigError)
    refused(lambda: load("x" * 9_000), "no such configuration", ConfigError)
    refused(lambda: load("~no such user/x"), "no such configuration", ConfigError)


def test_a_message_without_end_is_cut_and_shows_what_does_not_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["no\x1b[2Jsense" * 900]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert sum(map(len, lines)) < 12 * MAX_CHARACTERS
    assert all(line.isprintable() for line in lines)


def test_a_warning_shows_what_does_not_print(tmp_path: Path) -> None:
    given = "experiments/link_pre\x1b[2Jdiction/codex_s.yaml"
    command = [sys.executable, "-m", "clew", "train", "--config", given, "data.name=none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    warning = next(line for line in done.stderr.splitlines() if "ships with Clew" in line)
    assert warning.isprintable()
    assert r"\x1b[2J" in warning


def test_a_report_whose_numbers_are_none(tmp_path: Path) -> None:
    path = tmp_path / "influence.json"
    content = {
        "schema_version": 2,
        "model": {"run_id": "", "task": "", "checkpoints": []},
        "settings": {},
        "train_size": float("-inf"),
        "seconds": 1.0,
        "device": "cpu",
        "tests": [],
    }
    path.write_text(json.dumps(content))
    refused(lambda: read_influence_json(path), "train_size")


def test_tables_with_text_where_numbers_belong(tmp_path: Path) -> None:
    terms = {column: ["a"] for column in TERM_COLUMNS}
    path = table(
        tmp_path / "i.parquet", **terms, **{SCORE_COLUMN: ["much"], TEST_INDEX_COLUMN: [0]}
    )
    refused(lambda: read_facts(ReportFiles(parquet=path), 0), "not an influence table")
    path = table(tmp_path / "k.parquet", head=["x"], relation=[0], tail=[0])
    refused(lambda: read_known(path), "not a file of known triples")
    path = table(tmp_path / "e.parquet", split=["valid"], error=["x"])
    refused(lambda: HeldOutErrors.read(path), "not a file of errors")
    path = table(tmp_path / "a.parquet", split=["valid"], relation=[0], surprise=["x"])
    refused(lambda: AnswerSets.read(path), "not a file of answer sets")
    path = table(tmp_path / "v.parquet", name=[None], label=["x"])
    refused(lambda: Vocabulary.read(path, "entity"), "not a vocabulary of a run")


@pytest.mark.parametrize("content", ['{"temperature": "1"}', "[", "[" * 100_000, "null", "7"])
def test_calibrations_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(content)
    refused(lambda: Calibration.read(path), "not a calibration", CheckpointError)


@pytest.mark.parametrize("content", ['{"num_tokens": "many"}', "[" * 100_000, "null", "{}"])
def test_manifests_of_packs_that_are_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    refused(lambda: read_manifest(tmp_path), "not a manifest of packed tokens")


def test_a_pack_by_a_tokenizer_whose_fingerprint_does_not_print(tmp_path: Path) -> None:
    corpus, packed = tmp_path / "corpus.txt", tmp_path / "packed"
    corpus.write_text("green bottles on a wall\n" * 40)
    config = TokenData(dataset=str(corpus), packed=str(packed))
    load_tokens(config, window=16)
    manifest = json.loads((packed / "manifest.json").read_text())
    changed = manifest | {"tokenizer_fingerprint": "\n\x85"}
    (packed / "manifest.json").write_text(json.dumps(changed))
    refused(lambda: load_tokens(config, window=16), "packed with tokenizer")


def test_a_token_that_the_vocabulary_does_not_have(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("green bottles on a wall\n" * 40)
    config = TokenData(dataset=str(corpus), packed=str(tmp_path / "packed"))
    load_tokens(config, window=16)
    path = tmp_path / "packed/tokens.bin"
    content = bytearray(path.read_bytes())
    content[41] ^= 0x40  # the upper byte of a token
    path.write_bytes(content)
    windows = load_tokens(config, window=16).windows["train"]
    refused(lambda: windows.batch(np.arange(len(windows))), "vocabulary has 257 tokens; the file")
    content[-41] ^= 0x40
    path.write_bytes(content)
    config = from_mapping({"data": {"kind": "tokens", "packed": str(tmp_path / "packed")}})
    task = build_task(config)
    refused(lambda: task.has_examples("test"), "vocabulary has 257 tokens; the file")


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": float("nan")}])
def test_draws_that_cannot_be(wrong: dict[str, float]) -> None:
    refused(lambda: Sampling(**wrong), "expected a temperature of at least 0", ConfigError)


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    path = table(tmp_path / "corpus.parquet", text=[1, 2])
    (unit,) = plan_units(str(path))
    refused(lambda: list(read_unit(unit, "text")), "column 'text' has type int64; expected text")
