r"""Adjoints of the parts of an optimizer step: clipping, the update and the parameter average.

The adjoint of a quantity is the derivative of the explained loss with respect to it. A step
computes (theta', m', v') from (theta, m, v) and its gradient g. The reverse pass turns the adjoints
a', am', av' of the results into the adjoints a, am, av of the inputs and the adjoint u of g. With
c1 = 1 - b1^t, c2 = 1 - b2^t:

    Adam     m' = b1 m + (1-b1) g,    v' = b2 v + (1-b2) g^2
             theta' = theta - r m'/c1 / den,    den = sqrt(v'/c2) + e
             dm = am' - r/c1 a' / den,     dv = av' + r m'/c1 a' / den^2 / (2 sqrt(v' c2))
             u = (1-b1) dm + 2 (1-b2) g dv,    am = b1 dm,    av = b2 dv
    Adagrad  theta' = theta - r g / den,    den = sqrt(s') + e,    s' = s + g^2
             ds = as' + r g a' / den^2 / (2 sqrt(s')),    u = 2 g ds - r a' / den,    as = ds
    SGD      theta' = theta - r b',  b' = mu b + g:    db = ab' - r a',    u = db,    ab = mu db

(Engstrom et al., 2025, arXiv 2504.16430, for Adam.) The square root has no derivative at 0. A
second moment is exactly 0 if every gradient so far was 0. The update is then
-r g (1-b1)/c1 / (k|g| + e) with a constant k. Its derivative at g = 0 comes from the numerator
alone, so the path through the root contributes exactly 0. No epsilon is added inside the root.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clew.config import training as config
from clew.training.replay import State

Adjoints = dict[str, Tensor]

_CLIP_EPSILON = 1e-6
"""The number that torch adds to the norm before it divides by the norm."""


@dataclass(eq=False)
class Adjoint:
    """Derivatives of one explained loss with respect to a state, which are changed in place."""

    parameters: Adjoints
    buffers: Adjoints
    moments: Adjoints
    """By `<parameter name>/<state name>`; a missing entry is zero."""
    average: Adjoints

    def leave_average(self, decay: float, step: int) -> None:
        """Go back through average' = average + share (theta' - average) of step `step` (from 1)."""
        share = max(1.0 - decay, 1.0 / step)
        for name, adjoint in self.average.items():
            self.parameters[name].add_(adjoint, alpha=share)
            adjoint.mul_(1.0 - share)


def clipped(gradient: Adjoints, limit: float | None) -> tuple[Adjoints, float, float]:
    """Return the clipped gradient, the norm before clipping, and the clipping factor.

    The factor is 1 if the gradient was not clipped. Without a limit, the norm is given as 0.
    """
    if limit is None:
        return gradient, 0.0, 1.0
    norm = float(torch.nn.utils.get_total_norm(list(gradient.values())))
    factor = min(1.0, limit / (norm + _CLIP_EPSILON))
    if factor == 1.0:
        return gradient, norm, factor
    return {name: g * factor for name, g in gradient.items()}, norm, factor


def through_clipping(u: Adjoints, gradient: Adjoints, norm: float, factor: float) -> Adjoints:
    """Return the adjoint of g from the adjoint u of the clipped g, g limit / (|g| + 1e-6)."""
    if factor == 1.0:
        return u
    along = sum(float((u[name] * g).sum()) for name, g in gradient.items())
    bend = -along * factor / (norm + _CLIP_EPSILON) / norm
    return {name: (factor * u[name]).add_(g, alpha=bend) for name, g in gradient.items()}


class OptimizerAdjoint:
    """The adjoint of a step of the configured optimizer."""

    def __init__(self, settings: config.OptimizerConfig, without_decay: frozenset[str]) -> None:
        self.settings, self._without_decay = settings, without_decay

    def leave(
        self, adjoint: Adjoint, gradient: Adjoints, *, before: State, after: State, rate: float
    ) -> Adjoints:
        """Turn the adjoint of the state after a step into that before it, and return u.

        The new adjoint does not yet include the path through the gradient, which itself depends on
        the state before the step.

        Args:
            adjoint: The adjoint of the state, changed in place.
            gradient: Clipped gradient of the step's mean loss, by parameter; the step did not
                change other parameters.
            before: The state before the step.
            after: The state after the step.
            rate: Learning rate of the step.
        """
        result = {}
        for name, own in gradient.items():
            decay = 0.0 if name in self._without_decay else self.settings.weight_decay
            decoupled = isinstance(self.settings, config.AdamW)
            g = own + decay * before.model[name] if decay and not decoupled else own
            a = adjoint.parameters[name]
            moments = _Moments(name, adjoint.moments, after.optimizer)
            match self.settings:
                case config.Adam():
                    u = self._adam(self.settings, a, g, moments, rate)
                case config.Adagrad():
                    u = self._adagrad(self.settings, a, g, moments, rate)
                case config.SGD():
                    u = self._sgd(self.settings, a, moments, rate)
            if decay and decoupled:
                a.mul_(1.0 - rate * decay)
            elif decay:
                a.add_(u, alpha=decay)
            result[name] = u
        return result

    @staticmethod
    def _adam(
        settings: config.Adam, a: Tensor, g: Tensor, moments: "_Moments", rate: float
    ) -> Tensor:
        beta1, beta2 = settings.beta1, settings.beta2
        step = float(moments.saved("step"))
        correction1, correction2 = 1.0 - beta1**step, 1.0 - beta2**step
        first, second = moments.saved("exp_avg"), moments.saved("exp_avg_sq")
        root = second.sqrt().div_(correction2**0.5)
        through = a.mul(rate / correction1).div_(root + settings.epsilon)
        d_first = moments.adjoint("exp_avg").sub_(through)
        bend = through.mul_(first).div_(root + settings.epsilon)
        d_second = moments.adjoint("exp_avg_sq").add_(_over_root(bend, root, 2.0 * correction2))
        u = d_second.mul(g).mul_(2.0 * (1.0 - beta2)).add_(d_first, alpha=1.0 - beta1)
        d_first.mul_(beta1)
        d_second.mul_(beta2)
        return u

    @staticmethod
    def _adagrad(
        settings: config.Adagrad, a: Tensor, g: Tensor, moments: "_Moments", rate: float
    ) -> Tensor:
        total = moments.saved("sum")
        by_row = total.shape != g.shape
        root = total.sqrt()
        spread = root[:, None] if by_row else root
        through = a.mul(rate).div_(spread + settings.epsilon)
        bend = (through * g).div_(spread + settings.epsilon)
        bend = bend.sum(1) if by_row else bend
        d_total = moments.adjoint("sum").add_(_over_root(bend, root, 2.0))
        own = d_total[:, None] / g.shape[1] if by_row else d_total
        return (own * g).mul_(2.0).sub_(through)

    @staticmethod
    def _sgd(settings: config.SGD, a: Tensor, moments: "_Moments", rate: float) -> Tensor:
        if not settings.momentum:
            return a.mul(-rate)
        d_buffer = moments.adjoint("momentum_buffer").sub_(a, alpha=rate)
        u = d_buffer.clone()
        d_buffer.mul_(settings.momentum)
        return u


def _over_root(values: Tensor, root: Tensor, factor: float) -> Tensor:
    """Return values / (factor root), or 0 where the root is 0; see the module's docstring."""
    return values.div(factor * root).masked_fill_(root == 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class _Moments:
    """The optimizer's state of one parameter after a step, and the adjoints of this state."""

    parameter: str
    adjoints: Adjoints
    states: Mapping[str, Tensor]

    def saved(self, state: str) -> Tensor:
        return self.states[f"{self.parameter}/{state}"]

    def adjoint(self, state: str) -> Tensor:
        """Return the adjoint of a state, which the caller changes in place; zeros at first."""
        key = f"{self.parameter}/{state}"
        if key not in self.adjoints:
            self.adjoints[key] = torch.zeros_like(self.saved(state))
        return self.adjoints[key]
