"""Builds the optimizer and its learning-rate schedule, clips gradients, averages parameters.

A schedule is a function of the optimizer step. It counts only steps that changed the parameters, so
a skipped float16 step does not advance it. The optimizer stores nothing of the schedule: the
trainer sets the rate of each step, and a resumed run computes the same rates from the same step
numbers.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from clew.config import training as config
from clew.config.services import EvaluationConfig
from clew.config.training import (
    ExponentialSchedule,
    PlateauSchedule,
    ScheduleConfig,
    WarmupCosineSchedule,
)
from clew.errors import CheckpointError, quoted
from clew.training.distributed import World
from clew.training.sharding import shard_of


@runtime_checkable
class WithoutDecay(Protocol):
    """A model that excludes some of its parameters from weight decay."""

    def parameters_without_decay(self) -> list[nn.Parameter]:
        """Return the parameters without weight decay."""


def build_optimizer(settings: config.OptimizerConfig, model: nn.Module) -> Optimizer:
    """Build the configured optimizer for the model's trainable parameters.

    The fused implementations update each parameter in one pass over memory, on CPU and GPU.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    parameters = _groups(trainable, model) if settings.weight_decay else trainable
    kind: type[Optimizer]
    match settings:
        case config.Adam():
            kind = AdamW if isinstance(settings, config.AdamW) else Adam
            betas = (settings.beta1, settings.beta2)
            options: dict[str, Any] = {"betas": betas, "eps": settings.epsilon, "fused": True}
        case config.Adagrad(row_wise=True):
            kind, options = RowWiseAdagrad, {"eps": settings.epsilon}
        case config.Adagrad():
            on_cpu = all(p.device.type == "cpu" for p in trainable)
            kind, options = Adagrad, {"eps": settings.epsilon, "fused": on_cpu}
        case config.SGD():
            kind, options = SGD, {"momentum": settings.momentum, "fused": True}
    options |= {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    return _without_compiler(kind)(parameters, **options)


def _without_compiler(kind: type[Optimizer]) -> Callable[..., Optimizer]:
    """Return the class without the wrappers that import torch's compiler when they are called.

    This takes as long as importing torch. The wrappers matter where a step is compiled, and only
    models are compiled here.
    """
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


def _groups(trainable: list[nn.Parameter], model: nn.Module) -> list[Any]:
    """Put the parameters without weight decay into a separate group."""
    if not isinstance(model, WithoutDecay):
        return list(trainable)
    kept = {id(p) for p in model.parameters_without_decay()}
    return [
        {"params": [p for p in trainable if id(p) not in kept]},
        {"params": [p for p in trainable if id(p) in kept], "weight_decay": 0.0},
    ]


def gradient_norm(model: nn.Module, world: World) -> Tensor:
    """Return the total norm of all gradients; sparse gradients are coalesced in place."""
    if world.exchange is None:
        return torch.nn.utils.get_total_norm(_values(model.parameters()))
    sharded = [p for p in model.parameters() if shard_of(p) is not None]
    whole = [p for p in model.parameters() if shard_of(p) is None]
    own, same = (torch.nn.utils.get_total_norm(_values(part)) for part in (sharded, whole))
    others = world.exchange.sum(own.square(), "gradient norm")
    return (others + same.square()).sqrt()


def clip_gradients(model: nn.Module, limit: float, norm: Tensor) -> None:
    """Scale all gradients so that their total norm is at most `limit`."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for values in _values(model.parameters()):
        values.mul_(scale.to(values.device))


def _values(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the values of each gradient; sparse gradients are coalesced, so rows are unique."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad.values())
        elif parameter.grad is not None:
            found.append(parameter.grad)
    return found


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the optimizer's state by `<parameter name>/<state name>`."""
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Restore saved optimizer state, without the learning rate; refuse that of another model."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, state = key.rpartition("/")
        if name not in parameters:
            raise CheckpointError(
                f"optimizer state has parameter {quoted(name)}, which the model does not have; "
                "the checkpoint belongs to another model"
            )
        parameter = parameters[name]
        if value.shape != parameter.shape and value.numel() not in (1, len(parameter)):
            raise CheckpointError(
                f"optimizer state {quoted(key)} has shape {tuple(value.shape)}, but its parameter "
                f"has {tuple(parameter.shape)}; the checkpoint belongs to another model"
            )
        if value.shape == parameter.shape:
            # Fused steps go through memory in order, so a moment needs its parameter's strides.
            restored = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            # The step counter of a fused optimizer must be on the device of the parameters.
            restored = value.to(parameter.device, copy=True)
        optimizer.state[parameter][state] = restored.detach()


class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row of a matrix: the sum of mean squared gradients.

    For the gradient g of a row of length d: a += |g|^2 / d, row -= lr g / (sqrt(a) + eps), as in
    FBGEMM's exact row-wise Adagrad for recommender tables. A parameter that is not a matrix has one
    accumulator per element, as in Adagrad. A table of E rows thus needs E numbers in addition to
    its gradient, instead of E d (Adagrad) or 2 E d (Adam), and no temporary of its size. If the
    gradient is sparse, only its rows are read and written, with the same result.
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"] and not gradient.is_sparse:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state = self.state[parameter]
        by_row = parameter.dim() == 2
        if not state:
            state["sum"] = torch.zeros_like(parameter[:, 0] if by_row else parameter)
        if gradient.is_sparse:
            self._move_rows(parameter, gradient.coalesce(), state["sum"], group)
            return
        if by_row:
            state["sum"] += torch.linalg.vector_norm(gradient, dim=1).square_() / gradient.shape[1]
        else:
            state["sum"].addcmul_(gradient, gradient)
        scale = (state["sum"].sqrt() + group["eps"]).reciprocal_()
        parameter.addcmul_(gradient, scale[:, None] if by_row else scale, value=-group["lr"])

    @staticmethod
    def _move_rows(
        parameter: Tensor, gradient: Tensor, sums: Tensor, group: dict[str, Any]
    ) -> None:
        (rows,), values = gradient.indices(), gradient.values()
        squares = values.square()
        sums.index_add_(0, rows, squares if squares.dim() == 1 else squares.mean(dim=1))
        scale = (sums[rows].sqrt() + group["eps"]).reciprocal_()
        scaled = values * (scale if values.dim() == 1 else scale[:, None])
        parameter.index_add_(0, rows, scaled, alpha=-group["lr"])


_ROWS_AT_ONCE = 2**16


class ParameterAverage:
    """An exponential moving average of the parameters, for validation and the best checkpoint.

    The average over the last steps predicts better than the parameters of the last step (Polyak and
    Juditsky, 1992; Izmailov et al., 2018, arXiv 1803.05407). Training itself and the regular
    checkpoints use the parameters: influence is computed along the path that training took. Buffers
    are not averaged.

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
        decay = min(self._decay, 1.0 - 1.0 / step)
        update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        update(list(self._means.values()), list(self._parameters.values()), step)

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
        """Continue a saved average; refuse that of a model with other parameters."""
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != {name: mean.shape for name, mean in self._means.items()}:
            raise CheckpointError(
                f"the checkpoint holds an average of {len(tensors)} parameters, but this run "
                f"averages {len(self._means)}; resume with the same training.ema_decay and model"
            )
        for name, mean in self._means.items():
            mean.copy_(tensors[name])


class Schedule:
    """Factor on the peak learning rate; this base class is constant and has no state."""

    def factor(self, *, step: int, epoch: int) -> float:
        """Return the factor for optimizer step `step` (from 0) in epoch `epoch` (from 0)."""
        return 1.0

    def observe(self, metric: float) -> None:
        """Receive a validation result."""

    def state(self) -> dict[str, float]:
        """Return the state for a resume; empty if the factor depends only on step and epoch."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from a saved state."""


@dataclass(frozen=True)
class WarmupCosine(Schedule):
    """Cosine warm-up to the peak, then cosine decay: torch's OneCycleLR without its state.

    The warm-up ends at step `fraction * total_steps - 1` and the decay ends at `total_steps - 1`.
    After that, the rate stays at its final value. If `fraction * total_steps` is at most 1, the
    schedule starts at the peak; OneCycleLR would divide by zero.
    """

    total_steps: int
    warmup_fraction: float
    initial_divisor: float
    final_divisor: float

    def factor(self, *, step: int, epoch: int) -> float:
        first = 1.0 / self.initial_divisor
        last = first / self.final_divisor
        warmup_end = self.warmup_fraction * self.total_steps - 1.0
        end = self.total_steps - 1.0
        if warmup_end > 0.0 and step <= warmup_end:
            return _cosine(first, 1.0, step / warmup_end)
        start = max(warmup_end, 0.0)
        if end <= start:
            return 1.0
        return _cosine(1.0, last, min(1.0, (step - start) / (end - start)))


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) / 2.0 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiplies the rate by a constant factor after each epoch."""

    factor_per_epoch: float

    def factor(self, *, step: int, epoch: int) -> float:
        return self.factor_per_epoch**epoch


@dataclass
class Plateau(Schedule):
    """Reduces the rate if the validation metric does not improve in `patience` + 1 evaluations."""

    config: PlateauSchedule
    maximize: bool
    current: float = 1.0
    best: float = math.nan
    stale_evaluations: int = 0

    def factor(self, *, step: int, epoch: int) -> float:
        return self.current

    def observe(self, metric: float) -> None:
        """Reduce if this result and the `patience` results before it did not improve the best."""
        if is_better(metric, self.best, maximize=self.maximize):
            self.best, self.stale_evaluations = metric, 0
            return
        self.stale_evaluations += 1
        if self.stale_evaluations > self.config.patience:
            self.current = max(self.current * self.config.factor, self.config.minimum_factor)
            self.stale_evaluations = 0

    def state(self) -> dict[str, float]:
        """Return the factor, the best value and the number of evaluations without improvement."""
        return {name: getattr(self, name) for name in ("current", "best", "stale_evaluations")}

    def restore(self, state: dict[str, float]) -> None:
        self.current, self.best = state["current"], state["best"]
        self.stale_evaluations = int(state["stale_evaluations"])


def is_better(value: float, best: float, *, maximize: bool) -> bool:
    """Return whether `value` is better than `best`; NaN is never better, and neither is a tie."""
    if math.isnan(value):
        return False
    if math.isnan(best):
        return True
    return value > best if maximize else value < best


def build_schedule(
    config: ScheduleConfig, *, total_steps: int, evaluation: EvaluationConfig
) -> Schedule:
    match config:
        case WarmupCosineSchedule():
            divisors = config.initial_divisor, config.final_divisor
            return WarmupCosine(total_steps, config.warmup_fraction, *divisors)
        case ExponentialSchedule():
            return Exponential(config.factor_per_epoch)
        case PlateauSchedule():
            return Plateau(config, maximize=evaluation.maximize)
        case _:
            return Schedule()
