"""An exponential moving average of the parameters, for validation and the best checkpoint.

The average over the last steps predicts better than the parameters of the last step (Polyak and
Juditsky, 1992; Izmailov et al., 2018, arXiv 1803.05407). Training itself and the regular
checkpoints use the parameters, not the average. A run is resumed and explained from these
checkpoints, because influence is computed along the path that training took.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clew.errors import CheckpointError

_ROWS_AT_ONCE = 2**16


class ParameterAverage:
    """Keeps the average of a model's parameters; buffers are not averaged.

    The first 1 / (1 - decay) steps have equal weight, so the initial weights have no effect.

    Args:
        model: The model whose parameters are averaged.
        decay: Weight of the average so far; the parameters of a step have the weight 1 - decay.
            None: no average is kept.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._decay = decay
        self._parameters = dict(model.named_parameters())
        self._means: dict[str, Tensor] = {}
        if decay is not None:
            self._means = {n: p.detach().clone() for n, p in self._parameters.items()}

    @property
    def active(self) -> bool:
        return self._decay is not None

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after optimizer step `step` (from 1)."""
        if self._decay is None:
            return
        share = max(1.0 - self._decay, 1.0 / step)
        parameters: list[Tensor] = list(self._parameters.values())
        torch._foreach_lerp_(list(self._means.values()), parameters, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swap the averaged parameters into the model inside this context."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap parameters and average in place, because a compiled graph keeps their addresses."""
        for name, mean in self._means.items():
            pair = (self._parameters[name], mean)
            parts = (torch.split(t, _ROWS_AT_ONCE) if t.dim() else [t] for t in pair)
            for part, other in zip(*parts, strict=True):
                before = part.clone()
                part.copy_(other)
                other.copy_(before)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; empty if no average is kept."""
        return dict(self._means)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue a saved average.

        Raises:
            CheckpointError: The average belongs to a model with other parameters.
        """
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != {name: mean.shape for name, mean in self._means.items()}:
            raise CheckpointError(
                f"the checkpoint holds an average of {len(tensors)} parameters, but this run "
                f"averages {len(self._means)}; resume with the same training.ema_decay and model"
            )
        for name, mean in self._means.items():
            mean.copy_(tensors[name])
