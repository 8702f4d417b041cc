"""Memory sizes of GPUs, to plan the memory of a training without the GPU."""

GPU_GB: dict[str, int] = {
    "T4": 16,
    "V100": 16,
    "A10": 24,
    "A10G": 24,
    "L4": 24,
    "RTX 3090": 24,
    "RTX 4090": 24,
    "RTX 5090": 32,
    "A100": 40,
    "A6000": 48,
    "L40S": 48,
    "H100": 80,
    "H200": 141,
}
"""GPU name to its memory in GB; the smallest size if there are several."""
