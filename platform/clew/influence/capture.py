"""Record how a forward pass uses its parameters, without changing the model.

While a `Recorder` is active, it sees every torch function that takes a trainable parameter. So it
sees a table used as a scorer inside a loss as well as a module's own weight. Functions with a rule
give factors. If another function takes a parameter, or if a use has no example axis, the
parameter's per-example gradients are computed explicitly.

Every rule has the signature of the function that it covers and returns, for each argument that
can be a parameter, a function that turns the output's gradient into a factor. The example axis is
the first axis of inputs and outputs, either alone or flattened together with the position axes that
follow it (example-major).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from clew.influence.factors import Explicit, Factor, TableRows, outer_or_explicit

ToFactor = Callable[[Tensor, int], Factor]
"""Maps (gradient of the output, number of examples) to a factor."""
Uses = list[tuple[Tensor | None, ToFactor]]
ELEMENTWISE = frozenset(
    getattr(owner, name)
    for owner, names in (
        (torch, ("add", "sub", "mul", "div")),
        (Tensor, ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")),
        (Tensor, ("__rsub__", "__rtruediv__")),  # all other operators arrive as those above
    )
    for name in names
)
"""Functions in which a plain parameter is broadcast against activations."""


def _positions(tensor: Tensor, num_examples: int) -> Tensor:
    """Reshape `(example * ..., feature)` to `(example, position, feature)`."""
    return tensor.reshape(num_examples, -1, tensor.shape[-1])


def _outer(left: Tensor, right: Tensor, num_examples: int) -> Factor:
    return outer_or_explicit(_positions(left, num_examples), _positions(right, num_examples))


def _sum_positions(grad: Tensor, num_examples: int) -> Factor:
    return Explicit(_positions(grad, num_examples).sum(1))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Uses:
    """Cover y = W x + b: one outer product per position."""
    return [(weight, lambda g, n: _outer(g, input, n)), (bias, _sum_positions)]


def embedding(  # noqa: PLR0917 - torch's signature
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Uses:
    """Cover a table lookup; the padding row gets no gradient."""
    if scale_grad_by_freq or max_norm is not None:
        return []

    def rows(grad: Tensor, num_examples: int) -> Factor:
        ids = input.reshape(num_examples, -1)
        values = _positions(grad, num_examples)
        if padding_idx is not None:
            values = values * (ids != padding_idx).unsqueeze(-1)
        return TableRows(ids, values, weight.shape[0])

    return [(weight, rows)]


def convolution_2d(  # noqa: PLR0917 - torch's signature
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Uses:
    """Cover a 2-D convolution: after im2col, it is a linear layer at every output position."""
    if groups > 1 or isinstance(padding, str):
        return []
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}

    def kernels(grad: Tensor, num_examples: int) -> Factor:
        columns = F.unfold(input, tuple(weight.shape[2:]), **geometry)  # (image, weight, position)
        return _outer(grad.flatten(2).mT, columns.mT, num_examples)

    return [(weight, kernels), (bias, _sum_channels)]


def _sum_channels(grad: Tensor, num_examples: int) -> Factor:
    """Sum over all axes except the example and channel axes, `(example, channel)`."""
    return Explicit(grad.reshape(num_examples, -1, grad.shape[1], grad[0, 0].numel()).sum((1, 3)))


def batch_norm(  # noqa: PLR0917 - torch's signature
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Uses:
    """Cover batch normalisation in evaluation mode: its statistics are constants."""
    if training or running_mean is None:
        return []
    normal = F.batch_norm(input, running_mean, running_var, eps=eps)
    return [(weight, lambda g, n: _sum_channels(g * normal, n)), (bias, _sum_channels)]


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Uses:
    normal = F.group_norm(input, num_groups, eps=eps)
    return [(weight, lambda g, n: _sum_channels(g * normal, n)), (bias, _sum_channels)]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Uses:
    normal = F.layer_norm(input, tuple(normalized_shape), eps=eps)
    axes = len(normalized_shape)

    def summed(values: Tensor, num_examples: int) -> Factor:
        return _sum_positions(values.flatten(-axes), num_examples)

    return [(weight, lambda g, n: summed(g * normal, n)), (bias, summed)]


def broadcast(shape: Sequence[int]) -> ToFactor:
    """Cover a parameter of this shape that was expanded to the output's shape."""

    def summed(grad: Tensor, num_examples: int) -> Factor:
        aligned = [1] * (grad.dim() - len(shape)) + list(shape)
        grad = grad.reshape(num_examples, -1, *grad.shape[1:])
        axes = [1] + [i + 1 for i, size in enumerate(aligned) if size == 1 and i > 0]
        return Explicit(grad.sum(axes).flatten(1))

    return summed


RULES: dict[Callable[..., object], Callable[..., Uses]] = {
    F.linear: linear,
    F.embedding: embedding,
    F.conv2d: convolution_2d,
    F.batch_norm: batch_norm,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
}
"""The rule of each torch function that has one."""


@dataclass(frozen=True)
class Use:
    """One use of a parameter: the edge of the output's gradient, and the rule for its factor."""

    parameter: str
    function: str
    edge: GradientEdge
    leading: int
    to_factor: ToFactor


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
        self._names = {id(p): name for name, p in parameters.items() if name not in explicit}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = [tensor for tensor in _tensors((args, kwargs)) if id(tensor) in self._names]
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in RULES:
            return self._covered(func, args, kwargs, found)
        if func in ELEMENTWISE and len(found) == 1:
            return self._elementwise(func, args, kwargs, found[0])
        out = func(*args, **kwargs)
        if any(id(tensor) not in self._names for tensor in _tensors(out)):
            self._mark_unknown(func, found)
        return out

    def _mark_unknown(self, func: Callable[..., Any], found: Iterable[Tensor]) -> None:
        for parameter in found:
            self.unknown.setdefault(self._names[id(parameter)], _name(func))

    def _covered(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found: list[Tensor],
    ) -> Tensor:
        out, returned, edge = _tap(func(*args, **kwargs))
        covered = set()
        with torch.no_grad():
            uses = RULES[func](*args, **kwargs)
        for tensor, to_factor in uses:
            if id(tensor) in self._names:
                covered.add(id(tensor))
                name = self._names[id(tensor)]
                self.uses.append(Use(name, _name(func), edge, len(out), to_factor))
        self._mark_unknown(func, [leaf for leaf in found if id(leaf) not in covered])
        return returned

    def _elementwise(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parameter: Tensor,
    ) -> Any:
        """Expand a plain parameter to the output's shape, so that each example has its own copy."""
        shape = np.broadcast_shapes(*(tuple(each.shape) for each in _tensors((args, kwargs))))
        if parameter.dim() == len(shape) and len(parameter) != 1:  # it has an example axis
            self._mark_unknown(func, [parameter])
            return func(*args, **kwargs)
        wide = parameter.detach().expand(shape).requires_grad_()
        replaced = tree_map(lambda leaf: wide if leaf is parameter else leaf, (args, kwargs))
        rule, edge = broadcast(parameter.shape), get_gradient_edge(wide)
        name = self._names[id(parameter)]
        self.uses.append(Use(name, _name(func), edge, shape[0], rule))
        return func(*replaced[0], **replaced[1])


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


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
