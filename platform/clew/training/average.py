"""An exponential moving average of the parameters, for validation and the best checkpoint.

A point in the middle of the last steps predicts better than the last of them (Polyak and Juditsky,
1992; Izmailov et al., 2018, arXiv 1803.05407). Training itself continues from the parameters, and
so do checkpoints that are resumed from or explained: influence follows the path that was taken.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clew.errors import CheckpointError

_ROWS_AT_ONCE = 2**16


class ParameterAverage:
    """Keeps the average of a model's parameters; buffers are the model's own.

    The first 1 / (1 - decay) steps count alike, so that initial weights leave no trace.

    Args:
        model: Its parameters are read after each step.
        decay: Weight of the average so far against a step's parameters; None: nothing is kept.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._decay = decay
        self._parameters = dict(model.named_parameters())
        self._means: dict[str, Tensor] = {}
        if decay is not None:
            self._means = {n: p.detach().clone() for n, p in self._parameters.items()}

    @property
    def active(self) -> bool:
        """Whether there is an average at all."""
        return self._decay is not None

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after optimizer step number `step`, counted from 1."""
        if self._decay is None:
            return
        share = max(1.0 - self._decay, 1.0 / step)
        parameters: list[Tensor] = list(self._parameters.values())
        torch._foreach_lerp_(list(self._means.values()), parameters, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the average for a while."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Exchange parameters and average in place: a compiled graph holds their addresses."""
        for name, mean in self._means.items():
            pair = (self._parameters[name], mean)
            parts = (torch.split(t, _ROWS_AT_ONCE) if t.dim() else [t] for t in pair)
            for part, other in zip(*parts, strict=True):
                before = part.clone()
                part.copy_(other)
                other.copy_(before)

    def tensors(self) -> dict[str, Tensor]:
        """Return the average under the parameters' names; empty if none is kept."""
        return dict(self._means)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue a saved average.

        Raises:
            CheckpointError: it is of other parameters than the model's.
        """
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != {name: mean.shape for name, mean in self._means.items()}:
            raise CheckpointError(
                f"the checkpoint holds an average of {len(tensors)} parameters, this run keeps one "
                f"of {len(self._means)}; resume with the same training.ema_decay and model"
            )
        for name, mean in self._means.items():
            mean.copy_(tensors[name])
