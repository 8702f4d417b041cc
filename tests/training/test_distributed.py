"""Two gloo processes train to the same parameters as one process with twice the batch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clew.errors import ConfigError
from clew.training.distributed import joined_world
from tests.ports import meeting_place
from tests.training.plain_order import epoch_order, microbatches

WORKER = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import torch
import conftest as toy
from clew.training.manifest import Manifest
from clew.runs.base import Tracker
from tests.memory_tracker import MemoryTracker
from clew.training.distributed import joined_world
from clew.training.setup import build_trainer
torch.set_num_threads(1)
config = toy.toy_config(**{settings!r})
with joined_world() as world:
    tracker = MemoryTracker() if world.is_main else Tracker()
    trainer = build_trainer(
        config, toy.ToyTask(num_examples=37), tracker, device=torch.device("cpu"), world=world,
        folder=Path({folder!r}), origin=Manifest(0, 0, 0.0, "toy", {{}}, "hash", "0" * 16),
        keep_all_checkpoints=True,
    )
    trainer.train()
"""


def train_on(num_processes: int, folder: Path, settings: dict[str, Any]) -> None:
    tests = str(Path(__file__).parent)
    run_on(num_processes, WORKER.format(tests=tests, settings=settings, folder=str(folder)))


def run_on(num_processes: int, script: str) -> None:
    """Run a script in several processes with torchrun's variables."""
    processes = []
    with meeting_place() as place:
        for rank in range(num_processes):
            environment = place | {
                "RANK": str(rank),
                "WORLD_SIZE": str(num_processes),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": ":".join(sys.path),
                "PATH": "/usr/bin",
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE
                )
            )
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors.decode()


MAIN_FIRST = """
import time
from pathlib import Path
from clew.training.distributed import joined_world
order = Path({order!r})
with joined_world() as world:
    for turn in range(2):
        try:
            with world.main_first():
                time.sleep(0.0 if world.rank else 0.5)
                with order.open("a") as file:
                    file.write(f"{{turn}}{{world.rank}} ")
                if world.is_main:
                    raise ValueError("the others must not wait for ever")
        except ValueError:
            pass
"""


@pytest.mark.slow
def test_the_main_process_goes_first(tmp_path: Path) -> None:
    order = tmp_path / "order"
    run_on(2, MAIN_FIRST.format(order=str(order)))
    found = order.read_text().split()
    assert sorted(found) == ["00", "01", "10", "11"]
    for turn in "01":  # the main process may begin the next turn meanwhile
        assert found.index(f"{turn}0") < found.index(f"{turn}1"), found


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    common = {
        "optimizer__kind": "sgd",
        "optimizer__learning_rate": 0.1,
        "training__num_epochs": 2,
        "training__gradient_accumulation": 2,
        "training__max_grad_norm": 0.5,
    }
    train_on(1, tmp_path / "one", common | {"training__batch_size": 10})
    train_on(2, tmp_path / "two", common | {"training__batch_size": 5})
    for name in ("epoch-0001", "epoch-0002"):
        one = load_file(tmp_path / "one" / "checkpoints" / name / "model.safetensors")
        two = load_file(tmp_path / "two" / "checkpoints" / name / "model.safetensors")
        for key, tensor in one.items():
            torch.testing.assert_close(tensor, two[key], rtol=1e-6, atol=1e-7, msg=key)
    weights = [
        json.loads((tmp_path / run / "checkpoints/epoch-0002/manifest.json").read_text())
        for run in ("one", "two")
    ]
    assert weights[0]["learning_rate_weight"] == pytest.approx(weights[1]["learning_rate_weight"])


@pytest.mark.parametrize("num_examples", [37, 40, 41, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_each_global_microbatch(num_examples: int, world_size: int) -> None:
    order = epoch_order(num_examples, seed=3, epoch=1)
    wide = microbatches(order, batch_size=4 * world_size)
    shares = [
        microbatches(order, batch_size=4, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    everything = np.concatenate([part for share in shares for part in share])
    assert sorted(everything.tolist()) == list(range(num_examples))
    assert len({len(share) for share in shares}) == 1, "ranks must take equally many steps"
    if len(shares[0]) == len(wide):
        for step, whole in enumerate(wide):
            together = np.concatenate([share[step] for share in shares])
            assert sorted(together.tolist()) == sorted(whole.tolist())


def test_an_incomplete_environment_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match="WORLD_SIZE"), joined_world():
        pass
