"""Derivatives of a step's gradient with respect to parameters, fact weights and statistics.

For the gradient g of a step's mean loss and a vector u, one more backward pass through the graph of
the first one gives d<g, u> / d theta and d<g, u> / d w. The loss is not the fused one of training,
which need not be twice differentiable, but the plain one with an equal value. So g differs from the
recorded gradient by rounding (1e-6 of its size in float32), while the states are exactly the
recorded ones.

Every fact has a weight w = 1. The loss is linear in each weight: w = 1 gives the loss that the
model was trained with, and w = 0 the loss without the fact, which keeps its place in the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from clew.errors import CheckpointError
from clew.influence.adjoints import Adjoint, Adjoints
from clew.layers.training_mode import BatchNorm, observed_statistics
from clew.training.replay import Microbatch, ReplayedStep, State
from clew.training.seeding import capture_generators, restore_generators
from clew.training.task import B, Task

FEW_ROWS = 4
"""A last batch of an epoch with fewer rows counts as a constant if batches are normalised.

The features of two rows are normalised almost to their signs. That is a function with jumps, whose
exact derivative says nothing about training without a fact.
"""


@dataclass(frozen=True, eq=False)
class WeightedLoss:
    """A microbatch's summed loss as a function of the weights of the facts in it."""

    total: Float[Tensor, ""]
    weight: Float[Tensor, "entry"]
    """A leaf of ones that requires gradients."""
    fact: Int[np.ndarray, "entry"]
    """Fact of each weight; if a fact has several weights, their gradients are added."""


@dataclass
class ExampleFacts(Generic[B]):
    """The training facts of a task: here, every training example is a fact."""

    task: Task[B]

    def __len__(self) -> int:
        return len(self.task.train_examples())

    def loss(self, model: nn.Module, batch: B, examples: np.ndarray) -> WeightedLoss:
        """Return the twice differentiable loss of a batch of the examples with these indices."""
        losses = self.task.example_losses(model, batch)
        weight = torch.ones_like(losses, requires_grad=True)
        return WeightedLoss((weight * losses).sum(), weight, examples)


