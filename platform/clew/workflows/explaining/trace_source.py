"""A trained graph model with its checkpoints and data, and the triples to explain.

The triples are `head,relation,tail`, or a file. A line that cannot be used does not stop the
reading: each triple has its own problem field.
"""

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from clew.config.load import with_settings
from clew.config.loss import EntityLoss
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, DataError, quoted
from clew.files import cache_folder
from clew.influence.link_prediction.paths import PathFinder
from clew.influence.link_prediction.tracin import Tracer
from clew.influence.link_prediction.unrolled import TunedTracer, UnrolledTracer
from clew.influence.retraining import Retrainer
from clew.influence.scores import Explanation
from clew.influence.summation import all_steps
from clew.influence.unrolling import load_average
from clew.influence.verify import fine_tuning, recipe_of
from clew.input_files import line_blocks
from clew.link_prediction.descriptions import read_dictionary
from clew.link_prediction.dictionaries import fields_to_ids
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_files import read_triples
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.runs.validation_record import Recipe
from clew.training.manifest import CheckpointRecord, read_manifest
from clew.training.precision import device_name
from clew.training.setup import prepare_process
from clew.workflows.model_source import (
    LoadedModel,
    ModelSource,
    best_setting,
    device_of,
    open_checkpoints,
    own_task,
)
from clew.workflows.open_run import references_in

TUNING_SEEDS, TUNING_SHARE_OF_RATE = 2, 0.4
FIRST_TUNING_SEED = 1000
"""Counted from the run's own: far from those of checks and retrainings, which test the scores."""
SHOWN_PROBLEMS = 5
NUM_FIELDS = 3
MAX_PIECES = 32
"""Largest number of pieces between commas; every way to join them to three fields is tried."""
logger = logging.getLogger(__name__)
FILES = {"name", "train", "valid", "test", "entity_to_id", "relation_to_id", "exclude"}
LABELS = {"node_name_dict", "edge_map"}
MAY_DIFFER: Mapping[str, set[str] | bool] = {
    "data": FILES | LABELS,
    "training": {"seed", "device", "num_workers"},
    "influence": True,
    "tracking": True,
}
"""Settings that may differ between the runs of an ensemble: the seed, and settings that do not
affect what is learned. Files at other paths are compared by the data's fingerprint."""


@dataclass(frozen=True)
class GivenTriple:
    """A triple to explain; if it cannot be used, `ids` is None and `problem` says why."""

    index: int
    """Line number, counted from 0."""
    text: str
    ids: tuple[int, int, int] | None
    problem: str = ""


def read_test_triples(test: str, graph: KnowledgeGraph) -> list[GivenTriple]:
    """Read a file of triples, or one triple written as `head,relation,tail`."""
    if not test.strip():
        raise DataError("no test triple given; expected head,relation,tail or a file of triples")
    path = Path(test)
    if os.path.isfile(path):  # Path.is_file raises if the text cannot be a path
        lines = b"".join(line_blocks(path)).decode("utf-8", "replace").split("\n")[:-1]
        return [_of_line(index, line, graph) for index, line in enumerate(lines)]
    if "," not in test:
        raise DataError(
            f"{quoted(test)}: no such file, and not a triple; expected a file of triples, or "
            "head,relation,tail"
        )
    return [_of_commas(test, graph)]


def usable(triples: Sequence[GivenTriple], source: str) -> Triples:
    """Return the ids of triples, all of which must be usable."""
    wrong = [triple for triple in triples if triple.ids is None]
    if wrong:
        more = f" (and {len(wrong) - SHOWN_PROBLEMS} more)" if len(wrong) > SHOWN_PROBLEMS else ""
        listed = "; ".join(
            f"line {triple.index + 1}: {triple.problem}" for triple in wrong[:SHOWN_PROBLEMS]
        )
        raise DataError(f"{quoted(source)[1:-1]}: {listed}{more}")
    return np.array([triple.ids for triple in triples], np.int32).reshape(-1, NUM_FIELDS)


