"""The task of image sequences, and its whole training runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clew.config.load import from_mapping, to_yaml
from clew.config.schema import RunConfig
from clew.errors import ConfigError, DataError
from clew.image_sequences.task import SequenceRegression
from clew.names import direction_of
from clew.training.checkpoints import load_tensors
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer
from clew.training.trainer import Trainer
from clew.workflows.subjects import build_task
from tests.image_sequences.sequence_files import sequence_columns, write_folder
from tests.memory_tracker import MemoryTracker

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make_config(tmp_path: Path) -> Any:
    write_folder(tmp_path / "clouds", sequence_columns(frames_in_group=20))
    content = {
        "data": {
            "kind": "image_sequences",
            "path": str(tmp_path / "clouds"),
            "temporal_frames": 3,
            "azimuth_scalars": ["azimuth"],
            "zenith_scalars": ["zenith"],
        },
        "model": {
            "kind": "sequence_regression",
            "channels": [8, 16],
            "norm_groups": 4,
            "heads": 2,
            "patch_grid": [2, 2],
            "dropout": 0.1,
        },
        "loss": {"kind": "mae"},
        "optimizer": {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.01},
        "training": {"batch_size": 8, "num_epochs": 3, "log_every_steps": 1, "device": "cpu"},
        "tracking": {"log_mfu": False},
    }

    def make(**overrides: Any) -> RunConfig:
        return from_mapping(content, {k.replace("__", "."): v for k, v in overrides.items()})

    return make


def regression_task(config: RunConfig) -> SequenceRegression:
    task = build_task(config)
    assert isinstance(task, SequenceRegression)
    return task


def trainer_of(config: RunConfig, folder: Path) -> Trainer[Any]:
    task = regression_task(config)
    return build_trainer(
        config,
        task,
        MemoryTracker(),
        device=CPU,
        world=World(),
        folder=folder,
        origin=Manifest(0, 0, 0.0, task.kind, {}, "hash", task.data_fingerprint),
        keep_all_checkpoints=True,
    )


def losses_of(trainer: Trainer[Any]) -> list[float]:
    return [e.value for e in trainer.history.entries if e.key == "train/loss"]


@pytest.mark.parametrize("kind", ["mae", "mse", "huber"])
def test_the_examples_losses_add_up_to_the_batchs(make_config: Any, kind: str) -> None:
    task = regression_task(make_config(loss__kind=kind))
    model, batch = task.build_model().eval(), task.train_examples().batch(np.array([4, 0, 9]))
    total = task.loss(model, batch)
    torch.testing.assert_close(task.example_losses(model, batch).sum(), total.total)
    assert total.count == batch.count == 3


def test_what_is_better_is_known_of_every_metric(make_config: Any) -> None:
    task = regression_task(make_config())
    values = task.metrics(task.build_model().eval(), "test", CPU)
    assert {"test/ridge_mae", "test/interval_half_width"} < set(values)
    better = {key: direction_of(key) for key in values}
    assert {key for key in better if better[key] is None} == {
        "test/bias",
        "test/interval_coverage",
    }
    assert [key for key in better if better[key] == "larger"] == ["test/r2"]


@pytest.mark.parametrize("architecture", ["transformer", "ssm", "gnn", "cnn"])
def test_each_architecture_learns(make_config: Any, tmp_path: Path, architecture: str) -> None:
    config = make_config(
        model__architecture=architecture,
        training__num_epochs=20,
        model__dropout=0,
        model__temporal_layers=1,
    )
    trainer = trainer_of(config, tmp_path)
    trainer.train()
    values = {e.key: e.value for e in trainer.history.entries}
    assert values["valid/mae"] < 0.5 * values["valid/mean_mae"]
    assert values["throughput/frames_per_second"] == pytest.approx(
        3 * values["throughput/examples_per_second"]
    )
    assert {"valid/rmse", "valid/r2", "valid/ridge_mae", "valid/persistence_mae"} <= values.keys()


def test_predicting_the_change_starts_from_persistence(make_config: Any) -> None:
    task = regression_task(make_config(model__predicts="change"))
    model = task.build_model().eval()
    with torch.no_grad():
        model.readout.weight.zero_()
        predicted = task.predict(model, task.splits.windows["test"], CPU)
    windows = task.splits.windows["test"]
    expected = windows.table.present[windows.ends] + task.scalers.target_mean
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)


def test_the_change_needs_a_present_value(make_config: Any, tmp_path: Path) -> None:
    (tmp_path / "clouds" / "present.npy").unlink()
    with pytest.raises(DataError, match=r"model\.predicts"):
        build_task(make_config(model__predicts="change"))


def test_noise_is_in_deviations_of_the_pixels(make_config: Any) -> None:
    torch.manual_seed(0)
    task = regression_task(make_config(data__pixel_noise=0.5))
    batch = task.train_examples().batch(np.arange(8))
    noise = task.noisy(batch.images) - batch.images
    assert float(noise.std() / task.scalers.image_std[0]) == pytest.approx(0.5, rel=0.05)
    model = task.build_model()
    assert not torch.equal(task.loss(model.train(), batch).total, task.loss(model, batch).total)
    model.eval()
    assert torch.equal(task.loss(model, batch).total, task.loss(model, batch).total)


def test_checkpointing_and_accumulation_change_no_number(make_config: Any, tmp_path: Path) -> None:
    expected = trainer_of(make_config(), tmp_path / "a")
    expected.train()
    again = trainer_of(make_config(optimizations__use_gradient_checkpointing=True), tmp_path / "b")
    again.train()
    assert losses_of(again) == losses_of(expected)
    parts = make_config(training__batch_size=4, training__gradient_accumulation=2, model__dropout=0)
    whole = trainer_of(make_config(model__dropout=0), tmp_path / "c")
    split = trainer_of(parts, tmp_path / "d")
    for trainer in (whole, split):
        trainer.train()
    assert losses_of(split) == pytest.approx(losses_of(whole), rel=1e-3)


@pytest.mark.parametrize("architecture", ["transformer", "ssm", "gnn", "cnn"])
def test_half_precision_is_near_single(make_config: Any, architecture: str) -> None:
    torch.manual_seed(0)
    task = regression_task(make_config(model__architecture=architecture))
    model, batch = task.build_model().eval(), task.train_examples().batch(np.arange(12))
    single = task.loss(model, batch).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = task.loss(model, batch).total
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(single.item(), rel=0.03)


def test_a_resumed_run_repeats_the_uninterrupted_one(make_config: Any, tmp_path: Path) -> None:
    config = make_config(training__checkpoint_every_steps=2, data__pixel_noise=0.1)
    whole = trainer_of(config, tmp_path / "whole")
    whole.train()
    again = trainer_of(config, tmp_path / "again")
    again.checkpointer.resumable.restore(tmp_path / "whole" / "checkpoints" / "step-00000004")
    again.train()
    assert losses_of(again) == losses_of(whole)
    for (name, a), b in zip(
        whole.model.state_dict().items(), again.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), name


def test_a_checkpoint_holds_the_scalers_of_its_training_groups(
    make_config: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(make_config(), tmp_path)
    trainer.train()
    tensors = load_tensors(tmp_path / "best" / "model.safetensors")
    scalers = trainer.task.scalers
    assert tensors["target_mean"].item() == pytest.approx(scalers.target_mean)
    np.testing.assert_allclose(tensors["image_std"], scalers.image_std, rtol=1e-6)


def test_the_report_holds_predictions_and_groups(make_config: Any, tmp_path: Path) -> None:
    task = regression_task(make_config())
    model = task.build_model().eval()
    metrics = task.metrics(model, "test", CPU)
    assert 0 <= metrics["test/interval_coverage"] <= 1
    assert metrics["test/interval_half_width"] > 0
    task.write_report("test", tmp_path / "report")
    table = pq.read_table(tmp_path / "report" / "test_predictions.parquet").to_pandas()
    assert set(table["group"]) == {"flight 3"}
    assert abs(table["error"]).mean() == pytest.approx(metrics["test/mae"])
    assert {p.name for p in (tmp_path / "report").glob("*.png")} == {
        "test_error_by_group.png",
        "test_predicted_against_true.png",
    }
    (row,) = json.loads((tmp_path / "report" / "test_groups.json").read_text())
    assert row["mae"] == pytest.approx(metrics["test/mae"])
    folder = tmp_path / "run"
    folder.mkdir()
    task.write_artifacts(folder)
    content = json.loads((folder / "sequences.json").read_text())
    assert content["unit"] == task.describe()["clew.unit"] == "km"
    assert content["groups"]["valid"] == ["flight 2"]


COMPILED = """
import functools, sys, tempfile, torch
from pathlib import Path
from clew.config.load import load
from clew.training.manifest import Manifest
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.setup import build_trainer, measure_before_training
from clew.workflows.subjects import build_task