class _Called(nn.Module):
    """Passes a model to a function, so that `functional_call` can replace its tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.model)


@dataclass(eq=False)
class Linear(Generic[B]):
    """Differentiates training steps of a task twice."""

    model: nn.Module
    facts: ExampleFacts[B]
    device: torch.device
    batch_size: int

    def __post_init__(self) -> None:
        self._called = _Called(self.model)
        self.parameters = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self._norms: dict[nn.Module, str] = {
            module: name
            for name, module in self.model.named_modules()
            if isinstance(module, BatchNorm) and module.track_running_stats
        }
        # If a model has parameters that change nothing in training, their gradient is only
        # rounding, which Adam and Adagrad divide by its own size; so they count as constants.
        idle = {id(p) for p in getattr(self.model, "parameters_without_effect", list)()}
        self.without_effect = {name for name, p in self.model.named_parameters() if id(p) in idle}
        self.statistics = [
            f"{name}.running_{kind}" for name in self._norms.values() for kind in ("mean", "var")
        ]

    def call(self, tensors: Adjoints, function: Callable[[nn.Module], Any]) -> Any:
        """Return `function(model)` with these tensors in place of the model's own."""
        named = {f"model.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self._called, named, (function,))


class StepGradient(Generic[B]):
    """The gradient of one step's mean loss.

    The graph of a single microbatch is kept. With several microbatches, `pull` computes each graph
    again, so that only one graph is in memory at a time.
    """

    def __init__(self, linear: Linear[B], step: ReplayedStep[B]) -> None:
        assert step.before is not None
        self._linear, self._before, self._window = linear, step.before, step.window
        self._count = float(sum(microbatch.batch.count for microbatch in step.window))
        self._moved = [name for name in linear.parameters if name in step.moved]
        self._graph: _Graph | None = None
        self.values: Adjoints = {}
        """The gradient by parameter name, without parameters that the step did not change."""
        restore_generators(*step.before.generators)
        alone = len(step.window) == 1
        for microbatch in step.window:
            graph = self._build(microbatch, differentiable=alone)
            for name, part in graph.gradient.items():
                own = part.detach()
                self.values[name] = self.values[name] + own if name in self.values else own
            self._graph = graph if alone else None

    def pull(self, along: Sequence[Adjoints], adjoints: Sequence[Adjoint], totals: Tensor) -> None:
        """Add the path through the gradient to the adjoints of the state before the step.

        Args:
            along: The adjoint u of the gradient for each explained loss.
            adjoints: The adjoint of the state for each explained loss, changed in place.
            totals: Receives the derivatives with respect to fact weights, `(loss, fact)`.
        """
        restore_generators(*self._before.generators)
        last = len(self._window) - 1
        few = min(FEW_ROWS, self._linear.batch_size) if self._linear._norms else 0
        for place, microbatch in enumerate(self._window):
            if len(microbatch.examples) < few:  # counts as a constant
                continue
            graph = self._graph or self._build(microbatch, differentiable=True)
            for number, (u, adjoint) in enumerate(zip(along, adjoints, strict=True)):
                product = graph.product(u, adjoint.buffers, microbatches_after=last - place)
                leaves = [*graph.parameters.values(), graph.weight]
                *changes, of_weight = torch.autograd.grad(
                    product, leaves, retain_graph=number < len(along) - 1, allow_unused=True
                )
                for name, change in zip(graph.parameters, changes, strict=True):
                    if change is not None:
                        adjoint.parameters[name].add_(change)
                if of_weight is not None:
                    totals[number].index_add_(0, graph.fact, of_weight)
        self._graph = None
        for norm, name in self._linear._norms.items():
            kept = (1.0 - momentum_of(norm)) ** len(self._window)
            for adjoint in adjoints:
                for kind in ("mean", "var"):
                    adjoint.buffers[f"{name}.running_{kind}"].mul_(kept)

    def _build(self, microbatch: Microbatch[B], *, differentiable: bool) -> "_Graph":
        linear = self._linear
        model = self._before.model
        # Parameters become leaves without a copy. Buffers are copied, because the forward pass
        # changes them.
        tensors = {
            name: tensor.detach().requires_grad_() if name in linear.parameters else tensor.clone()
            for name, tensor in model.items()
        }
        batch = microbatch.batch.to(linear.device)
        linear.model.train()
        # Only torch's plain attention (MATH) can be differentiated twice.
        attention = sdpa_kernel(SDPBackend.MATH)
        with torch.enable_grad(), attention, observed_statistics(linear.model) as statistics:
            loss = linear.call(
                tensors, lambda model: linear.facts.loss(model, batch, microbatch.examples)
            )
            mean = loss.total / self._count
            found = torch.autograd.grad(
                mean, [tensors[name] for name in self._moved], create_graph=differentiable
            )
        for norm, name in linear._norms.items():
            if norm not in statistics:
                raise CheckpointError(
                    f"batch normalisation {name} did not normalise a batch of {batch.num_examples} "
                    "examples; score=unrolled needs two or more examples in every batch"
                )
        return _Graph(
            {name: tensors[name] for name in linear.parameters},
            dict(zip(self._moved, found, strict=True)),
            {linear._norms[norm]: (norm, *both) for norm, both in statistics.items()},
            loss.weight,
            torch.from_numpy(loss.fact).to(linear.device),
        )


@dataclass(frozen=True, eq=False)
class _Graph:
    """A microbatch's share of the gradient, and the graph that computed it."""

    parameters: Adjoints
    gradient: Adjoints
    statistics: dict[str, tuple[nn.Module, Tensor, Tensor]]
    weight: Tensor
    fact: Tensor

    def product(self, u: Adjoints, buffers: Adjoints, *, microbatches_after: int) -> Tensor:
        """Return <g, u> plus the product of the batch statistics with their adjoints.

        The adjoint of a batch statistic is its share in the running statistic after the last
        microbatch, times the adjoint of the running statistic.
        """
        terms = [(g * u[name]).sum() for name, g in self.gradient.items()]
        for name, (norm, mean, variance) in self.statistics.items():
            momentum = momentum_of(norm)
            share = momentum * (1.0 - momentum) ** microbatches_after
            terms.append(share * (mean * buffers[f"{name}.running_mean"]).sum())
            terms.append(share * (variance * buffers[f"{name}.running_var"]).sum())
        return torch.stack(terms).sum()


def momentum_of(norm: nn.Module) -> float:
    """Return the share of a batch in the running statistics."""
    assert isinstance(norm.momentum, float)
    return norm.momentum


def final_adjoint(
    linear: Linear[B], state: State, objective: Callable[[nn.Module], Tensor], *, averaged: bool
) -> Adjoint:
    """Return the derivatives of a loss of the trained model with respect to the last state."""
    source = dict(state.model) | (dict(state.average) if averaged else {})
    names = [*linear.parameters, *linear.statistics]
    leaves = {name: source[name].detach().clone().requires_grad_() for name in names}
    # torch's batch normalisation cannot be differentiated with respect to its running statistics,
    # and does not accept them as leaves.
    tensors = source | {name: leaves[name] for name in linear.parameters}
    linear.model.eval()
    generators = capture_generators()
    hooks = [
        norm.register_forward_hook(partial(_normalised, leaves, name))
        for norm, name in linear._norms.items()
    ]
    try:
        with torch.enable_grad():
            loss = linear.call(tensors, objective)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
        restore_generators(*generators)
    every = {
        name: torch.zeros_like(leaves[name]) if g is None else g.clone()
        for name, g in zip(names, found, strict=True)
    }
    own = {name: every[name] for name in linear.parameters}
    nothing = {name: torch.zeros_like(g) for name, g in own.items()}
    return Adjoint(
        nothing if averaged else own,
        {name: every[name] for name in linear.statistics},
        {},
        own if averaged else {},
    )


def _normalised(
    statistics: Adjoints, name: str, norm: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor
) -> Tensor:
    assert isinstance(norm, BatchNorm)
    x = inputs[0]
    shape = (1, -1, *(1,) * (x.dim() - 2))
    mean, variance = (statistics[f"{name}.running_{kind}"] for kind in ("mean", "var"))
    normal = (x - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
    if norm.weight is None:
        return normal
    return normal * norm.weight.view(shape) + norm.bias.view(shape)