def _of_line(index: int, line: str, graph: KnowledgeGraph) -> GivenTriple:
    fields = line.split("\t")
    if len(fields) != NUM_FIELDS or "" in fields:
        problem = f"{quoted(line)} is not head<TAB>relation<TAB>tail"
        return GivenTriple(index, line, None, problem)
    return of_fields(index, line, fields, graph)


def _of_commas(text: str, graph: KnowledgeGraph) -> GivenTriple:
    """Split at two of the commas; names can contain commas, so every way is tried."""
    pieces = text.split(",")
    if len(pieces) > MAX_PIECES:
        problem = f"{quoted(text)} has {len(pieces) - 1:,} commas; give a file with tabs instead"
        return GivenTriple(0, text, None, problem)
    ways = [
        [",".join(pieces[:i]), ",".join(pieces[i:j]), ",".join(pieces[j:])]
        for i in range(1, len(pieces) - 1)
        for j in range(i + 1, len(pieces))
    ]
    if not ways:
        return GivenTriple(0, text, None, f"{quoted(text)} is not head,relation,tail")
    tried = [of_fields(0, text, [field.strip() for field in way], graph) for way in ways]
    found = [triple for triple in tried if triple.ids is not None]
    if len(found) > 1:
        problem = (
            f"{quoted(text)} can be read as {len(found)} triples; give a file with tabs instead"
        )
        return GivenTriple(0, text, None, problem)
    return found[0] if found else tried[0]


def of_fields(index: int, text: str, fields: list[str], graph: KnowledgeGraph) -> GivenTriple:
    """Return the triple of three names."""
    problems, ids = [], []
    for name, vocabulary in zip(
        fields, (graph.entities, graph.relations, graph.entities), strict=True
    ):
        known = pa.array([name.encode("utf-8", "replace")]).cast(pa.string())
        found = int(fields_to_ids(known, vocabulary)[0])
        if found < 0:
            problems.append(vocabulary.unknown_name_message(name))
        ids.append(found)
    if problems:
        return GivenTriple(index, text, None, "; ".join(problems))
    return GivenTriple(index, text, (ids[0], ids[1], ids[2]))


@dataclass(frozen=True)
class GivenFiles:
    """Files that should be the model's own; they are compared with what it was trained on."""

    train: str = ""
    """Training triples, in any order."""
    entity_to_id: str = ""
    """Dictionary of entities."""
    relation_to_id: str = ""
    """Dictionary of relations."""

    def check(self, graph: KnowledgeGraph, model: ModelSource) -> None:
        """Refuse files that differ from the model's own."""
        for path, kind, own in (
            (self.entity_to_id, "entity", graph.entities),
            (self.relation_to_id, "relation", graph.relations),
        ):
            if path and read_dictionary(Path(path), own.kind).name_array != own.name_array:
                raise CheckpointError(
                    f"{path}: its {kind} names or ids differ from those of {model.title}, which "
                    f"has {len(own)}; leave {kind}_to_id out to use the model's own"
                )
        if not self.train:
            return
        given = np.unique(read_triples(Path(self.train), graph.entities, graph.relations), axis=0)
        trained_on = np.unique(graph.train, axis=0)
        if not np.array_equal(given, trained_on):
            raise CheckpointError(
                f"{self.train}: holds {len(given)} distinct triples, {model.title} was trained on "
                f"{len(trained_on)} others (data fingerprint {model.manifest.data_fingerprint}); "
                "leave train out to use the model's own"
            )


