"""A slow reference for training: one loop in float64, with explicit steps and fact weights."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clew.config.schema import RunConfig
from clew.config.training import Adagrad, Adam, AdamW
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import add_inverses
from clew.training.seeding import seed_everything
from tests.training.plain_order import epoch_order, microbatches


def train_plainly(
    config: RunConfig,
    task: LinkPrediction,
    weights: Tensor,
    start: torch.nn.Module | None = None,
) -> torch.nn.Module:
    """Return the model after training with fact weights; with the average if there is one.

    It begins with the parameters of `start`, if that is given.
    """
    settings = config.training
    seed_everything(settings.seed)
    model = task.build_model()
    if start is not None:
        model.load_state_dict(start.state_dict())
    seed_everything(settings.seed)
    model.train()
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    average = {name: p.detach().clone() for name, p in parameters.items()}
    source, step = task.train_examples(), 0
    plans = [
        microbatches(
            epoch_order(len(source), seed=settings.seed, epoch=epoch),
            batch_size=settings.batch_size,
        )
        for epoch in range(settings.num_epochs)
    ]
    size = settings.gradient_accumulation
    total = sum(-(-len(plan) // size) for plan in plans)
    for plan in plans:
        for start in range(0, len(plan), size):
            window = plan[start : start + size]
            batches = [source.batch(indices) for indices in window]
            by_triple = config.loss.kind == "one_vs_all"
            count = sum(len(batch.row if by_triple else batch.head) for batch in batches)
            for batch in batches:
                (weighted_loss(config, task, model, batch, weights) / count).backward()
            moved = {name: p for name, p in parameters.items() if p.grad is not None}
            norm = math.sqrt(sum(float(p.grad.square().sum()) for p in moved.values()))
            limit = settings.max_grad_norm
            factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
            rate = rate_of(config, step, total)
            with torch.no_grad():
                for name, p in moved.items():
                    update(config, p, p.grad * factor, states[name], rate)
                    p.grad = None
                if settings.ema_decay is not None:
                    share = max(1 - settings.ema_decay, 1 / (step + 1))
                    for name, p in parameters.items():
                        average[name] += share * (p - average[name])
            step += 1
    if settings.ema_decay is not None:
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(average[name])
    return model


def rate_of(config: RunConfig, step: int, total: int) -> float:
    """Return the learning rate: constant, or rising and falling along a cosine."""
    peak = config.optimizer.learning_rate
    schedule = config.schedule
    if schedule.kind == "constant":
        return peak
    first = peak / schedule.initial_divisor
    last = first / schedule.final_divisor
    rise = schedule.warmup_fraction * total - 1
    if rise > 0 and step <= rise:
        return peak + (first - peak) / 2 * (1 + math.cos(math.pi * step / rise))
    rise = max(rise, 0)
    return last + (peak - last) / 2 * (1 + math.cos(math.pi * (step - rise) / (total - 1 - rise)))


def update(config: RunConfig, p: Tensor, g: Tensor, state: dict[str, Tensor], rate: float) -> None:
    """Update a parameter by the formulas of the optimizers' papers."""
    settings = config.optimizer
    if isinstance(settings, AdamW):
        p -= rate * settings.weight_decay * p
    else:
        g = g + settings.weight_decay * p
    if isinstance(settings, Adam):
        t = state["t"] = state.get("t", 0) + 1
        m = state["m"] = settings.beta1 * state.get("m", 0 * g) + (1 - settings.beta1) * g
        v = state["v"] = settings.beta2 * state.get("v", 0 * g) + (1 - settings.beta2) * g**2
        root = (v / (1 - settings.beta2**t)).sqrt()
        p -= rate * m / (1 - settings.beta1**t) / (root + settings.epsilon)
    elif isinstance(settings, Adagrad):
        square = g**2
        if settings.row_wise and g.dim() == 2:
            square = square.mean(1, keepdim=True)
        s = state["s"] = state.get("s", 0 * square) + square
        p -= rate * g / (s.sqrt() + settings.epsilon)
    else:
        b = state["b"] = settings.momentum * state.get("b", 0 * g) + g
        p -= rate * b


def weighted_loss(config, task, model, batch, weights: Tensor) -> Tensor:
    """Return the summed loss of a batch with dense labels and fact weights."""
    queries = model.queries(batch.head, batch.relation)
    scores = model.scores(queries)
    rows = np.asarray(add_inverses(task.graph.train, task.graph.num_relations))
    num_facts, total = len(task.graph.train), torch.zeros((), dtype=scores.dtype)
    for place in range(batch.num_examples):
        s = scores[place]
        tails = batch.entity[batch.row == place].tolist()
        key = (int(batch.head[place]), int(batch.relation[place]))
        facts = [np.flatnonzero((rows == (*key, t)).all(1))[0] % num_facts for t in tails]
        if config.loss.kind == "one_vs_all":
            for fact, tail in zip(facts, tails, strict=True):
                total = total + weights[fact] * row(config, s, [tail])
            continue
        whole = row(config, s, tails)
        total = total + whole
        for fact, tail in zip(facts, tails, strict=True):
            others = [t for t in tails if t != tail]
            share = whole - row(config, s, others) if others else whole
            total = total + (weights[fact] - 1) * share
    return total


def row(config: RunConfig, scores: Tensor, tails: list[int]) -> Tensor:
    """Return the loss of one row from dense labels, which the product never builds."""
    eps, labels = config.loss.label_smoothing, torch.zeros_like(scores)
    labels[tails] = 1.0
    if config.loss.function == "binary_cross_entropy":
        labels = (1 - eps) * labels + eps / len(scores)
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
    labels = (1 - eps) * labels / labels.sum() + eps / len(scores)
    return -(labels * scores.log_softmax(0)).sum()


def explained_loss(config: RunConfig, task: LinkPrediction, model, triple: np.ndarray) -> Tensor:
    """Return the explained loss: both directions of a triple, in evaluation mode."""
    model.eval()
    total = torch.zeros(())
    for h, r, t in add_inverses(triple[None], task.graph.num_relations):
        scores = model.scores(model.queries(torch.tensor([h]), torch.tensor([r])))
        total = total + row(config, scores[0], [int(t)])
    return total
