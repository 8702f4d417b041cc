"""The scan's Triton kernels against the chunked scan, without a GPU."""

import pytest

pytestmark = pytest.mark.slow

COMPARISON = """
import torch
from clew.layers import scan as operators, triton_scan
from clew.layers.scan import power

def compare(batch, time, states, chunk, each, documents=False):
    generator = torch.Generator().manual_seed(time)
    def normal(*shape):
        return torch.randn(*shape, 2, generator=generator)
    inputs, initial = normal(batch, time, states), normal(batch, states)
    gradient = normal(batch, time, states)
    rows = batch if each else 1
    modulus = torch.rand(rows, states, generator=generator)
    modulus[:, 0], modulus[:, -1] = 0.0, 1 - 1 / 32768
    values = torch.polar(modulus, 3 * torch.rand(rows, states, generator=generator))
    eigenvalues = torch.view_as_real(values)
    keep = None
    if documents:
        keep = (torch.rand(batch, time, generator=generator) < 0.8).float()
        keep[0, 0] = 0.0
    expected = operators.diagonal_scan(inputs, eigenvalues, initial, 16, keep)
    powers = torch.view_as_real(power(values, chunk))
    found = triton_scan.forward(inputs, eigenvalues, initial, powers, chunk, keep)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    adjoint, d_values, _ = operators.diagonal_scan_backward(
        gradient, expected, eigenvalues, initial, 16, keep
    )
    conjugate = values.conj().resolve_conj()
    reached = initial if keep is None else initial * keep[:, :1, None]
    found, d_found = triton_scan.backward(
        gradient, expected, torch.view_as_real(conjugate), reached,
        torch.view_as_real(power(conjugate, chunk)), chunk,
        operators.against_time(torch.view_as_real(conjugate), keep)[1],
    )
    if not each:
        d_found = d_found.sum(0, keepdim=True)
    torch.testing.assert_close(found, adjoint, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(d_found, d_values, rtol=2e-4, atol=2e-4)

"""
WHOLE = """
for time, chunk in ((1, 8), (7, 1), (16, 8), (16, 16), (33, 8), (33, 64)):
    compare(2, time, 5, chunk, each=bool(time % 2))
compare(1, 40, 130, 16, each=False)  # more states than a block holds
print("equal")
"""
DOCUMENTS = """
for time, chunk in ((1, 8), (7, 1), (16, 8), (33, 8), (33, 64)):
    compare(2, time, 5, chunk, each=bool(time % 2), documents=True)
print("equal")
"""


@pytest.mark.parametrize("cases", [WHOLE, DOCUMENTS], ids=["one document", "several"])
def test_kernels_equal_the_chunked_scan(interpreted, cases: str):
    assert interpreted(COMPARISON + cases) == "equal"
