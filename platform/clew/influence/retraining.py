"""Trains the model of a run again without some facts: one at a time, or many as one network.

A step of a small model is mostly the overhead of its many operations. A stack has it only once:
parameters and buffers get a first dimension for the model, and the forward pass is
`torch.func.vmap` over it. The optimizer works element by element, so it needs no change. All models
of a stack have the same seed: initial weights, order and dropout masks are drawn once, as Clew's
trainer draws them, and are shared. Only float32 sums are in another order, which training amplifies
(docs/trust.md says how far). A network with large feature maps is limited by arithmetic and is
faster on its own.

The results of each model for the test triples are kept on the disk, one file per model, so that a
killed command can continue.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clew.config.graph_models import GraphModelSettings
from clew.config.load import with_settings
from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.schema import RunConfig
from clew.config.training import Adagrad
from clew.errors import ConfigError, refusing
from clew.files import replacing, working_folder, write_whole
from clew.influence.outcomes import FactKeys, Facts, Outcomes, WithoutFacts
from clew.link_prediction.losses.one_vs_all import Targets, row_losses
from clew.link_prediction.models.base import EntityScorer, GraphModel, build_graph_model
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.loaders import BatchLoader
from clew.training.manifest import CheckpointRecord, Manifest, list_checkpoints
from clew.training.optimizer import build_optimizer, build_schedule
from clew.training.seeding import seed_everything
from clew.training.setup import build_trainer, total_steps

STACK_SIZE = 16
KEPT_CHECKPOINTS = 4
FOLLOWED = {"kind", "function", "label_smoothing", "implementation", "chunk_mib"}
"""Settings of the loss that a stack supports, or that do not change the result."""
LARGEST_STACKED = 600_000
"""Limit on the numbers that a batch of one model keeps, so that a stack fits the processor's cache.

