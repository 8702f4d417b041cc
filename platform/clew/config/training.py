"""Sections `training`, `optimizations`, `optimizer` and `schedule`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from clew.config.base import NO_CLEANUP, TRAIN_FLAG, Flag, Section

AUTO_BATCH_SIZE = 0
"""The number that represents `training.batch_size: auto`."""
DEFAULT_BATCH_SIZE = 256
DEFAULT_TIMEOUT_SECONDS = 1800.0


def _read_auto(value: Any) -> Any:
    if str(value) in ("0", "0.0"):
        raise ValueError(f"batch_size is {value}; give 1 or more, or auto")
    return AUTO_BATCH_SIZE if value == "auto" else value


def _write_auto(value: int) -> int | str:
    return "auto" if value == AUTO_BATCH_SIZE else value


class TrainingConfig(Section):
    """The training loop: its length, its batches and its checkpoints."""

    num_epochs: Annotated[int, TRAIN_FLAG] = Field(default=20, ge=1)
    """Number of passes over the training examples."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimizer steps, even before `num_epochs` epochs."""
    batch_size: Annotated[
        int, BeforeValidator(_read_auto), PlainSerializer(_write_auto), TRAIN_FLAG
    ] = Field(default=DEFAULT_BATCH_SIZE, ge=AUTO_BATCH_SIZE)
    """Examples per microbatch in each process, or `auto`. A microbatch goes through the model at
    once. `auto`: the largest number that fits into memory and divides `effective_batch_size`;
    it also sets `gradient_accumulation`, and the run records both numbers."""
    effective_batch_size: int | None = Field(default=None, ge=1)
    """With `batch_size: auto`, examples per optimizer step, in each process; unset: 256."""
    gradient_accumulation: Annotated[int, TRAIN_FLAG] = Field(default=1, ge=1)
    """Microbatches per optimizer step. The last step of an epoch can be shorter; its loss is
    averaged over its own examples."""
    max_grad_norm: Annotated[float | None, TRAIN_FLAG] = Field(default=None, gt=0)
    """Largest norm of the gradients in a step, to which larger gradients are scaled down; unset: no
    clipping."""
    seed: Annotated[int, TRAIN_FLAG] = Field(default=0, ge=0, lt=2**32)
    """Seed for the initial weights, dropout and the order of examples."""
    shuffle_block: int | None = Field(default=None, ge=1)
    """Shuffle in blocks of this many consecutive examples, at least 256 blocks at a time. Data on
    the disk is then read in pieces, and the whole order of an epoch is never in memory. Unset: all
    examples are shuffled together."""
    deterministic: bool = False
    """Use only deterministic algorithms of torch; slower on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` uses the GPU if there is one."""
    num_threads: int | None = Field(default=None, ge=1, le=4096)
    """Number of torch threads on the CPU. Unset: the value of `OMP_NUM_THREADS`, else one thread
    for each core that the process can use (by its affinity and its control group's quota)."""
    shard_entities: bool = False
    """Distribute the rows of the entity table over the processes of `torchrun`. Each process keeps
    its rows, their optimizer state and their part of the loss. For link prediction with inverse
    relations."""
    peer_timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0)
    """Under `torchrun`, how long a process waits for the others before it stops, because one
    died or hangs. It must be longer than an evaluation, because the other processes
    wait while the main process evaluates."""
    checkpoint_frequency: Annotated[int, TRAIN_FLAG] = Field(default=5, ge=0)
    """Epochs between two checkpoints; 0: only the last checkpoint. TracIn sums over the
    checkpoints."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1)
    """Also save a checkpoint each time after this many optimizer steps."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay per optimizer step of a moving average of the parameters. Validation, the best
    checkpoint and the test use the average. The other checkpoints, which TracIn and resumed runs
    use, contain the parameters themselves. Unset: no average."""
    early_stopping_patience: Annotated[int | None, TRAIN_FLAG] = Field(default=None, ge=1)
    """Stop after this many evaluations without a better `evaluation.metric` (short: `patience`)."""
    log_every_steps: int = Field(default=50, ge=1)
    """Optimizer steps between two logged values of loss, learning rate and gradient norm."""
    max_skipped_steps: int = Field(default=25, ge=1)
    """Number of consecutive float16 steps skipped because of overflow after which training
    stops."""
    num_workers: Annotated[int, TRAIN_FLAG] = Field(default=0, ge=0)
    """Number of worker processes that prepare batches; 0: the training process prepares them."""
    pin_memory: bool = False
    """Prepare batches in page-locked memory, with or without workers (GPU only)."""
    persistent_workers: bool = False
    """Keep the workers alive between epochs."""
    prefetch_factor: int | None = Field(default=None, ge=1)
    """Number of batches that each worker prepares in advance."""
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How worker processes are started; unset: the default of the system."""

    def _check(self) -> None:
        if self.num_workers == 0:
            for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} is {getattr(self, name)!r}, but num_workers is 0; "
                        f"give num_workers 1 or more, or leave {name} out"
                    )
        automatic = self.batch_size == AUTO_BATCH_SIZE
        if self.effective_batch_size is not None and not automatic:
            raise ValueError(
                f"effective_batch_size is {self.effective_batch_size}, but batch_size is "
                f"{self.batch_size}; set batch_size to auto, or set gradient_accumulation instead"
            )
        if automatic and self.effective_batch_size is None and self.gradient_accumulation > 1:
            raise ValueError(
                f"batch_size is auto and gradient_accumulation is {self.gradient_accumulation}; "
                "give effective_batch_size, the number of examples in one optimizer step"
            )


class OptimizationsConfig(Section):
    """Options that change time, memory and precision, with measured effects."""

    use_mixed_precision: Annotated[bool, TRAIN_FLAG] = False
    """Run forward and backward passes in half precision: float16 with a loss scaler on a GPU, or
    bfloat16 on the CPU. The run records which type."""
    mixed_precision_dtype: Literal["auto", "float16", "bfloat16"] = "auto"
    """Half-precision type, instead of the automatic choice."""
    use_gradient_checkpointing: Annotated[bool, TRAIN_FLAG] = False
    """Recompute activations in the backward pass instead of keeping them."""
    enable_memory_cleanup: Annotated[bool, Flag(TRAIN_FLAG.verbs, off=NO_CLEANUP)] = True
    """Delete references early and return cached memory to the driver regularly."""
    memory_cleanup_interval_steps: int = Field(default=8, ge=1)
    """Optimizer steps between two returns of cached memory to the driver."""
    torch_compile: Annotated[bool, TRAIN_FLAG] = False
    """Compile the model with torch.compile; compilation time is reported separately."""
    torch_compile_mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune"], TRAIN_FLAG
    ] = "default"
    """Mode of torch.compile."""
    torch_compile_optional: bool = False
    """If torch.compile fails, continue without it; the tag `clew.compile_failed` records it."""
    use_tf32: bool = False
    """Use TF32 matrix products on NVIDIA GPUs of the Ampere generation and later."""
    keep_allocator_pages: bool = True
    """On the CPU (glibc), keep freed memory in the process instead of returning it at once."""


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
