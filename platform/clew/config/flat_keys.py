"""Short top-level keys of an image-sequence configuration, and the section that each belongs to.

`batch_size: 20` at the top level means `training.batch_size: 20`; `memory_optimized: true` halves
the channels. In a file with one of these keys, the kinds of `data` and `model` default to those of
image sequences.
"""

from collections.abc import Mapping
from typing import Any

from clew.errors import ConfigError, quoted

FLAT_KEYS: dict[str, str] = {
    "architecture": "model.architecture",
    "memory_optimized": "model.channels",
    "temporal_frames": "data.temporal_frames",
    "batch_size": "training.batch_size",
    "epochs": "training.num_epochs",
    "gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "torch_compile": "optimizations.torch_compile",
    "torch_compile_mode": "optimizations.torch_compile_mode",
}
"""Top-level key to configuration key."""
FULL_CHANNELS, REDUCED_CHANNELS = (64, 128, 256), (32, 64, 128)
IMPLIED_KINDS = {"data": "image_sequences", "model": "sequence_regression"}


def spread_flat_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw configuration with its short keys moved into their sections.

    Raises:
        ConfigError: If a setting is given by both keys, or if its value or its section is invalid.
    """
    spread = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    flat = {name: spread.pop(name) for name in FLAT_KEYS if name in spread}
    if not flat:
        return spread
    for section, kind in IMPLIED_KINDS.items():
        _section(spread, section, name=next(iter(flat))).setdefault("kind", kind)
    for name, value in flat.items():
        section, _, key = FLAT_KEYS[name].partition(".")
        target = _section(spread, section, name=name)
        if key in target:
            raise ConfigError(
                f"{name} and {section}.{key} are both given and mean the same; remove one of them"
            )
        if name == "memory_optimized":
            if not isinstance(value, bool):
                raise ConfigError(f"memory_optimized is {quoted(value)}; expected true or false")
            target[key] = REDUCED_CHANNELS if value else FULL_CHANNELS
        else:
            target[key] = value
    return spread


def _section(content: dict[str, Any], section: str, *, name: str) -> dict[str, Any]:
    target = content.setdefault(section, {})
    if not isinstance(target, dict):
        raise ConfigError(f"{section} is {quoted(target)}; expected keys, because {name} is given")
    return target
