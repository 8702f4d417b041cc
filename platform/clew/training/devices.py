"""Devices that memory is planned for: those that are here, and those that a person names."""

import re
from dataclasses import dataclass

import torch

from clew.config.devices import GPU_GB
from clew.errors import ConfigError
from clew.runs.hardware import GIB, available_gib, process_gib
from clew.training.precision import resolve_device


@dataclass(frozen=True)
class TargetDevice:
    """Where a training would run, and how much memory it may take there."""

    name: str
    device: torch.device
    memory_gib: float


def find_device(name: str) -> TargetDevice:
    """Return a device that is here (`auto`, `cpu`, `cuda`) or one that is known by name.

    A GB is 10^9 bytes, as on a data sheet: what a GPU's driver keeps for itself is about what this
    is less than a GiB.

    Raises:
        ConfigError: the name is not known and says no size.
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
    """Return what this process may take in all: what is free, and what it holds already."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return (free + torch.cuda.memory_reserved(device)) / GIB
    return available_gib() + process_gib()
