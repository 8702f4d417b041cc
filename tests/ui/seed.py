"""Writes runs as Clew's trainer would into a real sqlite store, without training anything.

The numbers are invented but behave: half precision is faster and smaller, checkpointing smaller
and slower, seeds scatter, validation curves rise and level off.
"""

import functools
import math
import random
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from clew import names

EPOCHS = 20
HOUR_MS = 3_600_000
START_MS = 1_795_000_000_000


@dataclass(frozen=True)
class Cost:
    """What a variant costs and gives, relative to float32."""

    time: float
    gpu: float
    process: float
    quality: float


COSTS = {
    "fp32": Cost(1.0, 1.0, 1.0, 1.0),
    "fp16": Cost(0.58, 0.56, 0.98, 0.9985),
    "bf16": Cost(0.61, 0.56, 0.98, 0.994),
    "fp32+ckpt": Cost(1.27, 0.55, 0.99, 1.0),
    "fp16+ckpt": Cost(0.77, 0.33, 0.97, 0.9975),
    "fp16+compile": Cost(0.47, 0.52, 1.09, 0.9985),
}


@functools.cache
def _template() -> Path:
    """Create one empty store; copying it is fifty times as fast as creating another."""
    folder = Path(tempfile.mkdtemp(prefix="clew-template-"))
    MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


