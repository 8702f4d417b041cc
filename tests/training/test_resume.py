"""An interrupted and resumed run equals the uninterrupted run, bit for bit."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.errors import CheckpointError, Interrupted
from clew.training.manifest import list_checkpoints
from tests.edited import edit_manifest

SETTINGS = {
    "training__num_epochs": 3,
    "training__checkpoint_every_steps": 1,
    "training__gradient_accumulation": 2,
    "training__log_every_steps": 2,
    "schedule__kind": "warmup_cosine",
    "training__ema_decay": 0.7,
}
PRECISIONS = {
    "fp32": {},
    "fp16": {
        "optimizations__use_mixed_precision": True,
        "optimizations__mixed_precision_dtype": "float16",
    },
}


def state_of(trainer: Any) -> dict[str, torch.Tensor]:
    tensors = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    captured = trainer.checkpointer.resumable.capture()
    averages = {f"average/{k}": v for k, v in captured.average.items()}
    return tensors | captured.optimizer | captured.tensors | averages


def metric_curve(trainer: Any) -> list[tuple[str, float, int]]:
    timed = ("time/", "throughput/", "memory/")
    values = trainer.history.tracker.metric_values
    return [(k, v, s) for k, v, s in values if not k.startswith(timed)]


@pytest.mark.parametrize(
    ("precision", "optimizer", "stop"),
    [
        (precision, optimizer, stop)
        for n, precision in enumerate(PRECISIONS)
        for m, optimizer in enumerate(("adam", "sgd", "adagrad"))
        for stop in (1, 3, 5, 8)[(n + m) % 2 :: 2]
    ],
)
def test_resumed_equals_uninterrupted(
    make_trainer: Any, toy_task: Any, precision: str, optimizer: str, stop: int
) -> None:
    """The cases cover each pair of precision, optimizer and step."""
    settings = SETTINGS | PRECISIONS[precision] | {"optimizer__kind": optimizer}

    def task() -> Any:
        return toy_task(dropout=0.3, batch_norm=True)

    whole = make_trainer(task(), **settings)
    torch.manual_seed(123)
    whole.train()
    folder = whole.checkpointer.folder / "checkpoints"
    middle = next(r.path for r in list_checkpoints(folder) if r.step == stop)

    resumed = make_trainer(task(), **settings)
    torch.manual_seed(999)  # earlier random numbers must not matter
    resumed.checkpointer.resumable.restore(middle)
    assert resumed.progress.step == stop
    resumed.train()
    for name, tensor in state_of(whole).items():
        assert torch.equal(tensor, state_of(resumed)[name]), name
    assert metric_curve(resumed) == metric_curve(whole)


def stop_in_step(task: Any, step: int) -> None:
    """Send the process a stop signal while it computes the loss of a step (from 1)."""
    original = task.loss

    def loss(model: Any, batch: Any) -> Any:
        if len(task.losses) == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(model, batch)

    task.loss = loss


def test_sigterm_ends_after_the_running_step_with_a_checkpoint(
    make_trainer: Any, toy_task: Any
) -> None:
    task = toy_task()
    trainer = make_trainer(task, training__num_epochs=50)
    stop_in_step(task, 12)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"stopped at step 12 .* step-00000012"):
        trainer.train()
    assert list_checkpoints(trainer.checkpointer.folder / "checkpoints")[-1].step == 12
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("stop", "limit"),
    [
        (5, {}),
        (10, {}),
        (8, {"training__max_steps": 8}),
        (8, {"training__max_steps": 8, "training__checkpoint_every_steps": 4}),
    ],
    ids=["first epoch", "last epoch", "last step", "last step, where a checkpoint is due"],
)
def test_a_stop_in_the_last_step_of_an_epoch_leaves_its_validation_to_the_resumed_run(
    make_trainer: Any, toy_task: Any, stop: int, limit: dict[str, int]
) -> None:
    settings = {"training__num_epochs": 2, "schedule__kind": "plateau"} | limit
    whole = make_trainer(**settings)
    whole.train()
    task = toy_task()
    stopped = make_trainer(task, **settings)
    stop_in_step(task, stop)
    epoch = 1 if stop == 5 else 2
    with pytest.raises(Interrupted, match=f"stopped at step {stop} of epoch {epoch};"):
        stopped.train()
    resumed = make_trainer(**settings)
    folder = stopped.checkpointer.folder / "checkpoints"
    resumed.checkpointer.resumable.restore(list_checkpoints(folder)[-1].path)
    resumed.train()
    assert resumed.progress == whole.progress
    weights = [
        {r.step: r.learning_rate_weight for r in list_checkpoints(path / "checkpoints")}
        for path in (whole.checkpointer.folder, folder.parent, resumed.checkpointer.folder)
    ]
    assert weights[1] | weights[2] == weights[0]
    wanted = [entry for entry in metric_curve(whole) if entry[0].startswith("valid/")]
    found = [entry for entry in metric_curve(resumed) if entry[0].startswith("valid/")]
    assert found == wanted


def test_a_checkpoint_of_another_optimizer_state_is_refused(make_trainer: Any) -> None:
    trainer = make_trainer(training__num_epochs=1)
    trainer.train()
    folder = trainer.checkpointer.folder / "checkpoints" / "epoch-0001"
    (folder / "optimizer.safetensors").write_bytes(b"cut short")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: changed or damaged"):
        make_trainer().checkpointer.resumable.restore(folder)
    edit_manifest(folder, lambda manifest: None)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: not a readable"):
        make_trainer().checkpointer.resumable.restore(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
import clew.training.manifest as checkpoint_files
import clew.training.checkpoints as checkpoints
from clew.training.manifest import Manifest
folder, stop_in = Path(sys.argv[1]), sys.argv[2]
import torch
from torch import nn
real = {"save": checkpoint_files.save_file, "rename": Path.replace}
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if stop_in == "save":
    calls = iter(range(2))
    checkpoint_files.save_file = lambda *a: real["save"](*a) if next(calls) == 0 else die()
else:
    Path.replace = die
model = nn.Linear(3, 3)
manifest = Manifest(1, 1, 0.1, "toy", {}, "h", "f")
state = checkpoints.TrainingState({}, {"x": torch.zeros(2)}, checkpoints.TrainingValues())
checkpoints.write_checkpoint(folder / "epoch-0002", model, manifest, state)
"""


@pytest.mark.parametrize("moment", ["save", "rename"])
def test_killed_while_writing_leaves_the_earlier_checkpoint_and_no_half_one(
    make_trainer: Any, tmp_path: Path, moment: str
) -> None:
    trainer = make_trainer(training__num_epochs=1)
    trainer.train()
    folder = trainer.checkpointer.folder / "checkpoints"
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    done = subprocess.run([sys.executable, script, folder, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [r.path.name for r in list_checkpoints(folder)] == ["epoch-0001"]
