"""What the hardware does with an option: compute it in units of its own, emulate it, or nothing.

An option that only costs something on this hardware is switched off. One that still saves memory,
such as half precision without units for it, stays on. Both get a line that the run records.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

from clew.config.load import with_settings
from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.layers import products
from clew.runs.hardware import GIB, available_gib, cpu_model, process_gib
from clew.training.precision import half_precision_type, resolve_device


class Card(NamedTuple):
    """What the data sheet says of a GPU."""

    memory_gb: int
    """Memory in GB of 10^9 bytes; the smallest size if there are several."""
    capability: tuple[int, int]
    """CUDA compute capability, which decides what its tensor cores compute."""
    tflops: tuple[float, float, float] | None = None
    """Peak rates of dense matrix products with float32 sums: half precision, TF32, float32."""


GPUS: dict[str, Card] = {
    "T4": Card(16, (7, 5), (65.0, 8.1, 8.1)),
    "V100": Card(16, (7, 0)),
    "A10": Card(24, (8, 6)),
    "A10G": Card(24, (8, 6)),
    "L4": Card(24, (8, 9)),
    "RTX 3090": Card(24, (8, 6)),
    "RTX 4090": Card(24, (8, 9)),
    "RTX 5090": Card(32, (12, 0)),
    "A100": Card(40, (8, 0), (312.0, 156.0, 19.5)),
    "A6000": Card(48, (8, 6)),
    "L40S": Card(48, (8, 9), (362.0, 183.0, 91.6)),
    "H100": Card(80, (9, 0), (989.0, 494.0, 67.0)),
    "H100 PCIe": Card(80, (9, 0), (756.0, 378.0, 51.0)),
    "H100 NVL": Card(94, (9, 0), (835.0, 417.0, 60.0)),
    "H200": Card(141, (9, 0), (989.0, 494.0, 67.0)),
    "H200 NVL": Card(141, (9, 0), (836.0, 418.0, 60.0)),
}


def find_card(name: str) -> Card | None:
    """Return the card whose words are all in a device's name; the most exact one, or None."""
    words = set(re.split(r"[\s-]+", name.lower()))
    fitting = [known for known in GPUS if words.issuperset(known.lower().split())]
    return GPUS[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True)
class TargetDevice:
    """A device that training could run on, and how much memory it can use there."""

    name: str
    device: torch.device
    memory_gib: float


def find_device(name: str) -> TargetDevice:
    """Return a device of this machine (`auto`, `cpu`, `cuda`) or another GPU by name.

    A GB is 10^9 bytes, as on data sheets. The difference between GB and GiB is about what a GPU's
    driver reserves for itself.
    """
    if name in ("auto", "cpu", "cuda"):
        device = resolve_device(name)
        return TargetDevice(device.type, device, free_gib(device))
    size = re.search(r"(\d+(?:\.\d+)?)\s*(GB|GiB)\b", name, re.IGNORECASE)
    card = find_card(name)
    if size is not None:
        unit = GIB if size[2].lower() == "gib" else 1e9
        memory_gib = float(size[1]) * unit / GIB
    elif card is not None:
        memory_gib = card.memory_gb * 1e9 / GIB
    else:
        listed = ", ".join(f"{known} ({card.memory_gb} GB)" for known, card in GPUS.items())
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


FLOAT16_CORES, BFLOAT16_CORES = (7, 0), (8, 0)
"""Compute capabilities from which tensor cores multiply these types, and TF32 with the second."""
EMULATED_SHARE = 0.55
"""Examples/s of the demo with emulated bfloat16, as a share of those in float32."""


