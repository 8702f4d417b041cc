"""Matrix products on a CPU, by whatever is fast on it.

Float32: torch multiplies with Intel's MKL, which on processors of other makers uses half the width
of their vector units. oneDNN, which torch has for convolutions and bfloat16, chooses by what the
processor can do: on an AMD EPYC of 2024, two cores, products run at 440 GFLOP/s instead of 195.
`torch.compile` emits the same operator. Everything else goes through torch as it is: other types
and devices, processors by Intel or without AVX-512, compiled models, and code that watches which
functions are called. Both libraries sum in float32; results differ in the last digits.

bfloat16: without AVX-512 torch multiplies matrices by a plain loop, 60 to 90 times as slowly as
float32 ones. A product with half-precision operands is by definition summed in float32, so float32
products of the same operands, rounded at the end, are the same numbers within the order of the
sum, at float32's speed.

Products too large to be held are made a chunk after the other, on every device: `chunks` is the
loop, and `two_chunks` cuts it short where all that counts is how much memory it takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
PRODUCTS = frozenset(
    {
        aten.mm,
        aten.addmm,
        aten.bmm,
        aten.baddbmm,
        aten.addbmm,
        aten.mv,
        aten.addmv,
        aten.dot,
        aten.convolution,
        aten.convolution_backward,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    }
)
_SHOWN = ContextVar[int | None]("shown", default=None)


@cache
def onednn_is_faster() -> bool:
    """Return whether float32 products should go through oneDNN on this machine."""
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, _OPERATOR):
        return False
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the matrix product a b, not differentiable; its memory layout may be either one.

    Args:
        a: Left factor, `(rows, inner)`.
        b: Right factor, `(inner, columns)`.
        out: Where to write it, `(rows, columns)`; None: new memory.
    """
    if not _goes_to_onednn(a):
        return torch.mm(a, b, out=out)
    if out is not None:
        return out.copy_(product(a, b))
    if a.is_contiguous():
        return _times_transposed(a, b.T)
    # The left factor has to be contiguous: transpose the product, and copy the other factor.
    return _times_transposed(b.T.contiguous(), a).T


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b as `torch.nn.functional.linear` does, `(batch, out)` from `(batch, in)`."""
    if (
        torch.compiler.is_compiling()
        or is_vectorised()
        or not _goes_to_onednn(x)
        or torch.is_autocast_enabled("cpu")
        or has_torch_function((x, weight))
    ):
        return F.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def operand_type(factor: Tensor) -> torch.dtype:
    """Return the type of a product's operands: autocast's, but float32 for float16 on a CPU."""
    device = factor.device.type
    if not torch.is_autocast_enabled(device) or factor.dtype == torch.float64:
        return factor.dtype
    half = torch.get_autocast_dtype(device)
    return torch.float32 if device == "cpu" and half == torch.float16 else half


def chunks(length: int, size: int, *, kept: int = 0) -> Iterator[slice]:
    """Yield slices of `size` that cover `length`; the last one may be shorter.

    Args:
        length: What to cover.
        size: Size of a chunk.
        kept: Number of first chunks that stay in memory: planning goes through all of them.
    """
    shown = _SHOWN.get()
    for start in list(range(0, length, size))[: shown and max(shown, kept)]:
        yield slice(start, min(start + size, length))


@contextmanager
def two_chunks() -> Iterator[None]:
    """Let every loop stop after two chunks, for planning: all others need the same memory again.

    The second is made while the first one's tensors are still alive.
    """
    token = _SHOWN.set(2)
    try:
        yield
    finally:
        _SHOWN.reset(token)


@dataclass(frozen=True)
class MatrixProduct:
    """How the influence engine computes large matrix products.

    `operand` None keeps the tensors' own type; float16 or bfloat16 round the operands first, and
    sums are still accumulated in float32 (by the hardware). Gradients are never computed with a
    loss scale: it would enter every score squared.
    """

    operand: torch.dtype | None = None

    def prepare(self, matrix: Tensor) -> Tensor:
        """Return a matrix in the operands' type, so that it is converted once."""
        return matrix if self.operand is None else matrix.to(self.operand)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return `a @ b` in float32, or in the tensors' own type if `operand` is None."""
        if self.operand is None:
            return product(a, b)
        a, b = self.prepare(a), self.prepare(b)
        if a.is_cuda:
            return torch.mm(a, b, out_dtype=torch.float32)
        with products_in(self.operand, a.device):
            return (a @ b).float()

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return `x @ weight.T + bias`."""
        if self.operand is None:
            return linear(x, weight, bias)
        result = self(x, weight.T)
        return result if bias is None else result.add_(bias)


def is_vectorised() -> bool:
    """Return whether `torch.func.vmap` runs several models at once; it knows torch's functions."""
    return torch._C._are_functorch_transforms_active()


def _goes_to_onednn(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and onednn_is_faster()


_OPERATOR = "_linear_pointwise"


def _times_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    """The affine map with all three products through oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _times_transposed(x.contiguous(), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _Product.apply(gradient.contiguous(), weight) if wants_x else None,  # type: ignore[no-untyped-call]
            _Product.apply(gradient.T.contiguous(), x) if wants_weight else None,  # type: ignore[no-untyped-call]
            gradient.sum(dim=0) if ctx.has_bias and wants_bias else None,
        )


class _Product(torch.autograd.Function):
    """The product a b, for gradients that are differentiated again."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return product(gradient.contiguous(), b.T), product(a.T, gradient)


def flop_formulas() -> dict[Any, Any]:
    """Return how torch's counter of floating-point operations counts these products."""
    if not hasattr(torch.ops.mkldnn, _OPERATOR):
        return {}
    return {torch.ops.mkldnn._linear_pointwise: _flops}


def _flops(
    x_shape: tuple[int, int], weight_shape: tuple[int, int], *args: Any, **kwargs: Any
) -> int:
    rows, inner = x_shape
    return 2 * rows * inner * weight_shape[0]


@cache
def has_bfloat16_products() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices at a useful speed."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def products_in(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which products with operands of a type are fast on a device.

    Args:
        dtype: Half-precision type of a training, None for float32.
        device: Where it computes.
    """
    slow = dtype is torch.bfloat16 and device.type == "cpu" and not has_bfloat16_products()
    return EmulatedProducts() if slow else nullcontext()  # type: ignore[no-untyped-call]


class EmulatedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes products of bfloat16 tensors in float32, forward and backward."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator; a product of bfloat16 tensors on float32 copies of them."""
        kwargs = dict(kwargs or {})
        if func.overloadpacket not in PRODUCTS or not _has_half(args):
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        operator = func if out is None else func.overloadpacket
        single = tree_map_only(Tensor, _to_single, (args, kwargs))
        found = operator(*single[0], **single[1])
        if out is not None:
            return out.copy_(found)
        if func._schema.is_mutable:  # in place: the first argument receives the product
            return args[0].copy_(single[0][0])
        if func.overloadpacket is aten._scaled_dot_product_flash_attention_for_cpu:
            return _to_half(found[0]), found[1]  # the log-sum-exp is float32 in every precision
        return tree_map_only(Tensor, _to_half, found)


def _has_half(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, Tensor) and a.dtype is torch.bfloat16 for a in args)


def _to_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _to_half(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.dtype is torch.float32 else tensor
