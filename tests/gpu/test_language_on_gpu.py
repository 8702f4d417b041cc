"""The language model on a GPU: kernels against the CPU's scan, and one step in half precision."""

import pytest
import torch

from clew.config.eigenstate import EigenstateLMModel
from clew.language_modeling.loss import summed_loss
from clew.language_modeling.model import EigenstateLM
from clew.layers.scan import scan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("chunk_size", [16, 256])
@pytest.mark.parametrize("time", [1, 1000, 32768])
def test_kernels_equal_the_cpus_scan(time: int, chunk_size: int):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, time, 48, 2, generator=generator)
    values = torch.polar(1 - torch.rand(1, 48, generator=generator) ** 4, 3 * torch.rand(1, 48))
    eigenvalues = torch.view_as_real(values)
    initial = torch.randn(2, 48, 2, generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.to(device).requires_grad_() for t in (inputs, eigenvalues, initial)]
        states = scan(*leaves, chunk_size=chunk_size)
        gradients = torch.autograd.grad(states.square().sum() / time, leaves)
        results.append([states, *gradients])
    for on_cpu, on_gpu in zip(*results, strict=True):
        scale = float(on_cpu.detach().abs().max())
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step_in_half_precision_is_finite_and_close(dtype: torch.dtype):
    torch.manual_seed(0)
    model = EigenstateLM(257, EigenstateLMModel(preset="nano", n_layers=2)).cuda()
    model.enable_gradient_checkpointing()
    tokens = torch.randint(257, (2, 2049), device="cuda")

    def loss() -> torch.Tensor:
        hidden = model(tokens[:, :-1])
        targets = tokens[:, 1:].contiguous()
        return summed_loss(hidden, model.embedding.weight, targets, chunk_bytes=2**24)

    with torch.autocast("cuda", dtype=dtype):
        half = loss()
    half.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert half.item() == pytest.approx(loss().item(), rel=0.01)
