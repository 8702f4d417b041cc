"""Data parallelism: several processes, one set of parameters, the same numbers as one process.

Every process sees its share of each global microbatch. The loss is a sum divided by the *global*
count, so gradients are added over processes, never averaged: ragged tails and processes without
examples come out right. Gradients are added once per optimizer step, whatever the accumulation.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clew.errors import ConfigError


@dataclass(frozen=True)
class World:
    """The processes of a run; one process is the ordinary case."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process evaluates, records and writes checkpoints."""
        return self.rank == 0

    def sum(self, value: float | Tensor, device: torch.device) -> Tensor:
        """Return the sum of a number over all processes, in float64; the host does not wait."""
        total = torch.as_tensor(value, dtype=torch.float64, device=device)
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def sum_gradients(self, model: nn.Module) -> None:
        """Add the gradients of all processes; a process without examples contributes zeros."""
        if self.size == 1:
            return
        parameters = [p for p in model.parameters() if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        parts = torch.split(flat, [g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        """Return the main process's values on every process; sent as JSON text."""
        if self.size == 1:
            return values
        text = json.dumps(values).encode() if self.is_main else b""
        length = torch.tensor(len(text), device=device)
        dist.broadcast(length, src=0)
        data = torch.zeros(int(length), dtype=torch.uint8, device=device)
        if self.is_main:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, src=0)
        content: dict[str, float] = json.loads(bytes(data.cpu().tolist()))
        return content

    def gather_tensors(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return all processes' equally shaped tensors under `<rank>/<name>`, on the CPU."""
        if self.size == 1:
            return {f"0/{name}": tensor for name, tensor in tensors.items()}
        gathered: dict[str, Tensor] = {}
        for name, tensor in sorted(tensors.items()):
            own = tensor.to(device)
            boxes = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(boxes, own)
            gathered |= {f"{rank}/{name}": box.cpu() for rank, box in enumerate(boxes)}
        return gathered

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process through a block before the others enter it."""
        if not self.is_main:
            self._meet()
        try:
            yield
        finally:
            if self.is_main:
                self._meet()

    def _meet(self) -> None:
        if self.size > 1:
            dist.all_reduce(torch.zeros(()))

    def synchronize_parameters(self, model: nn.Module) -> None:
        """Give every process the main process's parameters and buffers."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)


@contextmanager
def joined_world() -> Iterator[World]:
    """Join the processes that torchrun started, or be a world of one; leave it at the end.

    Raises:
        ConfigError: torchrun's environment is incomplete.
    """
    if "RANK" not in os.environ:
        yield World()
        return
    try:
        world = World(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"RANK is set, but WORLD_SIZE is not a usable number ({error}); start with torchrun"
        ) from None
    if world.size > 1:
        # A run on the CPU of a machine with a GPU needs gloo, and so does `main_first`.
        both = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(both)
    try:
        yield world
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
