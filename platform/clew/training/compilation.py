"""Applies torch.compile and measures the compilation before the first training step."""

import shutil
import time
from collections.abc import Sequence

import torch
from torch import nn

from clew.config.training import OptimizationsConfig
from clew.errors import ConfigError
from clew.training.precision import Precision
from clew.training.seeding import capture_generators, restore_generators
from clew.training.task import B, Task

USES_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


def apply_compile(model: nn.Module, settings: OptimizationsConfig, device: torch.device) -> None:
    """Compile the model's forward in place, so that the keys of its state dict do not change.

    Raises:
        ConfigError: The machine lacks the C++ compiler that torch.compile needs on the CPU.
    """
    if not settings.torch_compile:
        return
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise ConfigError(
            "optimizations.torch_compile is true, but torch.compile needs a C++ compiler on the "
            "CPU and none of g++, c++, clang++ is on PATH; install one or set it to false"
        )
    model.compile(mode=settings.torch_compile_mode)
    if device.type == "cuda" and settings.torch_compile_mode in USES_CUDA_GRAPHS:
        # A CUDA graph writes its gradients to the same memory each time, so the gradient of one
        # microbatch would be overwritten before that of the next is added to it.
        for parameter in model.parameters():
            parameter.register_hook(torch.clone)  # type: ignore[no-untyped-call]


def undo_compile(model: nn.Module) -> None:
    for module in model.modules():
        module._compiled_call_impl = None


def warm_up(task: Task[B], model: nn.Module, precision: Precision, batches: Sequence[B]) -> float:
    """Run forward and backward once for each batch, undo all effects and return the seconds.

    torch compiles at the first call with a shape, not in `compile()`. This warm-up shows
    compilation errors before training and keeps the compilation out of the training time. Buffers,
    generators and gradients are restored, so that a compiled run draws the same dropout masks as
    an eager run.

    Raises:
        ConfigError: The model cannot be compiled in this mode on this machine.
    """
    started = time.perf_counter()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    tensors, values = capture_generators()
    try:
        for batch in batches:
            with precision.autocast:
                loss = task.loss(model, batch)
            (loss.total / loss.count).backward()  # type: ignore[no-untyped-call]
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"torch.compile failed on this machine ({type(error).__name__}: {reason}); choose "
            "another optimizations.torch_compile_mode or set torch_compile to false"
        ) from error
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        restore_generators(tensors, values)
        model.zero_grad(set_to_none=True)
    if precision.device.type == "cuda":
        torch.cuda.synchronize(precision.device)
    return time.perf_counter() - started
