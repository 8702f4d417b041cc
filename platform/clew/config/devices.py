"""GPUs by name: what a training can expect of them, to plan and measure without asking the card."""

import re
from typing import NamedTuple


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
GPU_GB = {name: card.memory_gb for name, card in GPUS.items()}


def find_card(name: str) -> Card | None:
    """Return the card whose words are all in a device's name; the most exact one, or None."""
    words = set(re.split(r"[\s-]+", name.lower()))
    fitting = [known for known in GPUS if words.issuperset(known.lower().split())]
    return GPUS[max(fitting, key=len)] if fitting else None
