"""Two and four processes that share the rows of a table equal one process, in float64."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.errors import CheckpointError, ConfigError
from clew.link_prediction.task import LinkPrediction
from clew.training.checkpoints import OPTIMIZER_FILE, copy_weights, load_model, load_tensors
from clew.training.manifest import MODEL_FILE
from clew.workflows.explaining.trace_source import over_all_entities
from tests.link_prediction.sharded_runs import (
    ENTITIES,
    Run,
    configuration,
    configured,
    graph,
    run_all,
)
from tests.link_prediction.sharded_traffic import lookup_bytes, loss_bytes
from tests.training.plain_order import epoch_order, microbatches

pytestmark = pytest.mark.slow

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
CASES: dict[str, dict[str, Any]] = {
    "distmult, binary, adam": {},
    "complex, softmax, row-wise adagrad": {
        "model__kind": "complex",
        "loss__function": "softmax_cross_entropy",
        "optimizer__kind": "adagrad",
        "optimizer__row_wise": True,
    },
    "cp, n3, accumulated": {
        "model__kind": "cp",
        "loss__regularizer": "n3",
        "training__gradient_accumulation": 2,
        "training__ema_decay": 0.9,
    },
    "transe, softmax, k-vs-all": {
        "model__kind": "transe",
        "loss__kind": "kvs_all",
        "loss__function": "softmax_cross_entropy",
    },
    "transe, binary": {"model__kind": "transe"},
    "transe, softmax, triples in groups": {
        "model__kind": "transe",
        "loss__triples_per_row": 16,
        "loss__function": "softmax_cross_entropy",
    },
    "samples, softmax": {
        "loss__negatives": 7,
        "loss__negative_sampling": "degree",
        "loss__function": "softmax_cross_entropy",
        "optimizer__kind": "adagrad",
        "optimizer__row_wise": True,
    },
    "samples, binary": {"model__kind": "transe", "loss__negatives": 7},
}


FURTHER: dict[str, tuple[dict[str, Any], int, int]] = {
    # With 67 and 68 rows and so few bytes, each process alone would choose different groups.
    "ranked": ({"training__max_steps": 2, "evaluation__chunk_mib": 0.1}, 135, 3000),
    "normalised": (
        {
            "model__kind": "conve",
            "model__embedding_dim": 12,
            "model__embedding_height": 3,
            "model__embedding_width": 4,
            "model__output_channels": 2,
            "model__input_dropout": 0.0,
            "model__feature_map_dropout": 0.0,
            "model__projection_dropout": 0.0,
            "training__num_epochs": 2,
        },
        ENTITIES,
        95,
    ),
    "overflowing": (
        {
            "optimizations__use_mixed_precision": True,
            "optimizations__mixed_precision_dtype": "float16",
            "model__initial_deviation": 2.0,
            "loss__negatives": 7,
            "loss__function": "softmax_cross_entropy",
            "optimizer__kind": "adagrad",
            "optimizer__row_wise": True,
            "training__max_skipped_steps": 200,
            "training__num_epochs": 2,
        },
        ENTITIES,
        95,
    ),
}
COUNTS = {"distmult, binary, adam": (2, 4), "samples, softmax": (2, 4)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with each case's runs in one, two and (in some cases) four processes."""
    root = tmp_path_factory.mktemp("sharded")
    runs = [
        Run(str(root / f"{number}-{processes}"), processes, settings)
        for number, (case, settings) in enumerate(CASES.items())
        for processes in (1, *COUNTS.get(case, (2,)))
    ]
    half, whole = {"training__max_steps": 6}, {"training__num_epochs": 1}
    checkpoint = str(root / "half/checkpoints/step-00000006")
    runs += [Run(str(root / "half"), 4, half)]
    runs += [Run(str(root / f"resumed-{n}"), n, whole, resume=checkpoint) for n in (1, 2)]
    short = {"training__peer_timeout_seconds": 5.0}
    runs += [Run(str(root / how), 2, short, last_rank=how) for how in ("dies", "hangs")]
    runs += [Run(str(root / how), 2, last_rank=how) for how in ("differs", "stops")]
    for name, (settings, entities, triples) in FURTHER.items():
        runs += [
            Run(str(root / f"{name}-{n}"), n, settings, entities=entities, triples=triples)
            for n in (1, 2)
        ]
    counted = CASES["complex, softmax, row-wise adagrad"] | {"evaluation__enabled": False}
    runs += [Run(str(root / "counted"), 2, counted)]
    run_all(runs)
    return root


