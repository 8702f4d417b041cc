"""Factored per-example gradients of any task, found by observing one forward pass.

`FactoredGradients` decides once, from a probe of two and of three examples, which uses of which
parameters have an example axis. Then it compares its gradients of the two examples with plain
backward passes. A parameter that it cannot factor gets explicit per-example gradients (vectorised
by `torch.autograd.grad`) and is listed in `explicit_parameters`. If neither works, an error names
the parameter.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic

import numpy as np
import torch
from torch import Tensor, nn

from clew.errors import UsageError
from clew.influence.capture import Recorder
from clew.influence.factors import Explicit, Factor, Factors, in_full, squared_norms
from clew.layers.products import products_in
from clew.training.loaders import ExampleSource
from clew.training.task import B, Task

logger = logging.getLogger(__name__)

EXPLICIT_CHUNK_MIB = 256.0


class InfluenceError(UsageError):
    """Influence cannot be computed exactly for this model or task; the message gives the reason."""


class FactoredGradients(Generic[B]):
    """Per-example gradients of a model, factored by use.

    Args:
        task: Computes the losses.
        model: Its trainable parameters are those with `requires_grad`; set to evaluation mode.
        examples: At least one example, which shows how parameters are used.
        select: Whether to include a parameter, by name; the others are treated as frozen.
        half: Half-precision type of the network's matrix products; None: the parameters' own type.
        examined: `explicit_parameters` found for the same model with other weights, which skips the
            examination; None: examine the model.
    """

    def __init__(
        self,
        task: Task[B],
        model: nn.Module,
        examples: ExampleSource[B],
        *,
        select: Callable[[str], bool] = lambda name: True,
        half: torch.dtype | None = None,
        examined: Mapping[str, str] | None = None,
    ) -> None:
        self.task, self.model = task, model.eval()
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = {name: p for name, p in trainable if select(name)}
        self._frozen = [p for name, p in trainable if not select(name)]
        if not self.parameters:
            raise InfluenceError("no trainable parameter is selected; select at least one layer")
        self.half: torch.dtype | None = None  # the examination runs in full precision
        if examined is None:
            self._examine(examples)
        else:
            self.explicit_parameters = {n: r for n, r in examined.items() if n in self.parameters}
        self.half = half

    @torch.enable_grad()
    def _examine(self, examples: ExampleSource[B]) -> None:
        task, model = self.task, self.model
        device = next(model.parameters()).device
        indices = np.array([0, min(1, len(examples) - 1)])
        singles = [examples.batch(indices[i : i + 1]).to(device) for i in range(2)]
        two, three = (examples.batch(i).to(device) for i in (indices, indices[[0, 1, 0]]))
        _require_sums(task, model, singles, two)
        self.explicit_parameters = self._find_explicit(two, three)
        self._verify(singles, two)
        if self.explicit_parameters:
            logger.info("explicit per-example gradients for %s", dict(self.explicit_parameters))

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.parameters)

    def __call__(self, batch: B) -> Factors:
        """Return the factors of every parameter's per-example gradients."""
        explicit = frozenset(self.explicit_parameters)
        device = next(self.model.parameters()).device
        precision = torch.autocast(device.type, self.half, enabled=self.half is not None)
        with self._trainable(explicit), torch.enable_grad(), products_in(self.half, device):
            recorder = Recorder(self.parameters, explicit)
            with recorder, precision:
                losses = self.task.example_losses(self.model, batch)
            for name, function in recorder.unknown.items():
                raise InfluenceError(
                    f"{name} is used by {function} in this batch, but was not when the model was "
                    "examined; the forward pass must not depend on its data"
                )
            edges = [use.edge for use in recorder.uses]
            grads: tuple[Tensor | None, ...] = ()
            if edges:
                total, retain = losses.sum(), bool(explicit)
                grads = torch.autograd.grad(total, edges, allow_unused=True, retain_graph=retain)
            factors: Factors = {
                name: self._explicit_gradients(losses, name) if name in explicit else []
                for name in self.parameters
            }
        with torch.no_grad():
            for use, grad in zip(recorder.uses, grads, strict=True):
                if grad is not None:
                    dtype = self.parameters[use.parameter].dtype
                    factors[use.parameter].append(use.to_factor(grad.to(dtype), len(losses)))
        for name, parameter in self.parameters.items():
            if not factors[name]:
                factors[name] = [Explicit(parameter.new_zeros(len(losses), parameter.numel()))]
        return factors

    def _explicit_gradients(self, losses: Tensor, name: str) -> list[Factor]:
        """Return per-example gradients of one parameter, computed in chunks of examples."""
        parameter = self.parameters[name]
        size = parameter.numel() * parameter.element_size()
        chunk = max(1, int(EXPLICIT_CHUNK_MIB * 2**20 / size))
        one_hot = torch.eye(len(losses), dtype=losses.dtype, device=losses.device)
        rows = [
            torch.autograd.grad(
                losses, parameter, grad_outputs=part, is_grads_batched=True, retain_graph=True
            )[0]
            for part in torch.split(one_hot, chunk)
        ]
        return [Explicit(torch.cat(rows).flatten(1))]

    @contextmanager
    def _trainable(self, names: frozenset[str]) -> Iterator[None]:
        """Let only these parameters require gradients inside this context."""
        try:
            for parameter in self._frozen:
                parameter.requires_grad_(False)
            for name, parameter in self.parameters.items():
                parameter.requires_grad_(name in names)
            yield
        finally:
            for parameter in [*self._frozen, *self.parameters.values()]:
                parameter.requires_grad_(True)

    def _find_explicit(self, two: B, three: B) -> dict[str, str]:
        """Return the parameters without factors, and the reason; an unused one is an error."""
        first, second = self._probe(two), self._probe(three)
        reasons = dict(first.unknown)
        if len(first.uses) != len(second.uses):
            return dict.fromkeys(self.parameters, "uses differ between batches")
        for a, b in zip(first.uses, second.uses, strict=True):
            if 2 * b.leading != 3 * a.leading:
                reasons.setdefault(a.parameter, f"{a.function} without an example axis")
        seen = {use.parameter for use in first.uses} | reasons.keys()
        for name in self.parameters.keys() - seen:
            self._require_reached(name, two)
            reasons[name] = "used outside of observed torch functions"
        return reasons

    def _probe(self, batch: B) -> Recorder:
        with self._trainable(frozenset()), torch.enable_grad():
            recorder = Recorder(self.parameters, frozenset())
            with recorder:
                self.task.example_losses(self.model, batch)
        return recorder

    def _require_reached(self, name: str, batch: B) -> None:
        """Check that the losses depend on a parameter that no observed function uses."""
        loss = self.task.example_losses(self.model, batch).sum()
        parameter = self.parameters[name]
        if loss.requires_grad:
            (grad,) = torch.autograd.grad(loss, [parameter], allow_unused=True)
            if grad is not None:
                return
        raise InfluenceError(
            f"the losses do not depend on trainable parameter {name}; freeze it if the model does "
            "not need it (requires_grad_(False)), or do not select it"
        )

    def _verify(self, singles: list[B], two: B) -> None:
        alone = [example_gradients(self.task, self.model, single) for single in singles]
        reference = {
            name: torch.cat([gradients[name] for gradients in alone]) for name in self.parameters
        }
        for attempt in range(2):
            factors = self(two)
            wrong = [
                name
                for name in self.parameters
                if not _close(in_full(factors[name]), reference[name].flatten(1))
            ]
            if not wrong:
                return
            if attempt == 0:
                self.explicit_parameters |= dict.fromkeys(wrong, "factors differ from autograd")
        raise InfluenceError(
            f"gradients of {', '.join(wrong)} differ between a batch and its single examples; the "
            "examples of a batch must not influence each other in evaluation mode"
        )


