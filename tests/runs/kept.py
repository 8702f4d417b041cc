"""Views of the data that trackers have stored, read back from the store."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlflow import MlflowClient

from clew.runs.base import Tracker
from clew.runs.tracker import MlflowTracker
from tests.memory_tracker import MemoryTracker


@dataclass
class Kept:
    """The data that a tracker has stored for a run, read back from the store."""

    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """The history of each metric: value and step, in order."""
    artifacts: set[str] = field(default_factory=set)
    checkpoints: list[tuple[str, int, dict[str, float]]] = field(default_factory=list)
    datasets: list[tuple[str, str, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    status: str | None = None


def read_memory(tracker: Tracker) -> Kept:
    assert isinstance(tracker, MemoryTracker)
    metrics: dict[str, list[tuple[float, int]]] = {}
    for key, value, step in tracker.metric_values:
        metrics.setdefault(key, []).append((value, step))
    return Kept(
        params={
            k: v if isinstance(v, str) else json.dumps(v) for k, v in tracker.parameters.items()
        },
        tags=tracker.tag_values,
        metrics=metrics,
        artifacts=set(tracker.artifacts),
        checkpoints=tracker.checkpoints,
        datasets=tracker.datasets,
        warnings=tracker.warnings,
        status=tracker.status,
    )


def read_mlflow(tracker: Tracker) -> Kept:
    assert isinstance(tracker, MlflowTracker)
    tracker.flush()
    return read_run(MlflowClient(), tracker.run_id)


def read_run(client: MlflowClient, run_id: str) -> Kept:
    run = client.get_run(run_id)
    metrics = {
        key: [(m.value, m.step) for m in client.get_metric_history(run_id, key)]
        for key in run.data.metrics
    }
    return Kept(
        params=run.data.params,
        tags={k: v for k, v in run.data.tags.items() if not k.startswith("mlflow.")},
        metrics=metrics,
        artifacts=set(_artifacts(client, run_id)),
        checkpoints=_model_entries(client, run_id),
        datasets=[
            (
                i.dataset.name,
                json.loads(i.dataset.profile)["fingerprint"],
                json.loads(i.dataset.source)["uri"],
                i.tags[0].value,
            )
            for i in run.inputs.dataset_inputs
        ],
        warnings=run.data.tags.get("clew.warnings", "").splitlines(),
        status=None if run.info.status == "RUNNING" else run.info.status,
    )


def _artifacts(client: MlflowClient, run_id: str, folder: str | None = None) -> Iterator[str]:
    for info in client.list_artifacts(run_id, folder):
        yield info.path
        if info.is_dir:
            yield from _artifacts(client, run_id, info.path)


def _model_entries(client: MlflowClient, run_id: str) -> list[tuple[str, int, dict[str, float]]]:
    entries = []
    outputs = client.get_run(run_id).outputs
    for output in outputs.model_outputs if outputs else []:
        model = client.get_logged_model(output.model_id)
        assert str(model.status) == "READY"
        entries.append(
            (
                model.tags["clew.folder"],
                output.step,
                {metric.key: metric.value for metric in model.metrics or []},
            )
        )
    return sorted(entries, key=lambda entry: entry[1])
