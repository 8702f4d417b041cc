"""Sections `optimizer` and `schedule`: how parameters are updated, and the learning rate."""

from typing import Annotated, Literal

from pydantic import Field

from clew.config.base import TRAIN_FLAG, Section

Fraction = Annotated[float, Field(ge=0, lt=1)]


class OptimizerBase(Section):
    """Fields of all optimizers."""

    learning_rate: Annotated[float, TRAIN_FLAG] = Field(default=1e-3, gt=0)
    """Peak learning rate; the schedule multiplies it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty (Adam, Adagrad, SGD) or decoupled decay (AdamW)."""


class Adam(OptimizerBase):
    """Adam (Kingma and Ba, 2015)."""

    kind: Literal["adam"] = "adam"
    """Adam."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.999
    """Decay of the second moment."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    """AdamW."""


class Adagrad(OptimizerBase):
    """Adagrad (Duchi et al., 2011)."""

    kind: Literal["adagrad"] = "adagrad"
    """Adagrad."""
    epsilon: float = Field(default=1e-10, gt=0)
    """Added to the root of the accumulated squares."""
    row_wise: bool = False
    """Keep one accumulator per row of each matrix (the mean square of the row's gradient) instead
    of one per element. The state of an entity table is then one column instead of a second
    table."""


class SGD(OptimizerBase):
    """Stochastic gradient descent."""

    kind: Literal["sgd"] = "sgd"
    """SGD."""
    momentum: Fraction = 0.0
    """Momentum; TracIn's checkpoint weights take it into account as 1 / (1 - momentum)."""


OptimizerConfig = Annotated[Adam | AdamW | Adagrad | SGD, Field(discriminator="kind")]


class ConstantSchedule(Section):
    """The peak rate in every step."""

    kind: Literal["constant"] = "constant"
    """No change."""


class WarmupCosineSchedule(Section):
    """One cycle: a cosine up to the peak rate, then a cosine down to the final rate."""

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    """Like torch's OneCycleLR with cosine annealing, one value per optimizer step."""
    warmup_fraction: Fraction = 0.1
    """Share of all optimizer steps in which the rate rises to its peak."""
    initial_divisor: float = Field(default=25.0, ge=1)
    """The first rate is the peak rate divided by this."""
    final_divisor: float = Field(default=1e4, ge=1)
    """The last rate is the first rate divided by this."""


class ExponentialSchedule(Section):
    """The rate is multiplied by a factor after every epoch."""

    kind: Literal["exponential"] = "exponential"
    """Exponential decay by epoch."""
    factor_per_epoch: float = Field(default=0.995, gt=0, le=1)
    """Factor after each epoch."""


class PlateauSchedule(Section):
    """The rate decreases when the validation metric stops improving."""

    kind: Literal["plateau"] = "plateau"
    """Reduce on plateau of `evaluation.metric`."""
    factor: float = Field(default=0.95, gt=0, lt=1)
    """Factor at each reduction."""
    patience: int = Field(default=5, ge=0)
    """Number of evaluations without improvement before a reduction."""
    minimum_factor: float = Field(default=1e-3, ge=0, le=1)
    """Lower limit of the rate, as a factor of the peak rate."""


ScheduleConfig = Annotated[
    ConstantSchedule | WarmupCosineSchedule | ExponentialSchedule | PlateauSchedule,
    Field(discriminator="kind"),
]