@dataclass(frozen=True)
class TraceSource:
    """A trained model with its checkpoints, ready to explain predictions."""

    model: ModelSource
    """The model at its last checkpoint; its configuration has the settings of the explanation."""
    checkpoints: tuple[CheckpointRecord, ...]
    """For an ensemble: one for each step, with the mean of its weights over the runs."""
    task: LinkPrediction
    tracer: Tracer
    runs: tuple[str, ...] = ()
    """For an ensemble: the names of all its runs; empty for a single run."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """What `best_setting` returns for the runs."""

    @cached_property
    def paths(self) -> PathFinder:
        return PathFinder(self.task.graph.train, self.task.graph.num_entities)

    @property
    def loaded(self) -> LoadedModel:
        return LoadedModel(self.task, self.tracer.models[-1], self.tracer.device)


@contextmanager
def open_trace_source(
    reference: str,
    overrides: Mapping[str, Any],
    *,
    files: GivenFiles | None = None,
) -> Iterator[TraceSource]:
    """Find a model's checkpoints, and load them with the model's data.

    Raises:
        UsageError: The checkpoints or the data are missing or do not belong together.
    """
    names = references_in(reference)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_checkpoints(name, overrides)) for name in names]
        require_ensemble([model for model, _ in opened])
        models, runs = zip(*opened, strict=True)
        yield _load(models, runs, files or GivenFiles())


def _load(
    models: Sequence[ModelSource],
    runs: Sequence[tuple[CheckpointRecord, ...]],
    files: GivenFiles,
) -> TraceSource:
    model, config = models[0], over_all_entities(models[0].config)
    if (kind := model.manifest.task) != LinkPrediction.kind:
        raise ConfigError(
            f"{model.title} is a {kind} model; tracin explains link prediction: triples"
        )
    prepare_process(config)
    task = own_task(replace(model, config=config))
    assert isinstance(task, LinkPrediction)
    if task.graph.weights is not None:
        raise ConfigError(
            f"{model.title} was trained with data.weights=use; influence does not know weights of "
            "facts, so it explains models that were trained without"
        )
    files.check(task.graph, model)
    tracer = Tracer(
        task,
        config,
        settings=config.influence,
        checkpoints=runs[0],
        further_runs=runs[1:],
        device=device_of(config),
        cache=cache_folder("moments"),
    )
    names_of_runs = tuple(m.run_id or m.reference for m in models) if len(models) > 1 else ()
    best = best_setting(models)
    return TraceSource(model, mean_checkpoints(runs), task, tracer, names_of_runs, best)


def over_all_entities(config: RunConfig) -> RunConfig:
    """Return a configuration whose loss is over all entities, which sampled losses estimate."""
    if not isinstance(config.loss, EntityLoss) or config.loss.negatives is None:
        return config
    logger.info(
        "trained with samples of %d entities; the loss over all entities is explained, which the "
        "samples estimate",
        config.loss.negatives,
    )
    return with_settings(config, {"loss.negatives": None})


def require_ensemble(models: Sequence[ModelSource]) -> None:
    """Refuse runs that differ in more than their seed, and runs with the same seed."""
    first, seeds = models[0], {models[0].config.training.seed: models[0]}
    for other in models[1:]:
        ours, theirs = first.manifest.data_fingerprint, other.manifest.data_fingerprint
        if ours != theirs:
            raise ConfigError(
                f"{other.title} was trained on data {theirs}, {first.title} on {ours}; an ensemble "
                "needs runs of the same configuration on the same data"
            )
        for key, value in _learned(other.config).items():
            own = _learned(first.config).get(key)
            if value != own:
                raise ConfigError(
                    f"{key} is {value!r} in {other.title} and {own!r} in {first.title}; an "
                    "ensemble needs runs of the same configuration with different seeds"
                )
        seed = other.config.training.seed
        if seed in seeds:
            raise ConfigError(
                f"training.seed is {seed} in {other.title} and in {seeds[seed].title}; an ensemble "
                "needs runs with different seeds"
            )
        seeds[seed] = other


def mean_checkpoints(
    runs: Sequence[Sequence[CheckpointRecord]],
) -> tuple[CheckpointRecord, ...]:
    """Return one checkpoint for each step of any run, with the mean of its weights over all runs.

    A run that has no checkpoint at that step counts with weight 0, as in `MeanOfRuns`.
    """
    found = []
    for step in all_steps([[record.step for record in run] for run in runs]):
        same = [record for run in runs for record in run if record.step == step]
        weight = sum(record.learning_rate_weight for record in same) / len(runs)
        found.append(replace(same[0], learning_rate_weight=weight))
    return tuple(found)


def _learned(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine what is learned, except the seed, by their full key."""
    content = config.model_dump(mode="json", exclude=MAY_DIFFER)
    return {
        f"{section}.{key}": value
        for section, values in content.items()
        for key, value in values.items()
    }