def measured(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return content


def require_equal(one: Path, many: Path, checkpoints: tuple[str, ...]) -> None:
    assert measured(many)["metrics"] == pytest.approx(measured(one)["metrics"], rel=1e-12)
    for place in checkpoints:
        for name in (MODEL_FILE, OPTIMIZER_FILE):
            if not (one / place / name).is_file():
                continue
            ours, theirs = (load_tensors(path / place / name) for path in (many, one))
            assert ours.keys() == theirs.keys()
            for key, tensor in theirs.items():
                torch.testing.assert_close(ours[key], tensor, **TOLERANCE, msg=key)


@pytest.mark.parametrize("case", CASES)
def test_processes_equal_one(case: str, trained: Path) -> None:
    number = list(CASES).index(case)
    one = trained / f"{number}-1"
    for processes in COUNTS.get(case, (2,)):
        many = trained / f"{number}-{processes}"
        for key in ("train/loss", "train/grad_norm"):
            ours, theirs = (torch.tensor(measured(path)[key]) for path in (many, one))
            torch.testing.assert_close(ours, theirs, **TOLERANCE, msg=key)
        assert sorted(path.name for path in (many / "best").glob("rows*")) == [
            f"rows-{rank}-of-{processes}.safetensors" for rank in range(processes)
        ]
        require_equal(one, many, ("checkpoints/epoch-0001", "best"))


def test_groups_of_queries_are_the_same_in_all_processes(trained: Path) -> None:
    ours, theirs = (measured(trained / f"ranked-{n}")["metrics"] for n in (2, 1))
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_validation_is_of_the_statistics_that_are_kept(trained: Path) -> None:
    """Batch statistics differ between processes; a checkpoint has those of the main process."""
    settings, *_ = FURTHER["normalised"]
    config = over_all_entities(configured(Run("", 2, settings)))
    task = LinkPrediction(graph(), config)
    found = []
    torch.set_default_dtype(torch.float64)
    try:
        model = task.build_model()
        for epoch in (1, 2):
            load_model(trained / f"normalised-2/checkpoints/epoch-{epoch:04d}", model)
            found.append(task.metrics(model.eval(), "valid", torch.device("cpu"))["valid/mrr"])
    finally:
        torch.set_default_dtype(torch.float32)
    assert measured(trained / "normalised-2")["valid/mrr"] == pytest.approx(found, rel=1e-12)


def test_all_processes_skip_a_step_that_overflows_in_one(trained: Path) -> None:
    states = [
        json.loads((trained / f"overflowing-2/rank-{rank}.json").read_text()) for rank in range(2)
    ]
    assert states[0] == states[1]
    assert states[0]["loss scale"] < 2.0**16, "no step overflowed"


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(trained: Path) -> None:
    for rank in range(2):
        said = (trained / "stops" / f"error-{rank}.txt").read_text()
        assert said.startswith("Interrupted: stopped at step 2 of epoch 1"), said
    assert (trained / "stops/checkpoints/step-00000002").is_dir()


@pytest.mark.parametrize("case", CASES)
def test_explanations_equal_those_of_one_process(case: str, trained: Path) -> None:
    number = list(CASES).index(case)
    theirs = torch.tensor(json.loads((trained / f"{number}-1/scores.json").read_text()))
    assert theirs.abs().max() > 0
    for processes in COUNTS.get(case, (2,)):
        path = trained / f"{number}-{processes}/scores.json"
        ours = torch.tensor(json.loads(path.read_text()))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


@pytest.mark.parametrize("processes", [1, 2])
def test_another_number_of_processes_goes_on(processes: int, trained: Path) -> None:
    require_equal(trained / "0-1", trained / f"resumed-{processes}", ("checkpoints/epoch-0001",))


def test_received_bytes_are_those_of_the_formula(trained: Path) -> None:
    """The count of the first of two processes equals that computed from the batches of both."""
    settings = CASES["complex, softmax, row-wise adagrad"]
    config = configured(Run("", 2, settings))
    source = LinkPrediction(graph(), config).train_examples()
    order = epoch_order(len(source), seed=0, epoch=0)
    size = config.training.batch_size
    plans = [microbatches(order, batch_size=size, rank=rank, world_size=2) for rank in range(2)]
    expected: Counter[str] = Counter()
    half = ENTITIES // 2
    for own, other in zip(*plans, strict=True):
        most = max(len(own), len(other))
        expected.update(
            loss_bytes(
                processes=2, queries=most, positives=most, dim=6, number_bytes=8, softmax=True
            )
        )
        wanted = int((source.batch(own).head >= half).sum())
        given = int((source.batch(other).head < half).sum())
        expected.update(lookup_bytes(wanted=wanted, given=given, dim=6, number_bytes=8))
        expected["normalisers"] -= 2 * 8 * (2 * most - len(own) - len(other))
    counted = measured(trained / "counted")["training bytes"]
    assert {key: counted[key] for key in expected} == dict(expected)


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_lost_process_ends_the_others_in_one_line(how: str, trained: Path) -> None:
    said = (trained / how / "error-0.txt").read_text()
    assert said.startswith("PeerError: rank 0 of 2: ")
    assert "\n" not in said
    assert not list((trained / how).glob("checkpoints/*"))


def test_processes_with_other_data_are_refused_in_all_of_them(trained: Path) -> None:
    for rank in range(2):
        said = (trained / "differs" / f"error-{rank}.txt").read_text()
        assert said.startswith("ConfigError: rank 1 has data fingerprint other, rank 0 has ")


def test_a_missing_shard_is_named(trained: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained / "0-4/best", tmp_path / "best")
    (folder / "rows-2-of-4.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"rows-2-of-4\.safetensors: no such file"):
        load_tensors(folder / MODEL_FILE)


def test_weights_of_all_shards_are_copied_into_one_file(trained: Path, tmp_path: Path) -> None:
    copy_weights(trained / "0-4/best", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "manifest.json"}
    ours, theirs = (load_tensors(p / MODEL_FILE) for p in (tmp_path, trained / "0-4/best"))
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data.inverse_relations": False}, "data.inverse_relations=false"),
        ({"loss.implementation": "plain"}, "loss.implementation"),
        ({"optimizations.torch_compile": True}, "optimizations.torch_compile"),
        ({"model.warm_start": "abc"}, "model.warm_start"),
        ({"training.batch_size": "auto"}, "training.batch_size=auto"),
    ],
)
def test_what_needs_the_whole_table_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configuration(settings | {"training.shard_entities": True})
