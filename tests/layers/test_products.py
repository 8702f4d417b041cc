"""Float32 products through oneDNN: the same numbers, gradients and counts as torch's own."""

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from clew.layers import products

needs_operator = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN operator"
)


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def route(request, monkeypatch):
    """Force one implementation of products, regardless of the machine's choice."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN operator")
    monkeypatch.setattr(products, "onednn_is_faster", lambda: request.param)
    return request.param


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("other_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_product_of_any_layout(route, transposed, other_transposed, dtype):
    torch.manual_seed(0)
    a = torch.randn(19, 33, dtype=torch.float64).to(dtype) if not transposed else None
    a = a if a is not None else torch.randn(33, 19, dtype=torch.float64).to(dtype).T
    b = torch.randn(33, 7).to(dtype) if not other_transposed else torch.randn(7, 33).to(dtype).T
    result = products.product(a, b)
    assert result.dtype == dtype
    exact = a.double() @ b.double()
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.2}[dtype]
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=tolerance)
    table = torch.full((21, 7), torch.nan, dtype=dtype)
    written = products.product(a, b, out=table[1:20])
    assert written.data_ptr() == table[1:20].data_ptr()
    torch.testing.assert_close(table[1:20].double(), exact, rtol=0, atol=tolerance)
    assert table[[0, 20]].isnan().all()


@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_equals_torch(route, with_bias):
    torch.manual_seed(0)
    x, weight = torch.randn(9, 31), torch.randn(5, 31)
    bias = torch.randn(5) if with_bias else None
    inputs = [t.requires_grad_() for t in (x, weight, bias) if t is not None]
    upstream = torch.randn(9, 5)
    ours, theirs = products.linear(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(ours, theirs)
    actual = torch.autograd.grad(ours, inputs, upstream)
    torch.testing.assert_close(actual, torch.autograd.grad(theirs, inputs, upstream))


def test_second_derivatives_equal_torch(route):
    torch.manual_seed(0)
    x, weight = torch.randn(9, 31, requires_grad=True), torch.randn(5, 31, requires_grad=True)
    found = []
    for function in (products.linear, F.linear):
        total = function(x, weight, None).square().sum()
        first = torch.autograd.grad(total, [x, weight], create_graph=True)
        found.append(torch.autograd.grad(first[0].sum() + first[1].square().sum(), [x, weight]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-2)


@needs_operator
def test_frozen_weights_get_no_gradient(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)
    products.linear(x, weight, None).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, 4))


@needs_operator
def test_operations_are_counted(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=products.flop_formulas()) as counter:
        products.linear(x, weight, None).sum().backward()
    assert counter.get_total_flops() == 3 * (2 * 3 * 4 * 2)


def test_whoever_watches_functions_sees_the_usual_one(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        products.linear(torch.randn(3, 4), torch.randn(2, 4), None)
    assert F.linear in seen


def test_autocast_stays_in_force(route):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert products.linear(torch.randn(3, 4), torch.randn(2, 4), None).dtype == torch.bfloat16
