"""Trains many small graph models at once: one network, its parameters stacked.

Parameters and buffers get a first dimension for the model, the forward pass is `torch.func.vmap`
over it, and the optimizer, whose steps are element by element, does not notice. All models of a
stack have one seed: initial weights, order and dropout masks are drawn once, as the product's
trainer draws them, and shared. They differ in the facts that they do without.

A small model's step is mostly the overhead of its many operations; a stack pays it once. A network
with large feature maps is limited by arithmetic instead and is faster by itself.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clew.config.graph_models import GraphModelSettings
from clew.config.loss import KvsAllLoss, OneVsAllLoss
from clew.config.optimizer import Adagrad
from clew.config.schema import RunConfig
from clew.link_prediction.losses.one_vs_all import Targets, row_losses
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_batches import TripleBatch
from clew.link_prediction.triples import KnowledgeGraph
from clew.training.distributed import World
from clew.training.loaders import BatchLoader
from clew.training.optimizer import build_optimizer
from clew.training.schedule import build_schedule
from clew.training.seeding import seed_everything
from clew.training.setup import total_steps
from clew.validation.dropped_facts import FactKeys, Facts

STACK_SIZE = 16
FOLLOWED = {"kind", "function", "label_smoothing", "implementation", "chunk_mib"}
"""Settings of the loss that a stack follows, or that change no result."""
LARGEST_STACKED = 600_000
"""Numbers that a batch of one model keeps; with more, a stack no longer fits the processor's cache.

A number of the network counts three times, a score of an entity once. Measured from 130 thousand
to two million: below, a stack takes .26 to .89 of the time of its models one at a time; above, .69
to 1.9, and with 8,500 entities 6.6 times as long.
"""


def why_not_stacked(config: RunConfig, num_entities: int) -> str:
    """Return why models of a configuration are trained one at a time; empty if they need not be."""
    reasons = {
        "optimizations.use_mixed_precision": config.optimizations.use_mixed_precision,
        "training.gradient_accumulation": config.training.gradient_accumulation > 1,
        "training.max_grad_norm": config.training.max_grad_norm is not None,
        "optimizer.row_wise": isinstance(config.optimizer, Adagrad) and config.optimizer.row_wise,
    }
    fields = type(config.loss).model_fields.items()
    reasons |= {
        f"loss.{name}": getattr(config.loss, name) != field.default
        for name, field in fields
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
    graph: KnowledgeGraph, config: RunConfig, dropped: Sequence[Facts]
) -> Iterator[GraphModel]:
    """Train a model for each set of dropped facts, all at once, and yield them.

    Args:
        graph: The whole graph.
        config: A configuration that `why_not_stacked` has no objection to.
        dropped: Facts that each model does without.
    """
    task = LinkPrediction(graph, config)
    seed_everything(config.training.seed)
    single = task.build_model().train()
    seed_everything(config.training.seed)
    scorer = _Scorer(single)
    stack = _stacked(scorer, len(dropped))
    facts = FactKeys.from_graph(graph, inverse_relations=task.inverse_relations)
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
    yield from (_unstacked(single, stack.model, place) for place in range(len(dropped)))


class _Scorer(nn.Module):
    """The scores of all entities, as the module that `functional_call` asks for."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        return self.model.scores(self.model.queries(head, relation))


def _loss(
    scorer: _Scorer,
    stack: _Scorer,
    batch: TripleBatch,
    kept: Bool[Tensor, "model positive"],
    config: RunConfig,
) -> Float[Tensor, " model"]:
    """Return each model's loss, summed over the rows that keep a positive."""
    loss = config.loss
    assert isinstance(loss, OneVsAllLoss | KvsAllLoss)

    def of_one(
        parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor
    ) -> Float[Tensor, ""]:
        scores = functional_call(scorer, (parameters, buffers), (batch.head, batch.relation))
        weight = own.to(scores.dtype)
        none = torch.zeros(batch.num_examples, dtype=scores.dtype)
        positives = none.index_add(0, batch.row, weight)
        targets = _targets(batch, weight, positives, scores.shape[1], loss)
        each = row_losses(scores, targets, function=loss.function)
        return (each * (positives > 0)).sum()

    parameters: dict[str, Tensor] = dict(stack.named_parameters())
    buffers = dict(stack.named_buffers())
    return vmap(of_one, randomness="same")(parameters, buffers, kept)


def _targets(
    batch: TripleBatch,
    kept: Tensor,
    positives: Tensor,
    num_entities: int,
    loss: OneVsAllLoss | KvsAllLoss,
) -> Targets:
    """Return the smoothed labels of the positives that are kept, as `smoothed_targets` does.

    Args:
        batch: Queries, and all their positives.
        kept: 1 for positives that are kept, else 0, `(positive,)`.
        positives: How many of each query are kept, `(batch,)`.
        num_entities: Number of entities.
        loss: The loss's settings.
    """
    smoothing = loss.label_smoothing
    share, mass = (1.0 - smoothing) * kept, (1.0 - smoothing) * positives
    if loss.function == "softmax_cross_entropy":
        share = share / positives.clamp_min(1.0)[batch.row]
        mass = mass / positives.clamp_min(1.0)
    floor, once = smoothing / num_entities, torch.ones_like(mass)
    return Targets(
        batch.row, batch.entity, share, floor, once, batch.num_examples, mass + smoothing
    )


def _stacked(scorer: _Scorer, count: int) -> _Scorer:
    """Return a scorer whose parameters and buffers hold `count` copies, `(model, ...)`."""
    stack = deepcopy(scorer)
    for parameter in stack.parameters():
        parameter.data = parameter.data.expand(count, *parameter.shape).clone()
    for module in stack.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.expand(count, *buffer.shape).clone())
    return stack


@torch.no_grad()
def _unstacked(single: GraphModel, stack: GraphModel, place: int) -> GraphModel:
    """Return one model of a stack."""
    model = deepcopy(single)
    for own, stacked in zip(model.state_dict().values(), stack.state_dict().values(), strict=True):
        own.copy_(stacked[place])
    return model.eval()
