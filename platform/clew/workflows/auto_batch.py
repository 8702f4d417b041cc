"""`training.batch_size: auto`: the largest microbatch that fits, with the same optimizer steps.

Only divisors of the effective batch are tried. Then every optimizer step sees the same examples
as with one large batch, and since losses are sums that the trainer divides once, by the count of
the whole step, gradients are those of the large batch too (but for batch normalisation, which
sees one microbatch at a time).
"""

import logging

import torch

from clew.config.schema import RunConfig
from clew.config.training import AUTO_BATCH_SIZE, DEFAULT_BATCH_SIZE
from clew.errors import OutOfMemoryError
from clew.training.distributed import World
from clew.workflows.planner import Planner, limit_gib, smallest_batch, split_batch, with_settings

logger = logging.getLogger(__name__)

USED_SHARE = 0.85
"""Share of the memory that is there which a prediction may take: predictions err by 15 %."""


def resolve_batch_size(
    config: RunConfig, device: torch.device, world: World | None = None, *, limit: float = 0.0
) -> RunConfig:
    """Return the configuration with numbers in place of `auto`, the same in every process.

    Args:
        config: As it was given.
        device: Where training will run.
        world: Processes of the run; the main one chooses for all.
        limit: GiB that training may take; 0: a share of what is there now.

    Raises:
        OutOfMemoryError: not even the smallest microbatch fits.
    """
    if config.training.batch_size != AUTO_BATCH_SIZE:
        return config
    world = world or World()
    together = config.training.effective_batch_size or DEFAULT_BATCH_SIZE
    chosen = 0
    if world.is_main:
        whole = _with_batch(config, together, together)
        planner = Planner(whole, device, world.size)
        chosen = _largest_divisor(planner, limit or USED_SHARE * limit_gib(device))
    chosen = int(world.broadcast({"batch_size": float(chosen)}, device)["batch_size"])
    logger.info("microbatches of %d, %d in a step", chosen, together // chosen)
    return _with_batch(config, chosen, together)


def _largest_divisor(planner: Planner, limit: float) -> int:
    together = planner.config.training.batch_size
    least = smallest_batch(planner.config)
    for batch_size in range(together, least - 1, -1):
        if together % batch_size:
            continue
        if planner.predict(split_batch(planner.config, batch_size)).total_gib <= limit:
            return batch_size
    raise OutOfMemoryError(
        f"training.batch_size is auto, but {limit:.2f} GiB hold no microbatch of {least} or more "
        f"examples that divides {together}; make the model smaller or free memory"
    )


def _with_batch(config: RunConfig, batch_size: int, together: int) -> RunConfig:
    return with_settings(
        config,
        {
            "training.batch_size": batch_size,
            "training.effective_batch_size": None,
            "training.gradient_accumulation": together // batch_size,
        },
    )