def empty_store(folder: Path) -> str:
    """Create a store without runs in a folder and return its address."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


class Seeder:
    """Writes runs into a store; every run is determined by its arguments."""

    def __init__(self, uri: str, experiment: str = names.EXPERIMENT) -> None:
        self.uri = uri
        self.client = MlflowClient(uri)
        folder = Path(uri.removeprefix("sqlite:///")).parent
        found = self.client.get_experiment_by_name(experiment)
        self.experiment_id = (
            found.experiment_id
            if found
            else self.client.create_experiment(
                experiment, artifact_location=(folder / "mlartifacts").as_uri()
            )
        )
        self.num_runs = 0

    def run(
        self,
        *,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, object],
        metrics: list[Metric],
        status: str = "FINISHED",
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> str:
        """Write one run of any kind; a running one stays open."""
        start_ms = START_MS + self.num_runs * HOUR_MS if start_ms is None else start_ms
        self.num_runs += 1
        run = self.client.create_run(
            self.experiment_id, run_name=name, start_time=start_ms, tags={"mlflow.user": "ada"}
        )
        run_id = str(run.info.run_id)
        self.client.log_batch(
            run_id,
            params=[Param(key, str(value)) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
        )
        for first in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics=metrics[first : first + 1000])
        if status != "RUNNING":
            last = max((metric.timestamp for metric in metrics), default=start_ms)
            self.client.set_terminated(run_id, status, end_ms or last)
        return run_id

    def train(
        self,
        variant: str = "fp32",
        *,
        seed: int = 0,
        dataset: str = "drugmechdb",
        status: str = "FINISHED",
        epochs_done: int = EPOCHS,
        heartbeat_age: float | None = None,
        gpu: bool = True,
        name: str | None = None,
        start_ms: int | None = None,
    ) -> str:
        """Write a training run; `heartbeat_age` in seconds, None for no sign of life."""
        now_ms = int(time.time() * 1000)
        if start_ms is None:
            running_since = now_ms - 600_000 if status == "RUNNING" else None
            start_ms = running_since or START_MS + self.num_runs * HOUR_MS
        tags = train_tags(variant, dataset, gpu=gpu)
        if heartbeat_age is not None:
            tags[names.TAG_HEARTBEAT] = str(time.time() - heartbeat_age)
        return self.run(
            name=name or f"{dataset} {variant}",
            tags=tags,
            params=train_params(variant, seed, dataset),
            metrics=train_metrics(variant, seed, epochs_done, start_ms, gpu=gpu),
            status=status,
            start_ms=start_ms,
        )


def train_tags(variant: str, dataset: str, *, gpu: bool = True) -> dict[str, str]:
    """Return the tags that the trainer sets."""
    return {
        names.TAG_KIND: names.KIND_TRAIN,
        names.TAG_TASK: names.TASK_LINK_PREDICTION,
        names.TAG_DATASET: dataset,
        names.TAG_DATA_FINGERPRINT: f"fingerprint-{dataset}",
        names.TAG_VARIANT: variant,
        names.TAG_CONFIG_HASH: "8f3c1d20ab47",
        names.TAG_DEVICE: "NVIDIA H200" if gpu else "cpu",
        names.TAG_HARDWARE: "16 cores, 128 GiB, NVIDIA H200" if gpu else "2 cores, 23 GiB",
        names.TAG_VERSION: "0.1.0",
        names.TAG_COMMIT: "1f0c9d7",
        names.TAG_HEARTBEAT: str(time.time()),
    }


def train_params(variant: str, seed: int, dataset: str) -> dict[str, object]:
    """Return the flattened configuration."""
    values: dict[str, object] = {
        "data.name": dataset,
        "model.kind": "conve",
        "model.embedding_dim": 200,
        "model.output_channels": 32,
        "optimizer.kind": "adam",
        "optimizer.learning_rate": 0.003,
        "training.num_epochs": EPOCHS,
        "training.batch_size": 256,
        "training.seed": seed,
        "optimizations.use_mixed_precision": not variant.startswith("fp32"),
        "optimizations.use_gradient_checkpointing": "+ckpt" in variant,
        "optimizations.enable_memory_cleanup": True,
        "optimizations.torch_compile": "+compile" in variant,
    }
    return {names.PARAMETER_PREFIX + key: value for key, value in values.items()}


def train_metrics(
    variant: str, seed: int, epochs: int, start_ms: int, *, gpu: bool
) -> list[Metric]:
    """Return every value of every metric, in order."""
    noise = random.Random(f"{variant} {seed}")
    cost = COSTS[variant]
    epoch_seconds = 41.0 * cost.time * noise.uniform(0.985, 1.015) * (1 if gpu else 9)
    metrics: list[Metric] = []
    for epoch in range(1, epochs + 1):
        when = start_ms + int(epoch * (epoch_seconds + 2.1) * 1000)
        for key, value in _epoch_values(epoch, epoch_seconds, cost, noise).items():
            metrics.append(Metric(key, value, when, epoch * 250))
    if epochs == EPOCHS:
        total = epochs * (epoch_seconds + 2.1)
        for key, value in _final_values(cost, noise, total_seconds=total, gpu=gpu).items():
            metrics.append(Metric(key, value, start_ms + int(total * 1000), epochs * 250))
    return metrics


def _epoch_values(
    epoch: int, epoch_seconds: float, cost: Cost, noise: random.Random
) -> dict[str, float]:
    level = (1 - math.exp(-epoch / 4.2)) * cost.quality + noise.gauss(0, 0.004)
    return {
        names.TRAIN_EPOCH: epoch,
        names.TRAIN_LOSS: 5.2 * math.exp(-epoch / 5) + 0.9 + noise.gauss(0, 0.05),
        names.TRAIN_LEARNING_RATE: 0.003 * 0.95**epoch,
        names.TRAIN_GRAD_NORM: 1.4 + noise.random(),
        names.TIME_EPOCH_SECONDS: epoch_seconds * noise.uniform(0.99, 1.01),
        names.TIME_STEP_MILLISECONDS: epoch_seconds * 4 * noise.uniform(0.99, 1.01),
        names.EXAMPLES_PER_SECOND: 64_000 / epoch_seconds * noise.uniform(0.99, 1.01),
        names.metric("valid", names.MRR): 0.342 * level,
        names.metric("valid", names.hits_at(1)): 0.251 * level,
        names.metric("valid", names.hits_at(10)): 0.524 * level,
        names.metric("valid", names.MEAN_RANK): 260 - 120 * level,
    }


def _final_values(
    cost: Cost, noise: random.Random, *, total_seconds: float, gpu: bool
) -> dict[str, float]:
    quality = cost.quality * noise.uniform(0.995, 1.005)
    values = {
        names.metric("test", names.MRR): 0.337 * quality,
        names.metric("test", names.hits_at(1)): 0.247 * quality,
        names.metric("test", names.hits_at(10)): 0.518 * quality,
        names.TIME_TOTAL_SECONDS: total_seconds,
        names.PROCESS_PEAK_GIB: 3.4 * cost.process,
    }
    if gpu:
        values[names.GPU_PEAK_ALLOCATED_GIB] = 11.6 * cost.gpu
        values[names.GPU_PEAK_RESERVED_GIB] = 12.9 * cost.gpu
    return values
