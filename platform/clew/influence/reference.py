"""The plain reference: one backward pass per example, every gradient kept in full.

It is slow and as simple as possible; the fast engines are tested against it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clew.training.task import B, Task


def example_gradients(task: Task[B], model: nn.Module, batch: B) -> dict[str, Tensor]:
    """Return each trainable parameter's gradient for each example, `(example, *parameter)`.

    Every example's loss gets its own backward pass; a parameter that a loss does not depend on
    has gradient zero.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    losses = task.example_losses(model, batch)
    rows = [
        torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        for loss in losses
    ]
    return {
        name: torch.stack([torch.zeros_like(p) if row[i] is None else row[i] for row in rows])
        for i, (name, p) in enumerate(named.items())
    }


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

    The sum over checkpoints `(model, weight)` of weight times the inner product of gradients.
    """
    total: Tensor | None = None
    for model, weight in checkpoints:
        products = influence_by_parameter(
            example_gradients(task, model, train), example_gradients(task, model, test)
        )
        term = weight * torch.stack(list(products.values())).sum(0)
        total = term if total is None else total + term
    if total is None:
        raise ValueError("no checkpoints given; give at least one pair of model and weight")
    return total
