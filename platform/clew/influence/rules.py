"""Rules that turn the inputs and output gradients of torch functions into gradient factors.

Every rule has the signature of the function that it covers and returns, for each argument that
can be a parameter, a function that turns the output's gradient into a factor. The example axis is
the first axis of inputs and outputs, either alone or flattened together with the position axes that
follow it (example-major).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clew.influence.factors import Explicit, Factor, Outer, TableRows, outer_or_explicit

ToFactor = Callable[[Tensor, int], Factor]
"""Maps (gradient of the output, number of examples) to a factor."""
Uses = list[tuple[Tensor | None, ToFactor]]


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


def _unfold(input: Tensor, kernel: Sequence[int], **geometry: Sequence[int]) -> Tensor:
    """Return im2col `(image, position, channel * kernel)`."""
    return F.unfold(input, tuple(kernel), **{k: tuple(v) for k, v in geometry.items()}).mT


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
        columns = _unfold(input, kernel, **geometry)
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


MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
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
