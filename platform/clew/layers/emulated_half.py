"""Products in bfloat16 on a CPU that has no instructions for them.

Without AVX-512 torch multiplies bfloat16 matrices by a plain loop, 60 to 90 times as slowly as
float32 ones. A product with half-precision operands is by definition summed in float32, so float32
products of the same operands, rounded at the end, are the same numbers within the order of the
sum, at float32's speed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
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
