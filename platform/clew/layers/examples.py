"""Helper for parameters whose gradient must be available for each example."""

import torch
from torch import Tensor


def for_each_example(parameter: Tensor, batch: int) -> Tensor:
    """Return a copy of a parameter for every example, `(batch, ...)`.

    Autograd records the addition of zeros as the use of the parameter. So the influence engine can
    read the gradient of each example from the result, for any function that follows.
    """
    zeros = torch.zeros(
        batch, *(1,) * parameter.dim(), dtype=parameter.dtype, device=parameter.device
    )
    return parameter + zeros
