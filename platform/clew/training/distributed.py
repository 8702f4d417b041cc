"""Data parallelism: several processes train one model with the same results as one process.

Every process gets its share of each global microbatch. The loss is a sum divided by the *global*
count, so gradients are summed over processes and never averaged. The result is therefore right for
shares of different sizes and for processes without examples. Gradients are summed once per
optimizer step, for any number of accumulated microbatches.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from clew.config.training import DEFAULT_TIMEOUT_SECONDS
from clew.errors import ConfigError, PeerError, refusing
from clew.training.sharding import Exchange, row_shards, shard_of

LOST = ("connection", "timed out", "timeout", "gloo", "nccl", "peer", "socket")
"""Words in the errors of collectives that failed because of another process."""


@dataclass(frozen=True)
class World:
    """The processes of a run; by default there is one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    exchange: Exchange | None = None
    """Communication for sharded tables; None: no table is sharded."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def evaluates(self) -> bool:
        """Whether this process evaluates: only the main process, or all if tables are sharded."""
        return self.is_main or self.exchange is not None

    def sharing_tables(self) -> "World":
        return replace(self, exchange=Exchange(self.rank, self.size))

    def sum(self, value: float | Tensor, device: torch.device) -> Tensor:
        """Return the sum of a value over all processes, in float64, without a GPU sync."""
        total = torch.as_tensor(value, dtype=torch.float64, device=device)
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all processes; a process without examples contributes zeros.

        The gradients of sharded tables are skipped because they are complete already.
        """
        if self.size == 1:
            return
        parameters = [p for p in model.parameters() if p.requires_grad and shard_of(p) is None]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:  # each process has different rows
                parameter.grad = parameter.grad.to_dense()
        gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        parts = torch.split(flat, [g.numel() for g in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def broadcast(self, values: dict[str, float], device: torch.device) -> dict[str, float]:
        content: dict[str, float] = json.loads(self.broadcast_text(json.dumps(values), device))
        return content

    def broadcast_text(self, content: str, device: torch.device) -> str:
        """Return the main process's text on every process."""
        return self.gather_texts(content if self.is_main else "", device)[0]

    def gather_texts(self, text: str, device: torch.device) -> list[str]:
        if self.size == 1:
            return [text]
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
        exchange = Exchange(self.rank, self.size)
        (sizes,) = exchange.sizes(len(data), device=device)
        parts = torch.split(exchange.gather(data, sizes, "texts"), sizes)
        return [bytes(part.tolist()).decode() for part in parts]

    def gather_tensors(self, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return the tensors of all processes on the CPU, with the names `<rank>/<name>`.

        A tensor needs the same shape on every process.
        """
        if self.size == 1:
            return {f"0/{name}": tensor for name, tensor in tensors.items()}
        gathered: dict[str, Tensor] = {}
        for name, tensor in sorted(tensors.items()):
            own = tensor.to(device)
            boxes = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(boxes, own)
            gathered |= {f"{rank}/{name}": box.cpu() for rank, box in enumerate(boxes)}
        return gathered

    def wait_for_peers(self, seconds: float) -> None:
        if self.size > 1:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on the main process first, then on the other processes."""
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

    def share_overflow(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        if self.exchange is not None and scaler.is_enabled():
            for found in scaler._found_inf_per_device(optimizer).values():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)

    def synchronize_buffers(self, model: nn.Module) -> None:
        if self.exchange is not None:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def synchronize_parameters(self, model: nn.Module) -> None:
        """Copy the main process's parameters and buffers to all; sharded tables are skipped."""
        if self.size > 1:
            sharded = row_shards(model)
            for name, tensor in model.state_dict().items():
                if name not in sharded:
                    dist.broadcast(tensor, src=0)


def code_digest() -> str:
    """Return sixteen hexadecimal digits over the source files of this package."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def require_same(world: World, facts: Mapping[str, str]) -> None:
    """Check that all processes run with the same code, data and settings."""
    texts = world.gather_texts(json.dumps(dict(facts)), torch.device("cpu"))
    main, *others = (json.loads(text) for text in texts)
    for rank, own in enumerate(others, start=1):
        for name, value in main.items():
            if own[name] != value:
                raise ConfigError(
                    f"rank {rank} has {name} {own[name]}, rank 0 has {value}; start all processes "
                    f"with the same {name}"
                )


@contextmanager
def reporting_lost_peers(world: World) -> Iterator[None]:
    """Turn the error of a failed collective into one line; torchrun's report says who failed."""
    try:
        yield
    except RuntimeError as error:
        if world.size == 1 or not any(word in str(error).lower() for word in LOST):
            raise
        raise PeerError(
            f"rank {world.rank} of {world.size}: another process ended or hangs, torchrun's report "
            "names it; checkpoints written before are whole: continue with --resume"
        ) from error


@contextmanager
def joined_world(timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> Iterator[World]:
    """Join the process group that torchrun started, or use one process; leave it at the end."""
    if "RANK" not in os.environ:
        yield World()
        return
    what = "RANK is set, but WORLD_SIZE is missing, or a variable of torchrun is not a number"
    with refusing(what, KeyError, ValueError, advice="; start with torchrun", error=ConfigError):
        world = World(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        )
    if world.size > 1:
        # Training on the CPU of a machine with a GPU needs gloo, and so does `main_first`.
        both = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(both, timeout=timedelta(seconds=timeout_seconds))
    try:
        yield world
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
