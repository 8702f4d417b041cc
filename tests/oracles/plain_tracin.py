"""A slow reference for TracIn: one backward pass per example, with all gradients stored."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clew.influence.kernel import example_gradients
from clew.training.task import B, Task


def influence_by_parameter(train: dict[str, Tensor], test: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inner products of gradients, `(test, train)`, for each parameter."""
    return {name: test[name].flatten(1) @ train[name].flatten(1).T for name in train}


def tracin_reference(
    task: Task[B],
    checkpoints: Sequence[tuple[nn.Module, float]],
    train: B,
    test: B,
) -> Tensor:
    """Return TracIn (Pruthi et al., 2020, equation 1), `(test, train)`.

    It is the sum over checkpoints `(model, weight)` of weight times inner product of gradients.
    """
    total = torch.zeros(())
    for model, weight in checkpoints:
        products = influence_by_parameter(
            example_gradients(task, model, train), example_gradients(task, model, test)
        )
        total = total + weight * torch.stack(list(products.values())).sum(0)
    return total
