"""Matrix products with the fastest implementation on a CPU.

float32: torch uses Intel's MKL, which uses only half the vector width of processors by other
makers. oneDNN, which torch contains for convolutions and bfloat16, chooses its kernels by the
abilities of the processor. On two cores of an AMD EPYC of 2024, products run at 440 GFLOP/s instead
of 195. `torch.compile` uses the same oneDNN operator. All other products use plain torch: other
types and devices, processors by Intel or without AVX-512, compiled models, and code that observes
which torch functions are called. Both libraries sum in float32; results differ in the last digits.

bfloat16: without AVX-512, torch multiplies bfloat16 matrices in a plain loop, which is 60 to 90
times slower than float32. A product with half-precision operands is by definition summed in
float32. So float32 products of the same operands, rounded at the end, give the same numbers up to
the order of summation, at the speed of float32.

Products that are too large for memory are computed chunk by chunk, on every device. `chunks` is the
loop, and `planning_for` shortens it when only the memory need is of interest.
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
_PLANNED = ContextVar[torch.device | None]("planned", default=None)


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
    """Return the matrix product a b, which is not differentiable.

    The result can be in row-major or column-major order.
    """
    if not _goes_to_onednn(a):
        return torch.mm(a, b, out=out)
    if out is not None:
        return out.copy_(product(a, b))
    if a.is_contiguous():
        return _times_transposed(a, b.T)
    # The left factor must be contiguous, so compute the transposed product with a copy of b.
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
    """Return the type of a product's operands under autocast; float16 on a CPU gives float32."""
    device = factor.device.type
    if not torch.is_autocast_enabled(device) or factor.dtype == torch.float64:
        return factor.dtype
    half = torch.get_autocast_dtype(device)
    return torch.float32 if device == "cpu" and half == torch.float16 else half


def chunks(length: int, size: int, *, kept: int = 0) -> Iterator[slice]:
    """Yield slices of `size` that cover `length`; the last slice can be shorter.

    Args:
        length: Total length.
        size: Size of a chunk.
        kept: Number of first chunks whose results stay in memory; these are never skipped.
    """
    shown = _SHOWN.get()
    for start in list(range(0, length, size))[: shown and max(shown, kept)]:
        yield slice(start, min(start + size, length))


@contextmanager
def planning_for(device: torch.device) -> Iterator[None]:
    """Compute what is needed to plan the memory on a device, with tensors on any device.

    Loops over chunks stop after two chunks: later ones need no more. Two are needed because the
    second is computed while tensors of the first are alive. `device_of` returns the device.
    """
    tokens = _SHOWN.set(2), _PLANNED.set(device)
    try:
        yield
    finally:
        _SHOWN.reset(tokens[0])
        _PLANNED.reset(tokens[1])


def device_of(tensor: Tensor) -> torch.device:
    """Return a tensor's device, or the device that memory is planned for."""
    return _PLANNED.get() or tensor.device


@dataclass(frozen=True)
class MatrixProduct:
    """How the influence engine computes large matrix products.

    If `operand` is None, the type of the tensors is kept. With float16 or bfloat16, the operands
    are rounded first, and the hardware still accumulates sums in float32. Gradients are never
    computed with a loss scale, because every score would contain the square of the scale.
    """

    operand: torch.dtype | None = None

    def prepare(self, matrix: Tensor) -> Tensor:
        """Return a matrix in the type of the operands, so that it is converted only once."""
        return matrix if self.operand is None else matrix.to(self.operand)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Return `a @ b` in float32, or in the type of the tensors if `operand` is None."""
        if self.operand is None:
            return product(a, b)
        a, b = self.prepare(a), self.prepare(b)
        if a.is_cuda:
            return torch.mm(a, b, out_dtype=torch.float32)
        with products_in(self.operand, a.device):
            return (a @ b).float()

    def affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.operand is None:
            return linear(x, weight, bias)
        result = self(x, weight.T)
        return result if bias is None else result.add_(bias)


def is_vectorised() -> bool:
    """Return whether a `torch.func` transform such as `vmap` is active.

    vmap supports only torch's own functions.
    """
    return torch._C._are_functorch_transforms_active()


def _goes_to_onednn(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and onednn_is_faster()


_OPERATOR = "_linear_pointwise"


def _times_transposed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    """An affine map that computes its forward and both backward products with oneDNN."""

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
    """The product a b with a gradient, for gradients that are differentiated again."""

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
    """Return the formulas with which torch's FLOP counter counts the products of oneDNN."""
    if not hasattr(torch.ops.mkldnn, _OPERATOR):
        return {}
    # Of the shapes (rows, inner) and (columns, inner).
    return {torch.ops.mkldnn._linear_pointwise: lambda x, w, *_, **__: 2 * x[0] * x[1] * w[0]}


@cache
def has_bfloat16_products() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices at a useful speed."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def products_in(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products of a data type are fast on a device."""
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
        """Run an operator; products of bfloat16 tensors use float32 copies."""
        kwargs = dict(kwargs or {})
        has_half = any(isinstance(a, Tensor) and a.dtype is torch.bfloat16 for a in args)
        if func.overloadpacket not in PRODUCTS or not has_half:
            return func(*args, **kwargs)
        out = kwargs.pop("out", None)
        operator = func if out is None else func.overloadpacket
        single = tree_map_only(
            Tensor, lambda t: t.float() if t.dtype is torch.bfloat16 else t, (args, kwargs)
        )
        found = operator(*single[0], **single[1])
        if out is not None:
            return out.copy_(found)
        if func._schema.is_mutable:  # in place: the first argument gets the product
            return args[0].copy_(single[0][0])
        if func.overloadpacket is aten._scaled_dot_product_flash_attention_for_cpu:
            return _to_half(found[0]), found[1]  # the log-sum-exp is float32 in every precision
        return tree_map_only(Tensor, _to_half, found)


def _to_half(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.dtype is torch.float32 else tensor