def explain_unrolled(
    source: TraceSource,
    tests: Triples,
    candidates: np.ndarray | None,
    progress: Callable[[int, int], None],
) -> list[Explanation]:
    """Explain test triples through the whole training run, or through fine-tunings.

    If the run keeps an average of the parameters, the whole run explains the loss of the
    averaged model. The average is then loaded into the last model, so that the report shows its
    score and rank.
    """
    form = source.tracer.settings.score
    found = prepare(source, form).explain(tests, candidates=candidates, progress=progress)
    if form == "unrolled" and source.model.config.training.ema_decay is not None:
        load_average(source.tracer.models[-1], source.checkpoints[-1].path)
    return found


def prepare(source: TraceSource, form: str = "unrolled") -> UnrolledTracer:
    """Return the tracer of unrolled or tuned scores, after all checks that can refuse the run."""
    if source.runs:
        raise ConfigError(
            f"{len(source.runs)} runs are given, but a derivative through training steps is of one "
            "run; give one of them, or explain with --score raw or cosine"
        )
    model, device = source.model, source.tracer.device
    of_run = (source.task, model.config, source.checkpoints, device, cache_folder(form))
    if form == "unrolled":
        require_same_device(model, device)
        return UnrolledTracer(*of_run)
    tuning = fine_tuning(model.config, tuning_of(model.config))
    start = source.tracer.models[-1]
    retrainer = Retrainer(source.task.graph, tuning, model.manifest, device, start)
    return TunedTracer(*of_run, retrainer, tuning_seeds_of(model.config))


def tuning_of(config: RunConfig) -> Recipe:
    """Return the recipe of the fine-tuning that tuned scores differentiate."""
    influence = config.influence
    rate = influence.tuning_learning_rate or TUNING_SHARE_OF_RATE * config.optimizer.learning_rate
    return recipe_of(config, influence.tuning_epochs, rate)


def tuning_seeds_of(config: RunConfig) -> list[int]:
    count, first = config.influence.tuning_seeds or TUNING_SEEDS, FIRST_TUNING_SEED
    return [(config.training.seed + first + number) % 2**32 for number in range(count)]


def seeds_of(source: TraceSource, count: int) -> tuple[int, ...]:
    """Return the own seed, and the next seeds that no run of the ensemble was trained with."""
    runs, own = source.tracer.runs, source.model.config.training.seed
    taken = {read_manifest(run.checkpoints[-1].path).config["training"]["seed"] for run in runs}
    following = (seed for seed in itertools.count(own + 1) if seed not in taken)
    return (own, *itertools.islice(following, count))


def require_same_device(model: ModelSource, device: torch.device) -> None:
    """Refuse to repeat a training run on another kind of device than it ran on."""
    trained_on, this = model.manifest.device, device_name(device)
    if trained_on != this:
        raise CheckpointError(
            f"{model.title} was trained on {trained_on}, this is {this}; score=unrolled repeats "
            "the same steps on the same device: explain it there, or with another --score"
        )


def unrolled_settings(source: TraceSource) -> dict[str, Any]:
    """Return the replay settings for a report, after checking that the run can be replayed."""
    form = source.tracer.settings.score
    prepare(source, form)
    if form == "tuned":
        return tuned_settings(source.model.config)
    return replay_settings(source.model.config, source.checkpoints[-1].step)


def tuned_settings(config: RunConfig) -> dict[str, Any]:
    seeds, tuning = tuning_seeds_of(config), tuning_of(config).model_dump()
    return {"tuning": tuning, "tuning_seeds": len(seeds), "first_tuning_seed": seeds[0]}


def replay_settings(config: RunConfig, steps: int) -> dict[str, Any]:
    averaged = config.training.ema_decay is not None
    return {
        "steps": steps,
        "explained_parameters": "average" if averaged else "last",
        "scope": "this run: its seed, order and dropout",
    }
