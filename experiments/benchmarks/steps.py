"""Trains on a generated graph in a temporary folder, and times each step."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from clew.config.schema import RunConfig
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer
from clew.training.trainer import Trainer


def timed_steps(
    graph: KnowledgeGraph, config: RunConfig, tracker: Tracker | None = None
) -> tuple[Trainer, list[float]]:
    """Train with a configuration, and return the trainer and the seconds of each step.

    Data handling, logging and memory clean-up are included, as in `clew train`.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(
            config,
            LinkPrediction(graph, config),
            tracker or Tracker(),
            device=torch.device("cpu"),
            world=World(),
            folder=Path(folder),
            origin=Manifest(0, 0, 0.0, "link_prediction", {}, "", ""),
        )
        ends = [time.perf_counter()]
        counted = trainer.throughput.step_done

        def step_done(units: dict[str, int]) -> None:
            counted(units)
            ends.append(time.perf_counter())

        trainer.throughput.step_done = step_done  # type: ignore[method-assign]
        trainer.train()
    return trainer, np.diff(ends).tolist()
