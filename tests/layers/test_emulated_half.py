"""Products of bfloat16 tensors, computed by float32 products, against torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clew.layers import products
from clew.layers.products import EmulatedProducts, MatrixProduct, products_in

CPU = torch.device("cpu")
HALF = torch.bfloat16


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).to(HALF)


def into(product: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    return product(*operands, out=product(*operands).zero_())


def convolution() -> Tensor:
    layer = nn.Conv2d(2, 3, 3)
    with torch.autocast("cpu", HALF):
        return layer(torch.randn(4, 2, 6, 6))


CASES: dict[str, Callable[[], Tensor]] = {
    "a matrix": lambda: half(5, 7) @ half(7, 3),
    "with a bias": lambda: F.linear(half(5, 7), half(3, 7), half(3)),
    "a batch": lambda: half(2, 5, 7) @ half(2, 7, 3),
    "a vector": lambda: half(5, 7) @ half(7),
    "added in place": lambda: half(2, 5, 3).baddbmm_(half(2, 5, 7), half(2, 7, 3)),
    "into a tensor": lambda: into(torch.mm, half(5, 7), half(7, 3)),
    "a batch into a tensor": lambda: into(torch.bmm, half(2, 5, 7), half(2, 7, 3)),
    "a convolution": convolution,
    "attention": lambda: F.scaled_dot_product_attention(*half(3, 2, 2, 5, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_torchs_own_within_the_rounding_of_bfloat16(name: str) -> None:
    torch.manual_seed(0)
    expected = CASES[name]()
    torch.manual_seed(0)
    with EmulatedProducts():
        found = CASES[name]()
    assert found.dtype is HALF
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)


def test_gradients_are_torchs_own_within_the_rounding_of_bfloat16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 5))
    images = torch.randn(4, 2, 6, 6)

    def gradients() -> list[Tensor]:
        with torch.autocast("cpu", HALF):
            out = model(images)
        return list(torch.autograd.grad(out.float().square().sum(), list(model.parameters())))

    expected = gradients()
    with EmulatedProducts():
        found = gradients()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * float(b.abs().max()))


def test_float32_products_are_left_alone() -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    with EmulatedProducts():
        assert torch.equal(a @ b, torch.mm(a, b))
        assert (a @ b).dtype is torch.float32


@pytest.mark.parametrize("has_instructions", [True, False])
def test_only_a_cpu_without_instructions_needs_it(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16_products", lambda: has_instructions)
    assert isinstance(products_in(HALF, CPU), EmulatedProducts) is not has_instructions
    for dtype, device in ((None, CPU), (torch.float16, CPU), (HALF, torch.device("cuda"))):
        assert not isinstance(products_in(dtype, device), EmulatedProducts)
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    rounded = a.to(HALF).float() @ b.to(HALF).float()
    found = MatrixProduct(HALF)(a, b)
    torch.testing.assert_close(found, rounded, rtol=2**-7, atol=2**-7)
