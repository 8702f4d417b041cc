"""Evaluates a trained model on a split of its own data, and records the result as a run.

The verdict on a model, or on a training, says how good it is, and what to type next.

A graph model can also be evaluated with given wrong triples, by the protocol of their benchmark. A
folder with `valid_negatives.txt` and `test_negatives.txt` (as in CoDEx) selects triple
classification. A file `.npz` (arrays of OGB's splits) selects ranking against given candidates.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew import names
from clew.errors import ConfigError, DataError, printable
from clew.files import as_typed, working_folder
from clew.link_prediction import given_negatives
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.query_scores import QueryScores
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_files import read_triples
from clew.link_prediction.triples import RELATION, FilterIndex
from clew.runs.store import in_use
from clew.training.reports import lasting, speed_in_words
from clew.workflows.model_source import LoadedModel, ModelSource, load_source, open_model
from clew.workflows.subjects import SUBJECTS
from clew.workflows.training_run import linked_run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluateResult:
    """The metrics of a model on a split, and the run that records them."""

    model: str
    split: str
    run_id: str | None
    metrics: dict[str, float]
    verdict: list[str] = field(default_factory=list)
    """How good the model is, and what to type next."""

    def table(self, *, everything: bool = False) -> str:
        """Return the verdict, and all metrics in groups if `everything` is true."""
        lines = [f"model: {self.model}", f"run {self.run_id or '(not recorded)'}", *self.verdict]
        return "\n".join(lines + (grouped(self.metrics) if everything else []))


def evaluate(model: str, split: str = "test", *, negatives: Path | None = None) -> EvaluateResult:
    """Evaluate a model on a split of the run's data, and record a run of kind `evaluate`."""
    if split not in ("valid", "test"):
        raise ConfigError(f"split is {split!r}; expected valid or test")
    with open_model(model) as source:
        loaded = load_source(source)
        began = time.perf_counter()
        against = measure_against(loaded, negatives, split) if negatives else {}
        metrics = measure(loaded, source, split) | against | measure_seen(loaded, split)
        seconds = time.perf_counter() - began
        name, of = f"evaluate {loaded.task.dataset} {split}", names.KIND_EVALUATE
        run = linked_run(source, loaded, name, kind=of, context="evaluation")
        with run as tracker, working_folder("evaluation") as folder:
            step = source.manifest.step
            tracker.metrics({names.TIME_EVALUATION_SECONDS: seconds, **metrics}, step)
            report = folder / names.ARTIFACT_EVALUATION
            report.mkdir()
            loaded.task.write_report(split, report)
            if any(report.iterdir()):
                tracker.artifact(report)
        kind = source.config.data.kind
        said = [*quality(loaded.task, kind, metrics)]
        said += [f"{key} {value:.4f}" for key, value in against.items()]
        said += [f"next: {line}" for line in SUBJECTS[kind].next_commands(loaded.task, model)]
        said = [printable(line) for line in said]
        return EvaluateResult(source.title, split, tracker.run_id, metrics, said)


def measure(loaded: LoadedModel, source: ModelSource, split: str) -> dict[str, float]:
    metrics = loaded.metrics(split)
    if not metrics:
        raise DataError(
            f"{source.title}: {loaded.task.dataset} has no {split} examples; evaluate another split"
        )
    bad = [key for key, value in metrics.items() if not math.isfinite(value)]
    if bad:
        logger.warning("%s: %s is %s", source.title, bad[0], metrics[bad[0]])
    return metrics


def measure_seen(loaded: LoadedModel, split: str) -> dict[str, float]:
    """Return `seen_mrr` and the like of a graph model with inverse relations; else nothing."""
    task, model = loaded.task, loaded.model
    if not (isinstance(task, LinkPrediction) and isinstance(model, GraphModel)):
        return {}
    graph, triples = task.graph, task.graph.split("valid" if split == "valid" else "test")
    if not task.inverse_relations or not len(triples):
        return {}
    known = FilterIndex.of_questions(graph, triples)
    ranks = QueryScores(model.cpu(), graph.num_relations, known).rank_seen(triples, graph.train)
    return _named(split, names.SEEN, ranks.quality())


