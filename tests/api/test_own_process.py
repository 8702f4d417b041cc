"""Trainings do not change the process of a notebook, and do not disturb each other."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import clew
from tests.api.conftest import run_of
from tests.recorded import Recorded

SMALL = {
    "model.embedding_dim": 24,
    "model.output_channels": 6,
    "model.input_dropout": 0.2,
    "training.device": "cpu",
    "training.max_steps": 20,
    "evaluation.enabled": False,
    "tracking.log_mfu": False,
}


def loss_with(seed: int) -> float:
    return clew.train("umls", epochs=1, overrides=SMALL | {"training.seed": seed}).metrics[
        "train/loss"
    ]


def test_a_loop_of_trainings_draws_new_numbers_each_time() -> None:
    drawn = []
    for _ in range(3):
        loss_with(0)
        drawn += [random.random(), float(np.random.rand())]
    assert len(set(drawn)) == len(drawn)


def test_trainings_in_threads_are_those_of_their_seeds() -> None:
    alone = [loss_with(seed) for seed in (3, 4)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(loss_with, (3, 4))) == alone


def test_what_works_on_a_model_of_facts_leaves_the_generator_to_trainings(
    why: clew.Attribution,
) -> None:
    before = torch.get_rng_state()
    model = clew.load(run_of(why))
    clew.evaluate(model)
    clew.attribute(model, [("virus", "causes", "pathologic_function")])
    assert torch.equal(before, torch.get_rng_state()), "a training in another thread draws there"


@pytest.mark.parametrize("name", ["text", "frames"])
def test_what_works_on_windows_leaves_the_generator_to_trainings(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded.copy(tmp_path / "store").uri)
    before = torch.get_rng_state()
    model = clew.load(recorded.runs[name])
    clew.evaluate(model)
    asked = {"text": {"prompt": "But soft", "continuation": " what"}, "frames": {}}[name]
    clew.attribute(model, **asked)
    assert torch.equal(before, torch.get_rng_state()), "a training in another thread draws there"
