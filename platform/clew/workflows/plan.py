"""Plan: what training would take in memory, what would save some, and how large a batch fits."""

from dataclasses import dataclass
from typing import Any

from clew.config.schema import RunConfig
from clew.errors import ConfigError
from clew.training.precision import resolve_device
from clew.workflows.auto_batch import resolve_batch_size
from clew.workflows.planner import Planner, Variant, limit_gib


@dataclass(frozen=True)
class MemoryPlan:
    """The budget of a configuration beside its limit, and its variants."""

    device: str
    batch_size: int
    gradient_accumulation: int
    limit_gib: float
    """What the device has to give, for the whole process on a CPU."""
    largest_batch_size: int
    """Largest microbatch that fits; 0 if none does."""
    searched_batch_size: int
    """Largest microbatch that was looked at."""
    variants: list[Variant]
    """The configuration as it stands first."""

    def table(self) -> str:
        """Return the budget in GiB, a line for each variant."""
        parts = list(self.variants[0].memory.as_gib())
        width = max(len(variant.name) for variant in self.variants)
        lines = [
            f"GiB on {self.device}, microbatches of {self.batch_size} x "
            f"{self.gradient_accumulation}",
            " " * width + "".join(f"{part:>12}" for part in [*parts, "total"]),
        ]
        for variant in self.variants:
            values = [*variant.memory.as_gib().values(), variant.memory.total_gib]
            lines.append(variant.name.ljust(width) + "".join(f"{v:12.3f}" for v in values))
        verdict = "fits" if self.variants[0].memory.total_gib <= self.limit_gib else "does not fit"
        most = self.largest_batch_size == self.searched_batch_size
        lines.append(
            f"{verdict} into {self.limit_gib:.2f} GiB; the largest microbatch that does: "
            f"{self.largest_batch_size or 'none'}{', the largest looked at' if most else ''}"
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "device": self.device,
            "batch_size": self.batch_size,
            "gradient_accumulation": self.gradient_accumulation,
            "limit_gib": self.limit_gib,
            "largest_batch_size": self.largest_batch_size,
            "searched_batch_size": self.searched_batch_size,
            "variants": [
                {
                    "name": variant.name,
                    "settings": dict(variant.settings),
                    "total_gib": variant.memory.total_gib,
                    "parts_gib": variant.memory.as_gib(),
                }
                for variant in self.variants
            ],
        }


def plan(config: RunConfig, *, memory_gib: float | None = None, world_size: int = 1) -> MemoryPlan:
    """Plan the memory of a configuration without training it.

    Args:
        config: As for training.
        memory_gib: What the device has to give; unset: what it has to give now.
        world_size: Processes of a data-parallel run; the plan is for each of them.

    Raises:
        ConfigError: there is no such device, or no process to plan for.
        DataError: the data cannot be read.
    """
    if world_size < 1:
        raise ConfigError(f"{world_size} processes given; expected one or more")
    device = resolve_device(config.training.device)
    limit = limit_gib(device) if memory_gib is None else memory_gib
    config = resolve_batch_size(config, device, limit=limit)
    planner = Planner(config, device, world_size)
    variants = planner.variants()
    return MemoryPlan(
        device=device.type,
        batch_size=config.training.batch_size,
        gradient_accumulation=config.training.gradient_accumulation,
        limit_gib=limit,
        largest_batch_size=planner.largest_batch(limit),
        searched_batch_size=planner.most_searched(),
        variants=variants,
    )
