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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from clew.influence.factors import Explicit, Factor, Outer, TableRows, outer_or_explicit

ToFactor = Callable[[Tensor, int], Factor]
"""Maps (gradient of the output, number of examples) to a factor."""
Uses = list[tuple[Tensor | None, ToFactor]]
MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
ELEMENTWISE = frozenset(
    getattr(owner, name)
    for owner, names in (
        (torch, ("add", "sub", "mul", "div")),
        (Tensor, ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")),
        (Tensor, ("__add__", "__sub__", "__mul__", "__truediv__")),
        (Tensor, ("__radd__", "__rsub__", "__rmul__", "__rtruediv__")),
        (Tensor, ("__iadd__", "__isub__", "__imul__", "__itruediv__")),
    )
    for name in names
)
"""Functions in which a plain parameter is broadcast against activations."""
TRANSPOSES = frozenset({Tensor.t, torch.t})
"""Functions that transpose a matrix."""
TRANSPOSE_PROPERTIES = (Tensor.T, Tensor.mT)


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


def matmul(input: Tensor, other: Tensor) -> Uses:
    """Cover y = x W with the parameter on the right."""
    return [(other, lambda g, n: _outer(input, g, n))]


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


def getitem(table: Tensor, index: object) -> Uses:
    """Cover `table[ids]` with a tensor of ids."""
    if isinstance(index, Tensor) and index.dtype == torch.long and table.dim() == 2:
        return embedding(index, table)
    return []


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return (value, value)
    return (1, value[0]) if len(value) == 1 else (value[0], value[1])


def _pad_same(input: Tensor, kernel: Sequence[int], dilation: Sequence[int]) -> Tensor:
    amounts = []
    for size, step in reversed(list(zip(kernel, dilation, strict=True))):
        total = step * (size - 1)
        amounts += [total // 2, total - total // 2]
    return F.pad(input, amounts)


def convolution_2d(  # noqa: PLR0917 - torch's signature
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Uses:
    """Cover a 2-D convolution: after im2col, it is a linear layer at every output position."""
    kernel, dilation = weight.shape[2:], _pair(dilation)
    if isinstance(padding, str):
        input = _pad_same(input, kernel, dilation) if padding == "same" else input
        padding = 0
    geometry = {"stride": _pair(stride), "padding": _pair(padding), "dilation": dilation}

    def kernels(grad: Tensor, num_examples: int) -> Factor:
        columns = F.unfold(input, tuple(kernel), **geometry).mT  # (image, position, weight)
        left = grad.flatten(2).mT
        if groups == 1:
            return _outer(left, columns, num_examples)
        left = left.reshape(num_examples, -1, groups, weight.shape[0] // groups)
        right = columns.reshape(num_examples, -1, groups, columns.shape[-1] // groups)
        return Explicit(torch.einsum("npgr,npgc->ngrc", left, right).flatten(1))

    return [(weight, kernels), (bias, _sum_channels)]


def convolution_1d(  # noqa: PLR0917 - torch's signature
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Uses:
    """Cover a 1-D convolution, treated as a 2-D one with images of one row."""

    def one(value: int | Sequence[int], across: int) -> tuple[int, int]:
        return (across, value if isinstance(value, int) else value[0])

    wide = weight.unsqueeze(2)
    uses = convolution_2d(
        input.unsqueeze(2),
        wide,
        bias,
        one(stride, 1),
        padding if isinstance(padding, str) else one(padding, 0),
        one(dilation, 1),
        groups,
    )
    kernels = uses[0][1]
    return [(weight, lambda g, n: kernels(g.unsqueeze(2), n)), (bias, _sum_channels)]


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


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Uses:
    normal = F.rms_norm(input, tuple(normalized_shape), eps=eps)
    axes = len(normalized_shape)
    return [(weight, lambda g, n: _sum_positions((g * normal).flatten(-axes), n))]


def broadcast(shape: Sequence[int]) -> ToFactor:
    """Cover a parameter of this shape that was expanded to the output's shape."""

    def summed(grad: Tensor, num_examples: int) -> Factor:
        aligned = [1] * (grad.dim() - len(shape)) + list(shape)
        grad = grad.reshape(num_examples, -1, *grad.shape[1:])
        axes = [1] + [i + 1 for i, size in enumerate(aligned) if size == 1 and i > 0]
        return Explicit(grad.sum(axes).flatten(1))

    return summed


def transposed(rule: ToFactor) -> ToFactor:
    """Turn the rule of a transposed parameter into a rule of the parameter itself."""

    def swapped(grad: Tensor, num_examples: int) -> Factor:
        factor = rule(grad, num_examples)
        if not isinstance(factor, Outer):
            raise TypeError("only a matrix product has a transposed parameter")
        return Outer(factor.right, factor.left)

    return swapped


RULES: dict[Callable[..., object], Callable[..., Uses]] = {
    F.linear: linear,
    F.embedding: embedding,
    Tensor.__getitem__: getitem,
    F.conv1d: convolution_1d,
    F.conv2d: convolution_2d,
    F.batch_norm: batch_norm,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    **dict.fromkeys(MATMULS, matmul),
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