@dataclass(frozen=True)
class Hardware:
    """What a processor or a GPU computes in hardware."""

    name: str
    device: torch.device
    float16: bool
    bfloat16: bool
    tf32: bool
    compiles_bfloat16: bool = True
    """Whether compiled products of bfloat16 have a usable speed."""

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Describe a device of this machine."""
        if device.type == "cuda":
            return cls._of_gpu(
                torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
            )
        # The names of x86 and ARM do not overlap.
        found = torch.cpu.get_capabilities()
        return cls(
            cpu_model(),
            torch.device("cpu"),
            float16=any(found.get(name) for name in ("avx512_fp16", "amx_fp16", "fp16_arith")),
            bfloat16=any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")),
            tf32=False,
            compiles_bfloat16=products.has_bfloat16_products(),
        )

    @classmethod
    def named(cls, name: str, device: torch.device) -> Self:
        """Describe a GPU that this machine need not have; an unknown one is taken for a new one."""
        if device.type in ("cpu", name):
            return cls.of(device)
        card = find_card(name)
        return cls._of_gpu(name, card.capability if card else GPUS["H100"].capability)

    @classmethod
    def _of_gpu(cls, name: str, capability: tuple[int, int]) -> Self:
        float16, newer = capability >= FLOAT16_CORES, capability >= BFLOAT16_CORES
        return cls(name, torch.device("cuda"), float16=float16, bfloat16=newer, tf32=newer)


def half_precision_remark(config: RunConfig, hardware: Hardware) -> str | None:
    """Return what mixed precision costs on hardware without units for it; None with them."""
    half = half_precision_type(config.optimizations, hardware.device)
    if half is None or (hardware.float16 if half is torch.float16 else hardware.bfloat16):
        return None
    kind = str(half).removeprefix("torch.")
    here = f"use_mixed_precision: {hardware.name} has no units for {kind}"
    where = "it pays on GPUs with tensor cores for it, and on processors with AVX512_BF16 or AMX"
    if hardware.device.type == "cuda":
        return f"{here}: it saves memory for activations, but no time; {where}"
    return (
        f"{here}, which is emulated: it saves memory for activations and costs time (bfloat16 in "
        f"the demo, on two cores: {EMULATED_SHARE:.2f} times the examples/s of float32); {where}"
    )


def fit_to_hardware(
    config: RunConfig, hardware: Hardware, *, strict: bool = False
) -> tuple[RunConfig, list[str]]:
    """Switch off the options that cannot pay; return the configuration and a line for each."""
    changes: dict[str, tuple[Any, str]] = {}  # `section.key` to other value and reason
    options, on_cpu = config.optimizations, hardware.device.type == "cpu"
    half = half_precision_type(options, hardware.device)
    if options.torch_compile and half is torch.bfloat16 and not hardware.compiles_bfloat16:
        changes["optimizations.torch_compile"] = (
            False,
            f"{hardware.name} has no instructions for bfloat16, and compiled products of it run in "
            "a plain loop, 60 times slower than float32; compile without use_mixed_precision",
        )
    elif options.torch_compile and on_cpu and options.torch_compile_mode == "reduce-overhead":
        changes["optimizations.torch_compile_mode"] = (
            "default",
            "reduce-overhead records CUDA graphs, which only GPUs have",
        )
    if options.use_tf32 and not hardware.tf32:
        changes["optimizations.use_tf32"] = (
            False,
            f"{hardware.name} has no TF32; NVIDIA GPUs have it from the Ampere generation on",
        )
    if strict and changes:
        problems = "; ".join(f"{key}: {reason}" for key, (_, reason) in changes.items())
        raise ConfigError(f"{problems}; leave it out, or train without --strict")
    lines = [
        f"{key} is {str(value).lower()} in this run: {reason}"
        for key, (value, reason) in changes.items()
    ]
    if remark := half_precision_remark(config, hardware):
        lines.append(remark)
    for key, usual, switch in (
        ("mixed_precision_dtype", "auto", "use_mixed_precision"),
        ("torch_compile_mode", "default", "torch_compile"),
    ):
        if getattr(options, key) != usual and not getattr(options, switch):
            lines.append(f"optimizations.{key} has no effect, because {switch} is false")
    return with_settings(config, {key: value for key, (value, _) in changes.items()}), lines