def example_gradients(task: Task[B], model: nn.Module, batch: B) -> dict[str, Tensor]:
    """Return each trainable parameter's gradient for each example, `(example, *parameter)`.

    Every example's loss has its own backward pass. The gradient is zero for a parameter that a
    loss does not depend on.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    losses = task.example_losses(model, batch)
    rows = [
        torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        for loss in losses
    ]
    return {
        name: torch.stack([torch.zeros_like(p) if row[i] is None else row[i] for row in rows])
        for i, (name, p) in enumerate(named.items())
    }


def squared_norm(factors: Factors) -> Tensor:
    """Return each example's squared gradient norm, `(example,)`."""
    return torch.stack([squared_norms(uses) for uses in factors.values()]).sum(0)


def _require_sums(task: Task[B], model: nn.Module, singles: list[B], two: B) -> None:
    """Check that the losses of a batch are those of its examples, and add up to its loss."""
    with torch.no_grad():
        together, total = task.example_losses(model, two), task.loss(model, two).total
        alone = torch.cat([task.example_losses(model, single) for single in singles])
    if not _close(together.sum(), total):
        raise InfluenceError(
            f"task {task.kind}: example losses add up to {together.sum().item():.8g}, but the "
            f"batch's loss is {total.item():.8g}; example_losses must add up to loss"
        )
    if not _close(together, alone):
        raise InfluenceError(
            f"the losses of examples 0 and 1 are {alone.tolist()} alone and {together.tolist()} in "
            "a batch; examples must be addressed by index (no shuffled loader) and must not "
            "influence each other in evaluation mode"
        )


def _close(value: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-9 if expected.dtype == torch.float64 else 2e-3
    scale = expected.abs().max().clamp_min(1e-30)
    return bool((value - expected).abs().max() <= tolerance * scale)
