"""The gate: the checks that a candidate must pass before it can replace the champion.

The checks run one after another, and each reports what it found. The first failed check that cannot
be overruled ends them. The gate does not change the registry or the tracking store.
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy.special import stdtrit

from clew import __version__, names
from clew.errors import CheckpointError, DataError, TrackingError
from clew.files import working_folder
from clew.runs.base import RegisteredVersion
from clew.runs.hardware import git_commit
from clew.runs.reading.metrics import HEADLINES
from clew.runs.registry import Registry, ask_servable, save_servable
from clew.subject import Calibrated
from clew.training.checkpoints import weights_digest
from clew.training.manifest import sha256
from clew.training.task import ExampleValues
from clew.workflows.model_source import LoadedModel, ModelSource, load_source, open_version
from clew.workflows.open_run import SERVED_FOLDER

REPRODUCTION_TOLERANCE = 1e-6
SPLIT = "valid"
"""The split that decides; the test split is only reported."""
CONFIDENCE = 0.95
NUM_STRETCHES, STRETCH = 15, 20
"""Largest number of stretches of a sequence that count as independent of each other, and the least
number of examples in each."""
LEAST_DIFFERENT = 6
"""With fewer examples that differ, equal models would win too often by chance: all signs of five
agree in one case of sixteen."""
SPLIT_SETTINGS = (
    "valid_fraction",
    "test_fraction",
    "num_blocks",
    "validation_group",
    "test_group",
    "hold_out_validation",
    "embargo",
    "temporal_frames",
)
"""Settings of `data` that choose the validation examples of the same data."""
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


@dataclass(frozen=True)
class Improvement:
    """By how much a candidate is better than the champion, with its confidence interval."""

    mean: float
    low: float
    high: float
    confidence: float
    num_examples: int
    unit: str

    @classmethod
    def of(
        cls, ours: ExampleValues, theirs: ExampleValues, *, maximize: bool, tries: int = 1
    ) -> "Improvement":
        """Compare two models on the same examples: Student's t over their paired differences.

        `ours` are the candidate's values of the metric for each example, `theirs` the champion's.
        `tries` is from how many candidates this one was chosen by the same examples; the interval
        is widened for all of them together (Bonferroni).
        """
        differences = (ours.values - theirs.values) * (1 if maximize else -1)
        count, mean = len(differences), float(differences.mean())
        if ours.in_sequence:
            parts = np.array_split(differences, max(1, min(NUM_STRETCHES, count // STRETCH)))
            differences = np.array([part.sum() for part in parts]) * len(parts) / count
        half = math.inf
        if np.count_nonzero(differences) >= LEAST_DIFFERENT:
            independent = len(differences)
            quantile = stdtrit(independent - 1, 1 - (1 - CONFIDENCE) / 2 / tries)
            half = float(quantile * differences.std(ddof=1) / math.sqrt(independent))
        confidence = 1 - (1 - CONFIDENCE) / tries
        return cls(mean, mean - half, mean + half, confidence, count, ours.unit)

    @property
    def is_certain(self) -> bool:
        return self.low > 0

    def describe(self) -> str:
        """Return difference, interval and number of examples, with a plus for an improvement."""
        examples = f"{self.num_examples:,} validation {self.unit}"
        if math.isinf(self.low):
            return f"{self.mean:+.4g}, but too few of the same {examples} differ to tell"
        interval = f"{100 * self.confidence:.4g} % interval {self.low:+.4g} to {self.high:+.4g}"
        return f"{self.mean:+.4g}, {interval} over the same {examples}"

    def tags(self, metric: str) -> dict[str, str]:
        """Return the tags of a version about the comparison that decided."""
        return {
            names.TAG_GATE_METRIC: metric,
            names.TAG_GATE_SPLIT: SPLIT,
            names.TAG_GATE_EXAMPLES: f"{self.num_examples} {self.unit}",
            names.TAG_GATE_INTERVAL: f"{self.low:+.6g} to {self.high:+.6g}",
        }


@dataclass
class Gate:
    """A candidate, the champion that it would replace, and the results of the checks so far."""

    candidate: ModelSource
    champion: RegisteredVersion | None
    metric: str
    maximize: bool
    work: Path
    tries: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    champion_metrics: dict[str, float] = field(default_factory=dict)
    calibration: Calibrated | None = None
    loaded: LoadedModel | None = None
    improvement: Improvement | None = None

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
        """Load the package as a server does, and compare its answers with the checkpoint's.

        The version's files must be those of the package, but they are not run: somebody else who
        may write to the registry could have changed them.
        """
        subject = self.candidate.subject
        rows = subject.example_rows(self.model.task)
        stored = _digests(registry.download(version, self.work / "served"))
        if changed := sorted(name for name, _ in stored ^ _digests(self.package)):
            detail = f"{changed[0]} of {version.uri} differs from what was uploaded"
            return Check("served", False, detail, final=True)
        loaded = subject.load(self.package / SERVED_FOLDER)
        expected = subject.answer(loaded, rows, subject.settings())
        try:
            answered = ask_servable(self.package, rows)
        except TrackingError as error:
            return Check("served", False, str(error), final=True)
        for row, one, other in zip(rows, answered, expected, strict=True):
            if not subject.agree(one, other):
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
        if self.improvement is not None:
            tags |= self.improvement.tags(self.metric)
        return tags | {f"{names.TAG_METRIC_PREFIX}{k}": f"{v:.8g}" for k, v in self.metrics.items()}

    def card(self, uri: str) -> str:
        """Return a version's description: its model card, in Markdown."""
        subject, task = self.candidate.subject, self.model.task
        splits = [s for s in (SPLIT, "test") if any(k.startswith(f"{s}/") for k in self.metrics)]
        quality = [line for s in splits for line in subject.summary(task, self.metrics, s)]
        compared = self.improvement.describe() if self.improvement else "no version to compare with"
        calibrated = self.calibration.describe() if self.calibration else subject.uncalibrated
        explain = subject.next_commands(task, str(self.candidate.run_id))[-1]
        parts = {
            "Intended use": subject.intended_use,
            "Data": f"{task.dataset}, {subject.describe_data(task)}",
            "Quality": "\n".join(f"- {line.removeprefix('quality: ')}" for line in quality),
            f"{self.metric} beside the champion before it": compared,
            "Calibration": calibrated,
            "Explanations": f"`{explain}` says with each whether its scores were tested",
            "Load": f'`clew.load("{uri}")`, or `mlflow models serve -m {shlex.quote(uri)} '
            "--env-manager local`",
        }
        return "\n\n".join(f"**{title}**\n\n{text}" for title, text in parts.items())

    @property
    def weights_digest(self) -> str:
        return weights_digest(self.candidate.checkpoint)

    @cached_property
    def package(self) -> Path:
        """Folder of the candidate as a model that MLflow can serve; written on first use."""
        subject, task = self.candidate.subject, self.model.task
        with working_folder("register") as work:
            subject.write_folder(task, work / "model", self.candidate.checkpoint, self.calibration)
            return save_servable(
                self.work / "servable",
                subject=subject,
                code=Path(__file__).with_name("serving.py"),
                model_folder=work / "model",
                work=work / "copies",
                example=subject.example_rows(task)[0],
            )

    @property
    def model(self) -> LoadedModel:
        """The candidate's model; available once its weights are loaded."""
        assert self.loaded is not None
        return self.loaded

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
        self.metrics |= self.model.metrics(SPLIT)
        found = self.metrics.get(metric)
        if found is None or not math.isfinite(found):
            return Check("validation", False, f"{metric} is {found} now", final=True)
        detail = f"{metric} {found:.8f} now, {recorded:.8f} recorded"
        if (difference := abs(found - recorded)) <= REPRODUCTION_TOLERANCE:
            return Check("validation", True, detail)
        allowed = f"differs by {difference:.2g}, at most {REPRODUCTION_TOLERANCE:g} is allowed"
        return Check("validation", False, f"{detail}: {allowed}")

    def _calibration(self) -> Check:
        subject, loaded = self.candidate.subject, self.model
        self.calibration = found = subject.calibrate(loaded.task, loaded.model.to("cpu"))
        loaded.model.to(loaded.device)
        return Check("calibration", True, found.describe() if found else subject.uncalibrated)

    def _test(self) -> Check:
        measured = self.model.metrics("test")
        self.metrics |= measured
        bad = [key for key, value in measured.items() if not math.isfinite(value)]
        if bad:
            return Check("test", False, f"{bad[0]} is {measured[bad[0]]}", final=True)
        if not measured:
            return Check("test", True, f"data set {self.model.task.dataset} has no test examples")
        key = self.metric.replace(SPLIT, "test", 1)
        found = f"{key} {measured[key]:.6f}" if key in measured else f"no {key}"
        subject = self.candidate.subject
        number = f"{subject.num_test_examples(self.model.task):,} {subject.examples}"
        return Check("test", True, f"{found} on {number}; reported, not compared")

    def _champion(self) -> Check:
        if self.champion is None:
            return Check("champion", True, "no version has the alias yet")
        title = f"version {self.champion.number} (run {self.champion.run_id})"
        try:
            return self._compare(title, self.champion)
        except (CheckpointError, DataError, KeyError) as error:
            return Check("champion", False, f"{title} cannot be evaluated ({self._said(error)})")

    def _compare(self, title: str, version: RegisteredVersion) -> Check:
        own = self.candidate.manifest.data_fingerprint
        its = version.tags.get(names.TAG_DATA_FINGERPRINT)
        if own != its:
            return _differs(f"{title} was trained on data {its}, the candidate on {own}")
        source = open_version(version, self.work / "champion")
        data, its_data = self.candidate.config.data, source.config.data
        for key in SPLIT_SETTINGS:
            ours, theirs = getattr(data, key, None), getattr(its_data, key, None)
            if ours != theirs:
                return _differs(f"{title} has data.{key} {theirs}, the candidate {ours}")
        champion = load_source(source, data=data)
        self.champion_metrics = champion.metrics(SPLIT)
        before, now = self._values(champion), self._values(self.model)
        if before is None or now is None:
            own = HEADLINES[self.model.task.kind]
            detail = f"{self.metric} is not a mean over examples, so it has no interval; use {own}"
            return Check("champion", False, detail)
        if not len(now.values):
            detail = f"{self.model.task.dataset} has no validation {now.unit} to compare models on"
            return Check("champion", False, detail)
        self.improvement = Improvement.of(now, before, maximize=self.maximize, tries=self.tries)
        detail = (
            f"{self.metric} {now.values.mean():.6f}, {before.values.mean():.6f} of {title}: "
            f"{self.improvement.describe()}"
        )
        if self.tries > 1:
            detail += f", for the best of {self.tries} runs"
        certain = self.improvement.is_certain
        return Check("champion", certain, detail if certain else f"{detail}: not certainly better")

    def _values(self, loaded: LoadedModel) -> ExampleValues | None:
        name = self.metric.removeprefix(f"{SPLIT}/")
        return loaded.task.example_values(loaded.model, SPLIT, name, loaded.device)

    def _said(self, error: Exception) -> str:
        """Return an error's message without the working folder, which is deleted afterwards."""
        return str(error).replace(f"{self.work}/", "")


def _digests(folder: Path) -> set[tuple[str, str]]:
    """Return the path and the digest of each file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {(str(path.relative_to(folder)), sha256(path)) for path in files}


def _differs(how: str) -> Check:
    detail = f"{how}: their validation examples differ, so they cannot be compared; promote under "
    return Check("champion", False, f"{detail}another name, or force with a reason")
