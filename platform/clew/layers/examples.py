"""Parameters whose gradient can be separated by example."""

import torch
from torch import Tensor


def for_each_example(parameter: Tensor, batch: int) -> Tensor:
    """Return a copy of a parameter for every example, `(batch, ...)`.

    The sum with zeros is recorded as the parameter's use, so that the influence engine reads the
    gradient of each example off its result, whatever function comes next.
    """
    zeros = torch.zeros(
        batch, *(1,) * parameter.dim(), dtype=parameter.dtype, device=parameter.device
    )
    return parameter + zeros
