"""Record how a forward pass uses its parameters, without changing the model.

While a `Recorder` is active, it sees every torch function that takes a trainable parameter. So it
sees a table used as a scorer inside a loss as well as a module's own weight. Functions with a rule
give factors. If another function takes a parameter, or if a use has no example axis, the
parameter's per-example gradients are computed explicitly.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from clew.influence.rules import ELEMENTWISE, RULES, TRANSPOSES, ToFactor, broadcast, transposed

TRANSPOSE_PROPERTIES = (Tensor.T, Tensor.mT)


@dataclass(frozen=True)
class Use:
    """One use of a parameter: the edge of the output's gradient, and the rule for its factor."""

    parameter: str
    function: str
    edge: GradientEdge
    leading: int
    to_factor: ToFactor


@dataclass(frozen=True)
class _Tracked:
    """A parameter, or its transpose."""

    name: str
    tensor: Tensor
    transposed: bool = False


class Recorder(TorchFunctionMode):
    """Records the uses of parameters in order of execution.

    Args:
        parameters: Parameters to watch, by name; a shared parameter has its first name.
        explicit: Names of parameters with explicit gradients; their uses are not recorded.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], explicit: frozenset[str]) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.unknown: dict[str, str] = {}
        """Maps the name of a parameter to the first function without a rule that took it."""
        self._tracked = {
            id(p): _Tracked(name, p) for name, p in parameters.items() if name not in explicit
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = [t for t in map(self._find, _leaves((args, kwargs))) if t is not None]
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in RULES:
            return self._covered(func, args, kwargs, found)
        if func in ELEMENTWISE and len(found) == 1:
            return self._elementwise(func, args, kwargs, found[0])
        out = func(*args, **kwargs)
        transposes = func in TRANSPOSES or getattr(func, "__self__", None) in TRANSPOSE_PROPERTIES
        if transposes and found[0].tensor.dim() == 2:
            self._tracked[id(out)] = _Tracked(found[0].name, out, not found[0].transposed)
        elif any(isinstance(leaf, Tensor) and self._find(leaf) is None for leaf in _leaves(out)):
            self._mark_unknown(func, found)
        return out

    def _find(self, value: object) -> _Tracked | None:
        found = self._tracked.get(id(value))
        return found if found is not None and found.tensor is value else None

    def _mark_unknown(self, func: Callable[..., Any], found: list[_Tracked]) -> None:
        for tracked in found:
            self.unknown.setdefault(tracked.name, _name(func))

    def _covered(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found: list[_Tracked],
    ) -> Tensor:
        out, returned, edge = _tap(func(*args, **kwargs))
        covered = set()
        with torch.no_grad():
            uses = RULES[func](*args, **kwargs)
        for tensor, to_factor in uses:
            tracked = self._find(tensor)
            if tracked is None:
                continue
            covered.add(tracked.name)
            rule = transposed(to_factor) if tracked.transposed else to_factor
            self.uses.append(Use(tracked.name, _name(func), edge, len(out), rule))
        self._mark_unknown(func, [t for t in found if t.name not in covered])
        return returned

    def _elementwise(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tracked: _Tracked,
    ) -> Any:
        """Expand a plain parameter to the output's shape, so that each example has its own copy."""
        others = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        shape = np.broadcast_shapes(*(tuple(other.shape) for other in others))
        has_example_axis = tracked.tensor.dim() == len(shape) and len(tracked.tensor) != 1
        if has_example_axis or tracked.transposed:
            self._mark_unknown(func, [tracked])
            return func(*args, **kwargs)
        wide = tracked.tensor.detach().expand(shape).requires_grad_()
        replaced = tree_map(lambda leaf: wide if leaf is tracked.tensor else leaf, (args, kwargs))
        rule, edge = broadcast(tracked.tensor.shape), get_gradient_edge(wide)
        self.uses.append(Use(tracked.name, _name(func), edge, shape[0], rule))
        return func(*replaced[0], **replaced[1])


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _tap(out: Tensor) -> tuple[Tensor, Tensor, GradientEdge]:
    """Return the output, the tensor for the caller, and the edge of the output's gradient.

    An output without a differentiable input becomes a leaf. The caller gets a copy of it, because
    a later in-place function must not write to a leaf.
    """
    if out.requires_grad:
        return out, out, get_gradient_edge(out)
    leaf = out.requires_grad_()
    return leaf, leaf.clone(), get_gradient_edge(leaf)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", str(func))
