"""Optimizers from the configuration, and their state under parameter names."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from clew.config import optimizer as config
from clew.errors import CheckpointError, quoted
from clew.training.row_wise_adagrad import RowWiseAdagrad


@runtime_checkable
class WithoutDecay(Protocol):
    """A model some of whose parameters must not be pulled towards zero."""

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return the parameters that weight decay leaves alone."""
        ...


def build_optimizer(settings: config.OptimizerConfig, model: nn.Module) -> Optimizer:
    """Build the configured optimizer over the model's trainable parameters.

    The fused form updates each parameter in one pass over memory, on CPU and GPU alike.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    parameters = _groups(trainable, model) if settings.weight_decay else trainable
    common: dict[str, Any] = {
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
    }
    match settings:
        case config.Adam():
            kind = AdamW if isinstance(settings, config.AdamW) else Adam
            betas = (settings.beta1, settings.beta2)
            return kind(parameters, betas=betas, eps=settings.epsilon, fused=True, **common)
        case config.Adagrad(row_wise=True):
            return RowWiseAdagrad(parameters, eps=settings.epsilon, **common)
        case config.Adagrad():
            on_cpu = all(p.device.type == "cpu" for p in trainable)
            return Adagrad(parameters, eps=settings.epsilon, fused=on_cpu, **common)
        case config.SGD():
            return SGD(parameters, momentum=settings.momentum, fused=True, **common)


def _groups(trainable: list[nn.Parameter], model: nn.Module) -> list[Any]:
    """Put the parameters that weight decay leaves alone into a group of their own."""
    if not isinstance(model, WithoutDecay):
        return list(trainable)
    kept = {id(p) for p in model.parameters_without_decay()}
    return [
        {"params": [p for p in trainable if id(p) not in kept]},
        {"params": [p for p in trainable if id(p) in kept], "weight_decay": 0.0},
    ]


def momentum_of(settings: config.OptimizerConfig) -> float:
    """Return the momentum by which a step's effect on the parameters is multiplied, 0 if none."""
    return settings.momentum if isinstance(settings, config.SGD) else 0.0


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter name>/<state name>` to tensor."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put saved state back; the learning rate is not part of it.

    Raises:
        CheckpointError: the state names a parameter that the model does not have.
    """
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, state = key.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"optimizer state names parameter {quoted(name)}, which the model does not have; "
                "the checkpoint belongs to another model"
            )
        parameter = parameters[name]
        if value.shape != parameter.shape and value.numel() not in (1, len(parameter)):
            raise CheckpointError(
                f"optimizer state {quoted(key)} has shape {tuple(value.shape)}, its parameter "
                f"{tuple(parameter.shape)}; the checkpoint belongs to another model"
            )
        if value.shape == parameter.shape:
            # Fused steps walk through memory, so a moment lies there as its parameter does.
            restored = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            # The step counter of a fused optimizer must live where the parameters live.
            restored = value.to(parameter.device, copy=True)
        optimizer.state[parameter][state] = restored.detach()