def measure_against(loaded: LoadedModel, negatives: Path, split: str) -> dict[str, float]:
    """Return `classification_accuracy` and `_f1`, or `given_mrr` and `given_hits_at_k`."""
    task, model = loaded.task, loaded.model
    if not (isinstance(task, LinkPrediction) and isinstance(model, GraphModel)):
        raise ConfigError(
            f"--negatives {negatives} given for a {task.kind} model; only link prediction has "
            "triples: leave it out"
        )
    if negatives.is_dir():
        if split != "test":
            raise ConfigError(
                "split is valid, on which triple classification chooses thresholds; evaluate test"
            )
        return _classify(task, model, negatives)
    graph = task.graph
    given = given_negatives.read_given_negatives(negatives, graph.entities, graph.relations)
    ranks = given_negatives.rank_given(model, given, graph.num_relations)
    return _named(split, names.GIVEN, ranks.quality())


def _classify(task: LinkPrediction, model: GraphModel, folder: Path) -> dict[str, float]:
    graph, scored = task.graph, {}
    if not len(graph.valid):
        raise DataError(
            f"{graph.name} has no validation triples, on which triple classification chooses its "
            "thresholds; leave out --negatives"
        )
    for name, true in (("valid", graph.valid), ("test", graph.test)):
        path = folder / f"{name}_negatives.txt"
        if not path.is_file():
            raise DataError(f"{folder}: no file {path.name}; expected the false {name} triples")
        triples = np.concatenate([true, read_triples(path, graph.entities, graph.relations)])
        scores = given_negatives.score_triples(model, triples, graph.num_relations)
        scored[name] = scores, np.arange(len(triples)) < len(true), triples[:, RELATION]
    thresholds = given_negatives.fit_thresholds(*scored["valid"], graph.num_relations)
    scores, is_true, relation = scored["test"]
    quality = given_negatives.classification_quality(scores >= thresholds[relation], is_true)
    return _named("test", names.CLASSIFICATION, quality)


def _named(split: str, pattern: str, found: Mapping[str, float]) -> dict[str, float]:
    return {names.metric(split, pattern.format(name=name)): value for name, value in found.items()}


GROUPS = {
    "test/": "quality on the test split",
    "valid/": "quality on the validation split",
    "train/": "training",
    "throughput/": "speed",
    "time/": "time",
    "memory/": "memory",
}

NOT_VALIDATED = (
    "quality: not evaluated, so there is no best checkpoint to predict with; train with "
    "evaluation.enabled=true and a validation split"
)


def grouped(metrics: Mapping[str, float]) -> list[str]:
    """Return all metrics in lines, in groups that have titles."""
    rest = dict(sorted(metrics.items()))
    lines = []
    for prefix, title in (*GROUPS.items(), ("", "others")):
        own = [key for key in rest if key.startswith(prefix)]
        lines += [title] if own else []
        lines += [f"  {key:36} {rest.pop(key):.6g}" for key in own]
    return lines


def quality(task: Any, kind: str, metrics: Mapping[str, float]) -> list[str]:
    """Return how good a model is, on the test split if it was evaluated there."""
    for split in ("test", "valid"):
        if any(key.startswith(names.metric(split, "")) for key in metrics):
            return SUBJECTS[kind].summary(task, metrics, split)
    return [NOT_VALIDATED]


def verdict_of_training(
    task: Any, kind: str, metrics: dict[str, float], *, run_id: str | None, output_dir: Path | None
) -> list[str]:
    """Return the verdict on a training run, in at most seven lines."""
    lines = quality(task, kind, metrics)
    peaks = (names.GPU_PEAK_ALLOCATED_GIB, names.PROCESS_PEAK_GIB)
    memory = [f"{metrics[key]:.2f} GiB at the peak" for key in peaks if key in metrics][:1]
    total = f"{lasting(metrics[names.TIME_TOTAL_SECONDS])} of training"
    lines.append(f"cost: {', '.join([total, *speed_in_words(metrics), *memory])}")
    kept = [as_typed(output_dir)] if output_dir is not None else []
    kept += [f"run {run_id} of {in_use()}"] if run_id is not None else []
    lines.append(f"files: {' and '.join(kept) or 'none were kept'}")
    best = None if NOT_VALIDATED in lines else names.ARTIFACT_BEST
    model = run_id or (output_dir and as_typed(output_dir / (best or "")))
    commands = SUBJECTS[kind].next_commands(task, str(model)) if model else []
    lines += [f"next: {each}" for each in commands if best or not each.startswith("clew predict")]
    return [printable(line) for line in lines]  # a name can contain any character


def as_note(lines: list[str]) -> dict[str, str]:
    """Return the tag that shows a verdict as the run's description, a paragraph for each line."""
    return {names.TAG_NOTE: "\n\n".join(line for line in lines if not line.startswith("files:"))}
