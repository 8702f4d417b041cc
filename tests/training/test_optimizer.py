"""With a restored state, an optimizer's next steps are those without interruption."""

import inspect

import pytest
import torch
from torch import nn

from clew.config.training import SGD, Adagrad, Adam, AdamW, OptimizerConfig
from clew.training.optimizer import build_optimizer, optimizer_tensors, restore_optimizer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(2, 3, 6, 6, generator=generator)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("settings", [Adam(), AdamW(), Adagrad(), SGD(momentum=0.9)], ids=type)
def test_restored_state_of_channels_last_parameters(settings: OptimizerConfig) -> None:
    whole, resumed = network(), network()
    optimizer = build_optimizer(settings, whole)
    step(whole, optimizer, 1)
    saved = {k: v.contiguous().clone() for k, v in optimizer_tensors(optimizer, whole).items()}
    resumed.load_state_dict(whole.state_dict())
    other = build_optimizer(settings, resumed)
    restore_optimizer(other, resumed, saved)
    for seed in (2, 3):
        step(whole, optimizer, seed)
        step(resumed, other, seed)
    assert torch.equal(whole.weight, resumed.weight)


@pytest.mark.parametrize("settings", [Adam(), AdamW(), Adagrad(), SGD(momentum=0.9)], ids=type)
def test_steps_are_those_of_torchs_class(settings: OptimizerConfig) -> None:
    ours, torchs = network(), network()
    optimizer = build_optimizer(settings, ours)
    kind = getattr(torch.optim, type(optimizer).__name__)
    given = optimizer.defaults.keys() & inspect.signature(kind).parameters
    other = kind(torchs.parameters(), **{name: optimizer.defaults[name] for name in given})
    for seed in (1, 2):
        step(ours, optimizer, seed)
        step(torchs, other, seed)
    assert torch.equal(ours.weight, torchs.weight)
    assert optimizer.state_dict()["state"].keys() == other.state_dict()["state"].keys()
