"""Losses of the first steps, stored at full precision, show that a change alters no number.

On the machine that stored them they are equal to the last bit: `CLEW_EXACT_LOSSES=1` checks this.
Other vector widths can round differently, so by default the losses must agree to 1e-4. To store
them again after an intended change:

    python tests/golden/test_loss_curves.py
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from clew import names
from clew.config.load import from_mapping
from clew.runs.hardware import describe_machine
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer
from clew.workflows.subjects import build_task
from tests.memory_tracker import MemoryTracker

STORED = Path(__file__).with_name("loss_curves.json")
CASES: dict[str, dict[str, Any]] = {
    "one_vs_all bce": {"loss.kind": "one_vs_all"},
    "kvs_all bce": {"loss.kind": "kvs_all"},
    "one_vs_all softmax": {"loss.kind": "one_vs_all", "loss.function": "softmax_cross_entropy"},
    "kvs_all softmax fused": {
        "loss.kind": "kvs_all",
        "loss.function": "softmax_cross_entropy",
        "loss.implementation": "fused",
    },
    "accumulation and clipping": {
        "training.gradient_accumulation": 3,
        "training.max_grad_norm": 0.5,
        "optimizer.kind": "sgd",
        "optimizer.learning_rate": 0.05,
    },
    "bfloat16": {"optimizations.use_mixed_precision": True},
    "checkpointing": {"optimizations.use_gradient_checkpointing": True},
}


def first_losses(settings: dict[str, Any]) -> list[float]:
    config = from_mapping(
        {"data": {"name": "umls"}},
        {
            "model.embedding_dim": 32,
            "model.output_channels": 8,
            "training.batch_size": 64,
            "training.max_steps": 12,
            "training.log_every_steps": 1,
            "training.device": "cpu",
            "evaluation.enabled": False,
            "schedule.kind": "warmup_cosine",
        }
        | settings,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(
                config,
                build_task(config),
                MemoryTracker(),
                device=torch.device("cpu"),
                world=World(),
                folder=Path(folder),
                origin=Manifest(0, 0, 0.0, "link_prediction", {}, "hash", "0" * 16),
            )
            trainer.train()
    finally:
        torch.set_num_threads(threads)
    return [e.value for e in trainer.history.entries if e.key == names.TRAIN_LOSS]


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_stored(case: str) -> None:
    stored = json.loads(STORED.read_text())
    losses = first_losses(CASES[case])
    if os.environ.get("CLEW_EXACT_LOSSES"):
        assert losses == stored["losses"][case]
    assert losses == pytest.approx(stored["losses"][case], rel=1e-4 if case != "bfloat16" else 0.02)


def test_checkpointing_moves_no_number() -> None:
    assert first_losses(CASES["checkpointing"]) == first_losses({})


def store() -> None:
    content = {
        "machine": describe_machine().summary,
        "torch": torch.__version__,
        "losses": {case: first_losses(settings) for case, settings in CASES.items()},
    }
    STORED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    store()
