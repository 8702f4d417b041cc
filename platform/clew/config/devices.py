"""GPUs that memory can be planned for without having one."""

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
"""Memory of GPUs by name; where there are several sizes, the smallest."""
