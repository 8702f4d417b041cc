"""The gate: the checks that a candidate must pass before it can replace the champion.

The checks run one after another, and each reports what it found. The first failed check that cannot
be overruled ends them. The gate does not change the registry or the tracking store.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from clew import __version__, names
from clew.errors import CheckpointError, DataError, TrackingError
from clew.runs.hardware import git_commit
from clew.runs.packaging import ask_servable
from clew.runs.registry import RegisteredVersion, Registry
from clew.training.checkpoints import weights_digest
from clew.workflows.model_source import (
    SERVED_FOLDER,
    LoadedModel,
    ModelSource,
    load_source,
    open_version,
)
from clew.workflows.servables import Calibrated, Servable, servable_of

REPRODUCTION_TOLERANCE = 1e-6
MOST_SHOWN = 200
"""Largest number of characters of a request in a message; requests with frames are longer."""
SAFE_SUFFIXES = frozenset({".safetensors", ".json", ".parquet"})

CheckName = Literal[
    "checkpoint", "no pickle", "weights", "validation", "calibration", "test", "champion", "served"
]


@dataclass(frozen=True)
class Check:
    """The result of one check of a candidate.

    A user can overrule a failed check by giving a reason, unless the check is `final`.
    """

    name: CheckName
    passed: bool
    detail: str
    final: bool = False

    def line(self) -> str:
        return f"{'ok' if self.passed else 'NO':3} {self.name:11} {self.detail}"


@dataclass
class Gate:
    """A candidate, the champion that it would replace, and the results of the checks so far.

    Args:
        candidate: The best checkpoint of a run.
        champion: The version that has the alias now; None if no version has it.
        metric: Last part of the key of the metric that decides, for example `mrr`.
        maximize: Whether larger values of the metric are better.
        work: An empty folder for temporary files.
    """

    candidate: ModelSource
    champion: RegisteredVersion | None
    metric: str
    maximize: bool
    work: Path
    metrics: dict[str, float] = field(default_factory=dict)
    champion_metrics: dict[str, float] = field(default_factory=dict)
    calibration: Calibrated | None = None
    loaded: LoadedModel | None = None

    def checks(self) -> Iterator[Check]:
        """Yield the results of the checks in order, up to the first failed check that is final."""
        steps = (
            self._checkpoint,
            self._no_pickle,
            self._weights,
            self._validation,
            self._calibration,
            self._test,
            self._champion,
        )
        for step in steps:
            check = step()
            yield check
            if check.final and not check.passed:
                return

    def served(self, registry: Registry, version: RegisteredVersion) -> Check:
        """Load a version from the registry as a server does, and compare its answers.

        They must agree with the answers of the checkpoint.
        """
        rows = self.servable.example_rows()
        folder = registry.download(version, self.work / "served")
        expected = self.servable.answer(folder / SERVED_FOLDER, rows)
        try:
            answered = ask_servable(folder, rows)
        except TrackingError as error:
            return Check("served", False, str(error), final=True)
        for row, one, other in zip(rows, answered, expected, strict=True):
            if not self.servable.agree(one, other):
                asked = str(row)[:MOST_SHOWN]
                detail = f"the answer to {asked} differs from the answer of the checkpoint"
                return Check("served", False, detail, final=True)
        detail = f"{version.uri} loads without pickle and answers {len(rows)} queries correctly"
        return Check("served", True, detail)

    def describe_candidate(self) -> dict[str, str]:
        """Return the tags of a version: its origin, its code and the results of the checks."""
        manifest, task = self.candidate.manifest, self.model.task
        tags = {
            names.TAG_VALIDATION: names.VALIDATION_PENDING,
            names.TAG_SOURCE_RUN: self.candidate.run_id or "",
            names.TAG_TASK: task.kind,
            names.TAG_DATASET: task.dataset,
            names.TAG_DATA_FINGERPRINT: manifest.data_fingerprint,
            names.TAG_CONFIG_HASH: manifest.config_hash,
            names.TAG_COMMIT: manifest.commit,
            names.TAG_CHECKPOINT_STEP: str(manifest.step),
            names.TAG_WEIGHTS: self.weights_digest,
            names.TAG_VERSION: __version__,
            names.TAG_PACKAGE_COMMIT: git_commit() or "unknown",
        }
        if self.calibration is not None:
            tags |= self.calibration.tags()
        found = {f"{names.TAG_METRIC_PREFIX}{k}": f"{v:.8g}" for k, v in self.metrics.items()}
        return tags | found

    @property
    def weights_digest(self) -> str:
        return weights_digest(self.candidate.checkpoint)

    @property
    def model(self) -> LoadedModel:
        """The candidate's model; available once its weights are loaded."""
        assert self.loaded is not None
        return self.loaded

    @property
    def servable(self) -> Servable:
        """The candidate's task for serving; available once its weights are loaded."""
        return servable_of(self.model.task)

    def _checkpoint(self) -> Check:
        manifest, metric = self.candidate.manifest, self.candidate.config.evaluation.metric
        recorded = manifest.metrics.get(metric)
        found = f"best checkpoint at step {manifest.step}, epoch {manifest.epoch}"
        if recorded is None or not math.isfinite(recorded):
            said = "is missing" if recorded is None else f"is {recorded}"
            detail = f"{found}: its recorded {metric} {said}, expected a finite number"
            return Check("checkpoint", False, detail, final=True)
        return Check("checkpoint", True, f"{found}, {metric} {recorded:.6f}")

    def _no_pickle(self) -> Check:
        files = sorted(path for path in self.candidate.checkpoint.rglob("*") if path.is_file())
        unsafe = [path.name for path in files if path.suffix not in SAFE_SUFFIXES]
        if unsafe:
            detail = f"{unsafe[0]} is neither safetensors nor JSON nor Parquet"
            return Check("no pickle", False, detail, final=True)
        return Check("no pickle", True, f"{len(files)} files, only safetensors, JSON or Parquet")

    def _weights(self) -> Check:
        try:
            self.loaded = load_source(self.candidate)
        except (CheckpointError, DataError) as error:
            return Check("weights", False, self._said(error), final=True)
        state = self.loaded.model.state_dict()
        bad = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
        if bad:
            return Check("weights", False, f"{bad[0]} holds NaN or infinity", final=True)
        task = self.loaded.task
        data = f"data {task.dataset} {task.data_fingerprint} as in training"
        return Check("weights", True, f"{len(state)} tensors loaded, all finite; {data}")

    def _validation(self) -> Check:
        metric = self.candidate.config.evaluation.metric
        recorded = self.candidate.manifest.metrics[metric]
        self.metrics |= self.model.metrics("valid")
        found = self.metrics.get(metric)
        if found is None or not math.isfinite(found):
            return Check("validation", False, f"{metric} is {found} now", final=True)
        detail = f"{metric} {found:.8f} now, {recorded:.8f} recorded"
        if (difference := abs(found - recorded)) <= REPRODUCTION_TOLERANCE:
            return Check("validation", True, detail)
        allowed = f"differs by {difference:.2g}, at most {REPRODUCTION_TOLERANCE:g} is allowed"
        return Check("validation", False, f"{detail}: {allowed}")

    def _calibration(self) -> Check:
        self.calibration = found = self.servable.calibrate(self.model.model.to("cpu"))
        self.model.model.to(self.model.device)
        return Check("calibration", True, found.describe() if found else self.servable.uncalibrated)

    def _test(self) -> Check:
        measured = self.model.metrics("test")
        self.metrics |= measured
        bad = [key for key, value in measured.items() if not math.isfinite(value)]
        if bad:
            return Check("test", False, f"{bad[0]} is {measured[bad[0]]}", final=True)
        examples = self.servable.examples
        if not measured:
            name = self.model.task.dataset
            detail = f"data set {name} has no test {examples} to compare models on"
            return Check("test", self.champion is None, detail)
        key = names.metric("test", self.metric)
        if key not in measured:
            detail = f"{key} is not measured; measured: {', '.join(sorted(measured))}"
            return Check("test", False, detail, final=True)
        number = self.servable.num_test_examples
        return Check("test", True, f"{key} {measured[key]:.6f} on {number:,} {examples}")

    def _champion(self) -> Check:
        if self.champion is None:
            return Check("champion", True, "no version has the alias yet")
        title = f"version {self.champion.number} (run {self.champion.run_id})"
        own = self.candidate.manifest.data_fingerprint
        its = self.champion.tags.get(names.TAG_DATA_FINGERPRINT)
        if own != its:
            detail = (
                f"{title} was trained on data {its}, the candidate on {own}: their test metrics "
                "cannot be compared; promote under another name, or force with a reason"
            )
            return Check("champion", False, detail)
        key = names.metric("test", self.metric)
        try:
            source = open_version(self.champion, self.work / "champion")
            champion = load_source(source, data=self.candidate.config.data)
            self.champion_metrics = champion.metrics("test")
            theirs = self.champion_metrics[key]
        except (CheckpointError, DataError, KeyError) as error:
            detail = f"{title} cannot be evaluated ({self._said(error)})"
            return Check("champion", False, detail)
        ours = self.metrics.get(key, math.nan)
        better = ours > theirs if self.maximize else ours < theirs
        where = f"on the same {self.servable.examples} and filter"
        detail = f"{key} {ours:.6f}, {theirs:.6f} of {title} {where}"
        return Check("champion", better, detail if better else f"{detail}: not better")

    def _said(self, error: Exception) -> str:
        """Return an error's message without the working folder, which is deleted afterwards."""
        return str(error).replace(f"{self.work}/", "")