def traced(graph, inputs):
    # Traced and differentiated as for any compiler, then run as it is: C++ would take minutes.
    sizes[-1].append(len(graph.graph.nodes))
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

torch.nn.Module.compile = functools.partialmethod(torch.nn.Module.compile, backend=traced)
states, sizes = [], []
for compiled, frames in ((True, 3), (True, 6), (False, 6)):
    changes = {"optimizations.torch_compile": compiled, "model.frames_per_checkpoint": frames}
    config = load(sys.argv[1], changes)
    torch._dynamo.reset()
    sizes.append([])
    task = build_task(config)
    trainer = build_trainer(
        config, task, Tracker(), device=torch.device("cpu"), world=World(),
        folder=Path(tempfile.mkdtemp()), origin=Manifest(0, 0, 0.0, task.kind, {}, "", ""),
    )
    values = measure_before_training(trainer)
    assert ("time/compile_seconds" in values) == compiled, values
    trainer.train()
    states.append(trainer.model.state_dict())
assert sizes[0] == sizes[1], sizes  # four groups of frames are no larger graph than two
assert not sizes[2]
_, ours, theirs = states
assert ours.keys() == theirs.keys()
for name, tensor in ours.items():
    torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-5, msg=name)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler"
)
def test_compiled_training_has_the_eager_keys(make_config: Any, tmp_path: Path) -> None:
    """This runs in a process without shape checks, because they cannot be compiled."""
    config = make_config(
        training__max_steps=2,
        optimizer__kind="sgd",
        training__batch_size=12,  # three microbatches of one size: one graph
        data__temporal_frames=2,
        data__num_blocks=5,
        model__architecture="cnn",
        model__channels=[8],
        model__dropout=0,
        optimizations__use_gradient_checkpointing=True,
    )
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    run = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "run.yaml")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "platform")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_another_task_is_refused(make_config: Any) -> None:
    task = regression_task(make_config())
    with pytest.raises(ConfigError):
        SequenceRegression(task.splits, from_mapping({"data": {"name": "umls"}}))


@pytest.mark.parametrize("group", [2, 3])
def test_what_is_missing_in_held_out_groups_is_refused_before_training(
    make_config: Any, tmp_path: Path, group: int
) -> None:
    columns, frame = sequence_columns(frames_in_group=20), 20 * group + 7
    columns["images"][frame, 0, 0] = np.nan
    columns["present"][frame] = np.nan
    write_folder(tmp_path / "clouds", columns)
    with pytest.raises(DataError, match=rf"frame {frame} .*data\.nan_pixels"):
        build_task(make_config())
    masked = {"data__nan_pixels": "mask"}
    assert build_task(make_config(**masked))
    with pytest.raises(DataError, match=rf"present\[{frame}\]"):
        build_task(make_config(**masked, model__predicts="change"))
