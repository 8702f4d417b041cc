"""The norm of a step's gradients, and clipping by it, for dense and sparse ones alike."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from clew.training.distributed import World
from clew.training.sharding.rows import shard_of


def gradient_norm(model: nn.Module, world: World) -> Tensor:
    """Return the norm of all gradients together; sparse ones are coalesced in place."""
    if world.exchange is None:
        return torch.nn.utils.get_total_norm(_values(model.parameters()))
    sharded = [p for p in model.parameters() if shard_of(p) is not None]
    whole = [p for p in model.parameters() if shard_of(p) is None]
    own, same = (torch.nn.utils.get_total_norm(_values(part)) for part in (sharded, whole))
    others = world.exchange.sum(own.square(), "gradient norm")
    return (others + same.square()).sqrt()


def clip_gradients(model: nn.Module, limit: float, norm: Tensor) -> None:
    """Scale gradients of a norm above the limit down to it."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for values in _values(model.parameters()):
        values.mul_(scale.to(values.device))


def _values(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the numbers of each gradient: of a sparse one, those of its rows, each row once."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad._values())
        else:
            found.append(parameter.grad)
    return found
