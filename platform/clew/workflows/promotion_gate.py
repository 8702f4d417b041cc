"""The promotion gate: what a candidate must show before it may replace the champion.

Checks come one by one, each with what was found; the first that nobody could overrule ends them.
Nothing here writes anything.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from clew import names
from clew.errors import CheckpointError, DataError
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.model_folder import index_known
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.prediction import Predictor
from clew.link_prediction.task import LinkPrediction
from clew.runs.registry import Version
from clew.workflows.model_source import LoadedModel, ModelSource, load_source, open_version

REPRODUCTION_TOLERANCE = 1e-6
SAFE_SUFFIXES = frozenset({".safetensors", ".json", ".parquet"})

CheckName = Literal[
    "checkpoint", "no pickle", "weights", "validation", "calibration", "test", "champion", "served"
]


@dataclass(frozen=True)
class Check:
    """One question to a candidate and its answer.

    A failed check can be overruled by a person with a reason, unless it is `final`.
    """

    name: CheckName
    passed: bool
    detail: str
    final: bool = False

    def line(self) -> str:
        """Return the check for people, in one line."""
        return f"{'ok' if self.passed else 'NO':3} {self.name:11} {self.detail}"


@dataclass
class Gate:
    """A candidate, the champion that it wants to replace, and what was found out so far.

    Args:
        candidate: The best checkpoint of a run.
        champion: The version that has the alias now, if there is one.
        metric: Last part of the metric that decides, for example `mrr`.
        maximize: Whether its larger values are better.
        work: An empty folder.
    """

    candidate: ModelSource
    champion: Version | None
    metric: str
    maximize: bool
    work: Path
    metrics: dict[str, float] = field(default_factory=dict)
    champion_metrics: dict[str, float] = field(default_factory=dict)
    calibration: Calibration | None = None
    loaded: LoadedModel | None = None

    def checks(self) -> Iterator[Check]:
        """Yield the checks in order, up to the first one that is final."""
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

    @property
    def task(self) -> LinkPrediction:
        """The candidate's task, once its weights are loaded."""
        assert self.loaded is not None
        assert isinstance(self.loaded.task, LinkPrediction)
        return self.loaded.task

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
        return Check("no pickle", True, f"{len(files)} files, safetensors and JSON only")

    def _weights(self) -> Check:
        try:
            self.loaded = load_source(self.candidate)
        except (CheckpointError, DataError) as error:
            return Check("weights", False, str(error), final=True)
        state = self.loaded.model.state_dict()
        bad = [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
        if bad:
            detail = f"{bad[0]} holds NaN or infinity"
            return Check("weights", False, detail, final=True)
        data = f"data {self.task.dataset} {self.task.data_fingerprint} as in training"
        return Check("weights", True, f"{len(state)} tensors loaded, all finite; {data}")

    def _validation(self) -> Check:
        assert self.loaded is not None
        metric = self.candidate.config.evaluation.metric
        recorded = self.candidate.manifest.metrics[metric]
        self.metrics |= self.loaded.metrics("valid")
        found = self.metrics.get(metric)
        if found is None or not math.isfinite(found):
            return Check("validation", False, f"{metric} is {found} now", final=True)
        detail = f"{metric} {found:.8f} now, {recorded:.8f} recorded"
        if abs(found - recorded) <= REPRODUCTION_TOLERANCE:
            return Check("validation", True, detail)
        return Check(
            "validation",
            False,
            f"{detail}: differs by {abs(found - recorded):.2g}, at most "
            f"{REPRODUCTION_TOLERANCE:g} is allowed",
        )

    def _calibration(self) -> Check:
        assert self.loaded is not None
        graph, model = self.task.graph, self.loaded.model.to("cpu")
        assert isinstance(model, GraphModel)
        known = index_known(graph.train, graph.num_relations)
        predictor = Predictor(model, graph.entities, graph.relations, known=known)
        self.calibration = predictor.calibrate(graph.valid)
        model.to(self.loaded.device)
        if self.calibration is None:
            return Check("calibration", True, "no validation triples, so no probabilities")
        c = self.calibration
        return Check(
            "calibration",
            True,
            f"temperature {c.temperature:.3f} on {c.num_queries:,} validation queries; expected "
            f"calibration error {c.ece_before:.3f} -> {c.ece_after:.3f}",
        )

    def _test(self) -> Check:
        assert self.loaded is not None
        measured = self.loaded.metrics("test")
        self.metrics |= measured
        bad = [key for key, value in measured.items() if not math.isfinite(value)]
        if bad:
            return Check("test", False, f"{bad[0]} is {measured[bad[0]]}", final=True)
        if not measured:
            detail = f"data set {self.task.dataset} has no test triples to compare models on"
            return Check("test", self.champion is None, detail)
        key = names.metric("test", self.metric)
        if key not in measured:
            detail = f"{key} is not measured; measured: {', '.join(sorted(measured))}"
            return Check("test", False, detail, final=True)
        num_triples = len(self.task.graph.test)
        return Check("test", True, f"{key} {measured[key]:.6f} on {num_triples:,} triples")

    def _champion(self) -> Check:
        if self.champion is None:
            return Check("champion", True, "there is none yet")
        title = f"version {self.champion.number} (run {self.champion.run_id})"
        own, its = (
            self.candidate.manifest.data_fingerprint,
            self.champion.tags.get(names.TAG_DATA_FINGERPRINT),
        )
        if own != its:
            return Check(
                "champion",
                False,
                f"{title} was trained on data {its}, the candidate on {own}: their test metrics "
                "cannot be compared; promote under another name, or force with a reason",
            )
        key = names.metric("test", self.metric)
        try:
            source = open_version(self.champion, self.work / "champion")
            self.champion_metrics = load_source(source, data=self.candidate.config.data).metrics(
                "test"
            )
            theirs = self.champion_metrics[key]
        except (CheckpointError, DataError, KeyError) as error:
            detail = f"{title} cannot be evaluated ({error})"
            return Check("champion", False, detail)
        ours = self.metrics.get(key, math.nan)
        better = ours > theirs if self.maximize else ours < theirs
        detail = f"{key} {ours:.6f}, {theirs:.6f} of {title} on the same triples and filter"
        return Check("champion", better, detail if better else f"{detail}: not better")
