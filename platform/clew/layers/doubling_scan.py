"""The scan by doubling: log2(T) passes over T steps, without a loop over time or custom operators.

After pass i, each step has the combined effect of the last 2^i steps as a factor and an addend:

    (a, b)[t]  <-  (a[t] a[t - d], a[t] b[t - d] + b[t]),    d = 1, 2, 4, ...

(Hillis and Steele, 1986, doi 10.1145/7902.7903). This takes log2(T) times as many operations as the
chunked scan. But the number of passes depends only on the longest series, so `torch.export` can
export it for series of any length up to the longest, with standard torch operators only.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def scan_by_doubling(longest: int) -> Callable[..., Tensor]:
    """Return a replacement of `clew::diagonal_scan` for series of up to `longest` steps."""

    def scan(
        inputs: Tensor,
        eigenvalues: Tensor,
        initial: Tensor,
        chunk_size: int,
        keep: Tensor | None = None,
    ) -> Tensor:
        factor = _complex(eigenvalues).unsqueeze(1).expand(_complex(inputs).shape)
        if keep is not None:
            factor = factor * keep.unsqueeze(2)
        return _scan(_complex(inputs), factor, _complex(initial), longest)

    return scan


def varying_scan_by_doubling(longest: int) -> Callable[..., Tensor]:
    """Return a replacement of `clew::varying_diagonal_scan` for up to `longest` steps."""

    def scan(inputs: Tensor, multipliers: Tensor, initial: Tensor, chunk_size: int) -> Tensor:
        return _scan(_complex(inputs), _complex(multipliers), _complex(initial), longest)

    return scan


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


def _scan(added: Tensor, factor: Tensor, initial: Tensor, longest: int) -> Tensor:
    steps = 1
    while steps < longest:
        added = added + factor * _delayed(added, steps, 0.0)
        factor = factor * _delayed(factor, steps, 1.0)
        steps *= 2
    return torch.view_as_real(added + factor * initial.unsqueeze(1))


def _delayed(series: Tensor, steps: int, before: float) -> Tensor:
    """Return a series delayed by `steps`, with the value `before` in the first steps."""
    padding = torch.full_like(series[:, :1], before).expand(-1, steps, -1)
    return torch.cat([padding, series], dim=1)[:, : series.shape[1]]