A number of the network counts three times, the score of an entity once. Measured from 130 thousand
to two million numbers. Below the limit, a stack takes 0.26 to 0.89 of the time of its models one at
a time; above it, 0.69 to 1.9, and 6.6 with 8,500 entities.
"""


def why_not_stacked(config: RunConfig, num_entities: int) -> str:
    """Return why models of a configuration cannot be stacked; empty if they can."""
    reasons = {
        "optimizations.use_mixed_precision": config.optimizations.use_mixed_precision,
        "training.gradient_accumulation": config.training.gradient_accumulation > 1,
        "training.max_grad_norm": config.training.max_grad_norm is not None,
        "optimizer.row_wise": isinstance(config.optimizer, Adagrad) and config.optimizer.row_wise,
    }
    reasons |= {
        f"loss.{name}": getattr(config.loss, name) != field.default
        for name, field in type(config.loss).model_fields.items()
        if name not in FOLLOWED
    }
    for setting in (name for name, is_set in reasons.items() if is_set):
        return f"{setting} is set"
    assert isinstance(config.model, GraphModelSettings)
    size = 3 * build_graph_model(config.model, 1, 1).floats_per_query + num_entities
    if (size := size * config.training.batch_size) > LARGEST_STACKED:
        return f"a batch keeps {size:,} numbers, more than {LARGEST_STACKED:,}"
    return ""


def train_stack(
    graph: KnowledgeGraph,
    config: RunConfig,
    dropped: Sequence[Facts],
    start: GraphModel | None = None,
) -> Iterator[GraphModel]:
    """Train models for all sets of dropped facts at once, and yield them."""
    task = LinkPrediction(graph, config)
    seed_everything(config.training.seed)
    single = task.build_model().train()
    if start is not None:
        single.load_state_dict(start.state_dict())
    seed_everything(config.training.seed)
    scorer = EntityScorer(single)
    stack = _stacked(scorer, len(dropped))
    facts = FactKeys(graph, inverse_relations=task.inverse_relations)
    kept = torch.stack([torch.from_numpy(facts.kept(each)) for each in dropped])
    optimizer = build_optimizer(config.optimizer, stack.model)
    steps = total_steps(config, task, World())
    schedule = build_schedule(config.schedule, total_steps=steps, evaluation=config.evaluation)
    loader = BatchLoader(task.train_examples(), config.training)
    step = 0
    for epoch in range(config.training.num_epochs):
        for batch in loader.epoch(epoch):
            if step >= steps:
                break
            factor = schedule.factor(step=step, epoch=epoch)
            for group in optimizer.param_groups:
                group["lr"] = config.optimizer.learning_rate * factor
            total = _loss(scorer, stack, batch, kept[:, facts.places(batch)], config).sum()
            (total / batch.count).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    for place in range(len(dropped)):
        model = deepcopy(single)
        model.load_state_dict({name: t[place] for name, t in stack.model.state_dict().items()})
        yield model.eval()


def _loss(
    scorer: EntityScorer,
    stack: EntityScorer,
    batch: TripleBatch,
    kept: Bool[Tensor, "model positive"],
    config: RunConfig,
) -> Float[Tensor, " model"]:
    loss = config.loss
    assert isinstance(loss, OneVsAllLoss | KvsAllLoss)
    keep = 1.0 - loss.label_smoothing

    def of_one(
        parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor
    ) -> Float[Tensor, ""]:
        scores = functional_call(scorer, (parameters, buffers), (batch.head, batch.relation))
        weight = own.to(scores.dtype)
        none = torch.zeros(batch.num_examples, dtype=scores.dtype)
        positives = none.index_add(0, batch.row, weight)
        # The smoothed labels of the positives that are kept, as those of `targets_of`.
        share, mass = keep * weight, keep * positives
        if loss.function == "softmax_cross_entropy":
            count = positives.clamp_min(1.0)
            share, mass = share / count[batch.row], mass / count
        floor, once = loss.label_smoothing / scores.shape[1], torch.ones_like(mass)
        size, mass = batch.num_examples, mass + loss.label_smoothing
        targets = Targets(batch.row, batch.entity, share, floor, once, size, mass)
        each = row_losses(scores, targets, function=loss.function)
        return (each * (positives > 0)).sum()

    parameters: dict[str, Tensor] = dict(stack.named_parameters())
    buffers = dict(stack.named_buffers())
    return vmap(of_one, randomness="same")(parameters, buffers, kept)


def _stacked(scorer: EntityScorer, count: int) -> EntityScorer:
    """Return a scorer whose parameters and buffers are `count` copies, `(model, ...)`."""
    stack = deepcopy(scorer)
    for parameter in stack.parameters():
        parameter.data = parameter.data.expand(count, *parameter.shape).clone()
    for module in stack.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.expand(count, *buffer.shape).clone())
    return stack


NOTHING: Facts = np.empty(0, np.int64)
IDENTITY_FILE = "identity.json"


@dataclass(frozen=True, eq=False)
class Retraining:
    """The seed and the dropped facts of one retraining."""

    seed: int
    dropped: Facts
    """Dropped facts in ascending order."""

    @property
    def key(self) -> str:
        digest = hashlib.sha256(self.dropped.astype("<i8").tobytes()).hexdigest()[:16]
        return f"seed-{self.seed}-{digest}"


@dataclass(frozen=True)
class Retrainer:
    """Trains models like a run, but with other seeds and without some facts."""

    graph: KnowledgeGraph
    config: RunConfig
    origin: Manifest
    """Manifest of the run's last checkpoint."""
    device: torch.device
    start: GraphModel | None = None
    """A trained model to go on from; None: training starts with new parameters."""

    def __post_init__(self) -> None:
        steered = {
            "schedule.kind=plateau": self.config.schedule.kind == "plateau",
            "training.early_stopping_patience": bool(self.config.training.early_stopping_patience),
        }
        for setting in (name for name, is_set in steered.items() if is_set):
            raise ConfigError(
                f"the run was trained with {setting}, so its training depends on validation "
                "results, which change when facts are left out; train a run without this setting "
                "to test explanations"
            )

    @property
    def why_one_at_a_time(self) -> str:
        """Reason why models are not trained together; empty if they are."""
        if self.device.type != "cpu":
            return f"training runs on {self.device.type}"
        return why_not_stacked(self.config, self.graph.num_entities)

    @property
    def models_at_once(self) -> int:
        return 1 if self.why_one_at_a_time else STACK_SIZE

    @property
    def num_steps(self) -> int:
        task = LinkPrediction(self.graph, self.config)
        return total_steps(self.config, task, World())

    def train(
        self, seed: int, dropped: Sequence[Facts], *, max_steps: int | None = None
    ) -> Iterator[GraphModel]:
        """Train a model for each set of dropped facts, and yield it in evaluation mode."""
        config = self.configured(seed, max_steps)
        if self.why_one_at_a_time:
            yield from (self._train_one(config, facts) for facts in dropped)
            return
        for start in range(0, len(dropped), STACK_SIZE):
            several = dropped[start : start + STACK_SIZE]
            yield from train_stack(self.graph, config, several, self.start)

    def train_each(self, wanted: Iterable[Retraining]) -> Iterator[tuple[Retraining, GraphModel]]:
        """Do retrainings, those of one seed together, and yield each with its model."""
        by_seed = attrgetter("seed")
        for seed, group in groupby(sorted(wanted, key=by_seed), by_seed):
            several = list(group)
            models = self.train(seed, [one.dropped for one in several])
            yield from zip(several, models, strict=True)

    def configured(self, seed: int, max_steps: int | None = None) -> RunConfig:
        """Return the run's configuration without settings that do not affect its parameters."""
        content = self.config.model_dump(mode="json")
        limits = [n for n in (max_steps, self.config.training.max_steps) if n is not None]
        content["training"] |= {
            "seed": seed,
            "max_steps": min(limits, default=None),
            "ema_decay": None,
            "checkpoint_frequency": 0,
            "checkpoint_every_steps": None,
        }
        content["evaluation"]["enabled"] = False
        content["optimizations"]["torch_compile"] = False
        content["tracking"] |= {"log_checkpoints": False, "profile_steps": 0}
        return RunConfig.model_validate(content)

    def _train_one(self, config: RunConfig, facts: Facts) -> GraphModel:
        with working_folder("retraining") as folder:
            model = self._train_in(folder, config, WithoutFacts(self.graph, config, facts))
        assert isinstance(model, GraphModel)
        return model.eval()

    def record(self, seed: int, folder: Path) -> tuple[RunConfig, list[CheckpointRecord]]:
        """Train with all facts, and keep checkpoints in a folder, from which it can be repeated."""
        config = self.configured(seed)
        every = -(-config.training.num_epochs // KEPT_CHECKPOINTS)
        config = with_settings(config, {"training.checkpoint_frequency": every})
        self._train_in(folder, config, LinkPrediction(self.graph, config))
        return config, list_checkpoints(folder / "checkpoints")

    def _train_in(self, folder: Path, config: RunConfig, task: LinkPrediction) -> nn.Module:
        trainer = build_trainer(
            config,
            task,
            Tracker(),
            device=self.device,
            world=World(),
            folder=folder,
            origin=self.origin,
            keep_all_checkpoints=True,
        )
        if self.start is not None:
            trainer.model.load_state_dict(self.start.state_dict())
        trainer.train()
        return trainer.model


class KeptRetrainings:
    """Results of each retraining for the test triples, in the files of a folder.

    `identity` is that of the data, the configuration and the test triples.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.identity = folder, json.dumps(identity)
        stated = folder / IDENTITY_FILE
        if stated.is_file():
            if stated.read_bytes() != self.identity.encode():
                raise ConfigError(
                    f"--output-dir {folder}: contains retrainings of another model, other data or "
                    "other test triples; give another folder"
                )
        elif folder.is_dir() and any(path.suffix != ".tmp" for path in folder.iterdir()):
            raise ConfigError(f"--output-dir {folder}: contains other files; give a new folder")

    def __contains__(self, retraining: Retraining) -> bool:
        return self._path(retraining).is_file()

    def write(self, retraining: Retraining, outcomes: Outcomes) -> None:
        """Write the results of a retraining, completely or not at all."""
        write_whole(self.folder / IDENTITY_FILE, self.identity)
        with replacing(self._path(retraining)) as temporary, temporary.open("wb") as file:
            np.savez(file, **vars(outcomes))

    def read(self, retraining: Retraining) -> Outcomes:
        path, advice = self._path(retraining), "; delete it to train that model again"
        # Damaged zip files and NumPy headers raise many error types.
        refused = refusing(f"{path}: cannot be read", Exception, advice=advice)
        with refused, path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return Outcomes(**stored)

    def _path(self, retraining: Retraining) -> Path:
        return self.folder / f"{retraining.key}.npz"
