"""Two and four processes that share the table answer and explain like one process, in float64.

Some models were trained by four processes, which wrote their own rows; others by one process.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clew import names
from clew.config.data import TripleData
from clew.errors import CheckpointError
from clew.link_prediction.sources import load_graph
from clew.link_prediction.triples import HEAD, TAIL, KnowledgeGraph, Triples
from clew.training.checkpoints import load_tensors
from clew.training.manifest import MODEL_FILE
from clew.training.sharding.rows import RowShard
from clew.training.sharding.traffic import lookup_bytes
from tests.workflows.explanation_traffic import answer_bytes, trace_bytes
from tests.workflows.shared_table_plan import (
    ASKED,
    COUNTS,
    DIM,
    ENTITIES,
    NUM_QUERIES,
    NUM_TESTS,
    RELATIONS,
    asked,
    forms,
    pairs,
    spoil,
    trained,
    trainings,
    write_data,
    wrong,
)
from tests.workflows.shared_table_runs import ROOT, run_all
from tests.workflows.test_train_command import artifacts_of, clew_environment, runs_in
from tests.workflows.trained import copy_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, store_template: Path) -> Path:
    """Return the folder with the output of all commands of this file."""
    root = tmp_path_factory.mktemp("shared")
    data = write_data(root)
    copy_store(store_template, root)
    environment = clew_environment(root / "mlflow.db") | {
        "CLEW_SPOOL": str(root / "spool"),
        "XDG_CACHE_HOME": str(root / "cache"),
    }
    environment["PYTHONPATH"] = ":".join([environment["PYTHONPATH"], *filter(None, sys.path)])
    run_all([(by, list(trainings(root, data, by))) for by in (1, 4)], environment, "float64")
    spoil(root)
    groups = [(count, asked(root, count)) for count in COUNTS]
    run_all([*groups, *((2, [command]) for command in wrong(root))], environment, "float64")
    return root


def said(root: Path, place: str, rank: int = 0) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / f"{place}.{rank}.json").read_text())
    return content


def require_close(ours: object, theirs: object, where: str = "") -> None:
    """Compare JSON values: numbers with a tolerance of 1e-12, everything else exactly."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert ours.keys() == theirs.keys(), where
        for key, value in theirs.items():
            require_close(ours[key], value, f"{where}.{key}")
    elif isinstance(theirs, list):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs), where
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            require_close(a, b, f"{where}[{number}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12), where
    else:
        assert ours == theirs, where


CASES = [(*pair, count) for count in COUNTS[1:] for pair in pairs(count)]


@pytest.mark.parametrize(("model", "by", "count"), CASES)
def test_answers_equal_those_of_one_process(root: Path, model: str, by: int, count: int) -> None:
    for name in ASKED:
        one = said(root, f"asked-1/{model}-{by}/{name}")
        assert len(one["predictions"]) == 2 * NUM_QUERIES + 4
        for rank in range(count):
            many = said(root, f"asked-{count}/{model}-{by}/{name}", rank)
            require_close(many["predictions"], one["predictions"], name)
            assert many["notes"] == one["notes"]


@pytest.mark.parametrize("count", COUNTS[1:])
def test_probabilities_equal_those_of_one_process(root: Path, count: int) -> None:
    one = said(root, "asked-1/calibrated")
    assert any(a["probability"] for p in one["predictions"] for a in p["answers"])
    for rank in range(count):
        many = said(root, f"asked-{count}/calibrated", rank)
        require_close(many["predictions"], one["predictions"])


def explained(folder: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the table of scores and the report without the parts that differ between runs."""
    report = json.loads((folder / names.INFLUENCE_JSON).read_text())
    report.pop("seconds")
    return report, pq.read_table(folder / names.INFLUENCE_PARQUET).to_pydict()


def require_same_explanation(ours: Path, theirs: Path) -> None:
    (report, table), (expected_report, expected) = explained(ours), explained(theirs)
    assert table.keys() == expected.keys()
    for key, column in expected.items():
        if key == "tracin_score":
            size = max(map(abs, column))
            assert size > 0
            np.testing.assert_allclose(table[key], column, rtol=1e-12, atol=1e-12 * size)
        elif isinstance(column[0], float):  # kept in float32
            np.testing.assert_allclose(table[key], column, rtol=1e-6, atol=1e-7)
        else:
            assert table[key] == column, key
    for own, test in zip(report["tests"], expected_report["tests"], strict=True):
        for key in ("test", "rank", "candidates"):
            assert own[key] == test[key]
        for key in ("score", "self_influence"):
            assert own[key] == pytest.approx(test[key], rel=1e-6)
    for key in ("settings", "model", "train_size", "sign"):
        assert report[key] == expected_report[key]


@pytest.mark.parametrize(("model", "by", "count"), CASES)
def test_explanations_equal_those_of_one_process(
    root: Path, model: str, by: int, count: int
) -> None:
    for name in forms(model, by):
        place = f"{model}-{by}/trace {name}"
        require_same_explanation(root / f"asked-{count}" / place, root / "asked-1" / place)


@pytest.mark.parametrize("count", COUNTS[1:])
def test_a_batch_equals_that_of_one_process(root: Path, count: int) -> None:
    theirs, ours = root / "asked-1/batch", root / f"asked-{count}/batch"
    require_same_explanation(ours / "influence", theirs / "influence")
    assert said(root, f"asked-{count}/batch")["statuses"] == ["kept"] * NUM_TESTS
    assert json.loads((ours / "summary.json").read_text()) == json.loads(
        (theirs / "summary.json").read_text()
    )


def test_the_main_process_alone_records_and_writes(root: Path) -> None:
    runs = [r for r in runs_in(root / "mlflow.db") if r.data.tags["clew.kind"] == "trace"]
    finished = {run.info.run_id for run in runs if run.info.status == "FINISHED"}
    expected = set()
    for count in COUNTS:
        place = root / f"asked-{count}"
        for path in (p for p in place.glob("**/*.json") if p.name.count(".") == 2):
            content = json.loads(path.read_text())
            is_main = path.name.endswith(".0.json")
            assert "error" not in content, content
            assert content.get("run_id") is None or is_main
            if is_main and "run_id" in content:
                expected.add(content["run_id"])
    # The output of the second of two equal batches overwrites that of the first.
    assert len(expected) == len(finished) - len(COUNTS)
    assert expected < finished
    run_id = said(root, "asked-4/distmult-4/trace raw")["run_id"]
    assert artifacts_of(root / "mlflow.db", run_id, "influence") == {
        f"influence/influence.{kind}" for kind in ("csv", "json", "parquet")
    }


@pytest.mark.parametrize("by", [1, 4])
@pytest.mark.parametrize("do", ["predict", "batch"])
def test_no_process_has_more_than_its_share(root: Path, do: str, by: int) -> None:
    """No matrix as wide as the table is longer than a share, and none has a column per entity.

    An exception: an owner sends the two rows of a question to all processes that need them.
    """
    for count in COUNTS:
        for rank in range(count):
            largest = said(root, f"asked-{count}/watched {do} {by}", rank)["largest"]
            shard = RowShard(ENTITIES, rank, count)
            own = shard.stop - shard.start
            assert own <= largest[str(DIM)] <= max(own, 2 * RELATIONS, 2 * count)
            assert (str(ENTITIES) in largest) == (count == 1)


def graph_of(root: Path) -> KnowledgeGraph:
    files = {split: str(root / f"{split}.tsv") for split in ("train", "valid", "test")}
    return load_graph(TripleData(**files))


def lookups(ids: np.ndarray, count: int) -> Counter[str]:
    """Return the bytes that the first process receives when all processes look up these rows."""
    own = ids < RowShard(ENTITIES, 0, count).stop
    given = int(own.sum()) * (count - 1)
    found = lookup_bytes(wanted=int((~own).sum()), given=given, dim=DIM, number_bytes=8)
    return Counter({"ids": int(found["ids"]), "rows": int(found["rows"])})


@pytest.mark.parametrize("count", COUNTS[1:])
def test_received_bytes_of_answers_are_those_of_the_formula(root: Path, count: int) -> None:
    graph = graph_of(root)
    asked = (root / "queries.tsv").read_text().split("\n")[: 2 * NUM_QUERIES]
    ends = [next(f for f in line.split("\t") if f.startswith("e")) for line in asked]
    for line in (root / "queries.tsv").read_text().split("\n")[2 * NUM_QUERIES : -1]:
        ends += [line.split("\t")[0], line.split("\t")[2]]
    ids = np.array([graph.entities.id_of_text(end) for end in ends])
    places = 4
    expected = Counter[str](lookups(ids, count))
    expected.update(
        answer_bytes(  # type: ignore[arg-type]
            processes=count, queries=len(ids), answers=4, number_bytes=8, probabilities=True
        )
    )
    once = 2 * (count - 1) / count
    # Each answer with a rank: two entries and its own, three counts, one normaliser.
    expected["entries"] += places * 3 * 8 * once  # type: ignore[assignment]
    expected["answers"] += places * 3 * 8 * once  # type: ignore[assignment]
    expected["normalisers"] += places * 2 * 8 * once  # type: ignore[assignment]
    received = said(root, f"asked-{count}/calibrated")["received"]
    assert {key: received[key] for key in expected} == pytest.approx(dict(expected), abs=len(ids))


@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("model", ["distmult"])
def test_received_bytes_of_a_trace_are_those_of_the_formula(
    root: Path, model: str, count: int
) -> None:
    graph, checkpoints = graph_of(root), 2
    train, tests = graph.with_inverses(graph.train), graph.test[:NUM_TESTS]
    queries, test_queries = distinct(train), distinct(tests)
    sizes = {"dim": DIM, "number_bytes": 8, "processes": count, "softmax": False}
    once = 2 * (count - 1) / count * 8
    expected = Counter[str]()
    for _ in range(checkpoints):
        of_tile = trace_bytes(
            queries=len(queries),
            rows=len(train),
            test_queries=len(test_queries),
            test_rows=NUM_TESTS,
            norms=True,
            **sizes,  # type: ignore[arg-type]
        )
        expected.update(of_tile)  # type: ignore[arg-type]
        # The tests' own deltas, and the products of each with itself.
        expected["pulled"] += once * len(test_queries) * DIM  # type: ignore[assignment]
        expected["products"] += once * NUM_TESTS  # type: ignore[assignment]
        expected["entries"] += once * 4 * NUM_TESTS  # type: ignore[assignment]
        for looked_up in (queries, train[:, TAIL], test_queries, tests[:, TAIL]):
            expected += lookups(looked_up, count)
    # The tests' ranks at the last checkpoint.
    expected += lookups(tests[:, HEAD], count)
    expected["entries"] += once * NUM_TESTS  # type: ignore[assignment]
    expected["ranks"] += once * 2 * NUM_TESTS  # type: ignore[assignment]
    received = said(root, f"asked-{count}/{model}-1/trace raw")["received"]
    assert {key: received[key] for key in expected} == pytest.approx(dict(expected), abs=50)


def distinct(rows: Triples) -> np.ndarray:
    """Return the head of each distinct query."""
    heads: np.ndarray = np.unique(rows[:, :2], axis=0)[:, HEAD]
    return heads


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("alone", "ConfigError: 1 entities for 2 processes, and each needs one; start fewer"),
        ("shard", r"CheckpointError: RANK.*rows-2-of-4\.safetensors: no such file"),
        ("checkpoint", "ConfigError: RANKrank 1 has checkpoint .*, rank 0 has "),
        ("request", "ConfigError: RANKrank 1 has request .*, rank 0 has "),
        ("traced shard", r"CheckpointError: RANK.*rows-2-of-4\.safetensors: no such file"),
        ("traced checkpoint", "ConfigError: RANKrank 1 has checkpoint .*, rank 0 has "),
        ("settings", "ConfigError: RANKrank 1 has settings of the explanation .*, rank 0 has "),
        ("tests", "ConfigError: RANKrank 1 has test triples .*, rank 0 has "),
        ("form", "ConfigError: RANKinfluence.score is preconditioned, .* without torchrun"),
    ],
)
def test_what_cannot_be_done_together_is_refused_by_all(
    root: Path, place: str, message: str
) -> None:
    for rank in range(2):
        error = said(root, f"wrong/{place}", rank)["error"]
        assert re.match(message.replace("RANK", f"rank {rank} of 2: "), error), error
        assert "\n" not in error
    assert not (root / "wrong" / place).exists()


def test_a_lost_process_is_named(root: Path) -> None:
    dead = "PeerError: rank 0 of 2: rank 1 died or hangs; "
    assert said(root, "wrong/dies")["error"] == f"{dead}nothing was written: start again"
    kept = "finished test triples are kept: start again to add the others"
    assert said(root, "wrong/batch dies")["error"] == dead + kept
    assert not (root / "wrong/dies").exists()


def test_rows_of_a_table_of_another_size_are_refused(root: Path) -> None:
    """A process reads only its share of rows, from files of all kinds."""
    for by in (1, 4):
        best = Path(trained(root, "distmult", by)) / "best"
        whole = load_tensors(best / MODEL_FILE)
        for rank in range(3):
            shard = RowShard(ENTITIES, rank, 3)
            own = {"entity.weight": shard, "entity_bias": shard}
            found = load_tensors(best / MODEL_FILE, own)
            for name in own:
                assert torch.equal(found[name], whole[name][shard.start : shard.stop])
        wrong = {name: RowShard(ENTITIES - 1, 0, 3) for name in own}
        message = r"has 23 rows, the model needs 22; the checkpoint belongs to another model"
        with pytest.raises(CheckpointError, match=message):
            load_tensors(best / MODEL_FILE, wrong)


def test_the_commands_start_with_torchrun(root: Path) -> None:
    """When a person types the command, only one process prints."""
    launched = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command = ["--rdzv-endpoint=127.0.0.1:0", "-m", "clew", "predict", "--head=e00"]
    command += ["--relation=r0", "--json", f"--model={trained(root, 'distmult', 4)}"]
    done = subprocess.run(
        [sys.executable, *launched, *command],
        env=clew_environment(root / "mlflow.db"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (prediction,) = json.loads(done.stdout)["predictions"]
    assert len(prediction["answers"]) == 10
