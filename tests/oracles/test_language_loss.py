"""The chunked loss of a language model against full logits: value, gradients, memory, precision."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clew.language_modeling.loss import chunk_tokens, summed_loss, token_losses


def problem(dtype: torch.dtype = torch.float64, tokens: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, tokens // 2, 8, dtype=dtype, generator=generator)
    head = torch.randn(13, 8, dtype=dtype, generator=generator)
    targets = torch.randint(13, (2, tokens // 2), generator=generator)
    return hidden, head, targets


def gradients(loss: Callable[[Tensor, Tensor, Tensor], Tensor], *tensors: Tensor) -> list[Tensor]:
    hidden, head = (t.clone().requires_grad_() for t in tensors[:2])
    total = loss(hidden, head, tensors[2])
    (0.37 * total).backward()
    assert hidden.grad is not None
    assert head.grad is not None
    return [total.detach(), hidden.grad, head.grad]


def plain(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return token_losses(hidden, head, targets).sum()


@pytest.mark.parametrize("chunk", [64, 75, 149, 150, 10_000])
def test_chunked_equals_plain_value_and_gradients(chunk: int):
    def chunked(*tensors: Tensor) -> Tensor:
        return summed_loss(*tensors, chunk_bytes=chunk * 2 * 13 * 4)

    for fast, slow in zip(
        gradients(chunked, *problem()), gradients(plain, *problem()), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)


def test_plain_is_the_definition():
    hidden, head, targets = problem()
    probability = torch.softmax(hidden @ head.T, dim=-1)
    expected = -probability.gather(2, targets.unsqueeze(2)).squeeze(2).log()
    torch.testing.assert_close(token_losses(hidden, head, targets), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_loss_is_float32_and_gradients_follow(dtype: torch.dtype):
    def half(*tensors: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return summed_loss(*tensors, chunk_bytes=1)

    single = problem(torch.float32)
    fast, slow = gradients(half, *single), gradients(plain, *single)
    assert fast[0].dtype == torch.float32
    for a, b in zip(fast, slow, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_only_wanted_gradients_are_computed():
    hidden, head, targets = problem()
    total = summed_loss(hidden, head.requires_grad_(), targets, chunk_bytes=1)
    total.backward()
    torch.testing.assert_close(head.grad, gradients(plain, *problem())[2] / 0.37)
    with torch.no_grad():
        assert not summed_loss(hidden, head, targets, chunk_bytes=1).requires_grad


def test_a_second_backward_is_refused():
    hidden, head, targets = problem()
    total = summed_loss(hidden.requires_grad_(), head, targets, chunk_bytes=1)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second time"):
        total.backward()


def test_extreme_logits_stay_finite():
    hidden, head, targets = problem(torch.float32)
    value, *found = gradients(
        lambda *t: summed_loss(*t, chunk_bytes=1), 1e4 * hidden, head, targets
    )
    assert value.isfinite()
    assert all(g.isfinite().all() for g in found)


def test_no_tensor_is_as_large_as_all_logits():
    hidden, head, targets = problem(torch.float32, tokens=4096)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    hidden.requires_grad_()
    with Watch():
        summed_loss(hidden, head.requires_grad_(), targets, chunk_bytes=100 * 2 * 13 * 4).backward()
    assert chunk_tokens(13, 100 * 2 * 13 * 4) == 100
    assert largest == hidden.numel() < 4096 * 13
