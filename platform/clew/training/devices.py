"""Devices that memory is planned for: those of this machine, and other GPUs by name."""

import re
from dataclasses import dataclass

import torch

from clew.config.devices import GPU_GB
from clew.errors import ConfigError
from clew.runs.hardware import GIB, available_gib, process_gib
from clew.training.precision import resolve_device


@dataclass(frozen=True)
class TargetDevice:
    """A device that a training could run on, and how much memory it can use there."""

    name: str
    device: torch.device
    memory_gib: float


def find_device(name: str) -> TargetDevice:
    """Return a device of this machine (`auto`, `cpu`, `cuda`) or another GPU by name.

    A GB is 10^9 bytes, as on data sheets. The difference between GB and GiB is about what a GPU's
    driver reserves for itself.

    Raises:
        ConfigError: The name is unknown and contains no memory size.
    """
    if name in ("auto", "cpu", "cuda"):
        device = resolve_device(name)
        return TargetDevice(device.type, device, free_gib(device))
    size = re.search(r"(\d+(?:\.\d+)?)\s*(GB|GiB)\b", name, re.IGNORECASE)
    words = re.sub(r"\b(nvidia|geforce|tesla)\b", "", name.lower().replace("-", " ")).split()
    known = {key.lower(): gb for key, gb in GPU_GB.items()}
    if size is not None:
        unit = GIB if size[2].lower() == "gib" else 1e9
        memory_gib = float(size[1]) * unit / GIB
    elif " ".join(words) in known:
        memory_gib = known[" ".join(words)] * 1e9 / GIB
    else:
        listed = ", ".join(f"{key} ({gb} GB)" for key, gb in GPU_GB.items())
        raise ConfigError(
            f"--device is {name!r}; expected cpu, cuda, a name with its memory such as 'H100 80GB',"
            f" or one of {listed}"
        )
    return TargetDevice(name, torch.device("cuda"), memory_gib)


def free_gib(device: torch.device) -> float:
    """Return how much memory this process can use: what is free plus what it already holds."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return (free + torch.cuda.memory_reserved(device)) / GIB
    return available_gib() + process_gib()
