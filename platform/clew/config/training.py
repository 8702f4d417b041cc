"""Sections `training` and `optimizations`: the loop, and what makes it smaller or faster."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from clew.config.base import TRAIN_FLAG, Flag, Section

AUTO_BATCH_SIZE = 0
"""What `training.batch_size: auto` is kept as."""
DEFAULT_BATCH_SIZE = 256


def _read_auto(value: Any) -> Any:
    if str(value) == str(AUTO_BATCH_SIZE):
        raise ValueError(f"batch_size is {value}; give 1 or more, or auto")
    return AUTO_BATCH_SIZE if value == "auto" else value


def _write_auto(value: int) -> int | str:
    return "auto" if value == AUTO_BATCH_SIZE else value


class TrainingConfig(Section):
    """The loop: how long, in what batches, what is kept."""

    num_epochs: Annotated[int, TRAIN_FLAG] = Field(default=20, ge=1)
    """Passes over the training examples."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after so many optimizer steps, whatever `num_epochs` says."""
    batch_size: Annotated[
        int, BeforeValidator(_read_auto), PlainSerializer(_write_auto), TRAIN_FLAG
    ] = Field(default=DEFAULT_BATCH_SIZE, ge=AUTO_BATCH_SIZE)
    """Examples in a microbatch: what goes through the model at once, in each process. `auto`: the
    largest that fits into memory and divides `effective_batch_size`, which finds
    `gradient_accumulation` too; the run records both numbers."""
    effective_batch_size: int | None = Field(default=None, ge=1)
    """With `batch_size: auto`, examples in one optimizer step, in each process; unset: 256."""
    gradient_accumulation: Annotated[int, TRAIN_FLAG] = Field(default=1, ge=1)
    """Microbatches in one optimizer step; the last, shorter window counts by its examples."""
    max_grad_norm: Annotated[float | None, TRAIN_FLAG] = Field(default=None, gt=0)
    """Gradients of a step are scaled down to this norm; unset: no clipping."""
    seed: Annotated[int, TRAIN_FLAG] = Field(default=0, ge=0, lt=2**32)
    """Seed of initial weights, dropout and the order of examples."""
    deterministic: bool = False
    """Ask torch for deterministic algorithms only; slower on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU if there is one."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of torch on the CPU; unset: one for each core that the process may use, by its
    affinity and its control group's quota, or as `OMP_NUM_THREADS` says."""
    checkpoint_frequency: Annotated[int, TRAIN_FLAG] = Field(default=5, ge=0)
    """A checkpoint every so many epochs; 0: only the last. TracIn sums over these."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1)
    """A checkpoint every so many optimizer steps as well."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay, for each optimizer step, of a moving average of the parameters. Validation, the best
    checkpoint and the test are the average's; the other checkpoints, which TracIn and a resume go
    through, hold the parameters themselves. Unset: no average."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations without a better `evaluation.metric`."""
    log_every_steps: int = Field(default=50, ge=1)
    """Optimizer steps between two values of loss, learning rate and gradient norm."""
    max_skipped_steps: int = Field(default=25, ge=1)
    """Float16 steps skipped in a row, for an overflow, before training stops."""
    num_workers: Annotated[int, TRAIN_FLAG] = Field(default=0, ge=0)
    """Worker processes that prepare batches; 0: the training process itself."""
    pin_memory: bool = False
    """Prepare batches in page-locked memory, with workers or without (GPU only)."""
    persistent_workers: bool = False
    """Keep the workers alive between epochs."""
    prefetch_factor: int | None = Field(default=None, ge=1)
    """Batches that each worker prepares ahead."""
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How workers are started; unset: the system's way."""

    @model_validator(mode="after")
    def _workers_fit(self) -> "TrainingConfig":
        if self.num_workers == 0:
            for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} is {getattr(self, name)!r}, but num_workers is 0; "
                        f"give num_workers 1 or more, or leave {name} out"
                    )
        return self

    @model_validator(mode="after")
    def _batch_sizes_fit(self) -> "TrainingConfig":
        automatic = self.batch_size == AUTO_BATCH_SIZE
        if self.effective_batch_size is not None and not automatic:
            raise ValueError(
                f"effective_batch_size is {self.effective_batch_size}, but batch_size is "
                f"{self.batch_size}; set batch_size to auto, or set gradient_accumulation instead"
            )
        if automatic and self.effective_batch_size is None and self.gradient_accumulation > 1:
            raise ValueError(
                f"batch_size is auto and gradient_accumulation is {self.gradient_accumulation}; "
                "give effective_batch_size, the examples in one optimizer step"
            )
        return self


class OptimizationsConfig(Section):
    """Measured options that trade time, memory and precision."""

    use_mixed_precision: Annotated[bool, TRAIN_FLAG] = False
    """Forward and backward in half precision: float16 with a loss scaler on a GPU, bfloat16 on
    the CPU; the run says which."""
    mixed_precision_dtype: Literal["auto", "float16", "bfloat16"] = "auto"
    """Half-precision type, where the automatic choice is not wanted."""
    use_gradient_checkpointing: Annotated[bool, TRAIN_FLAG] = False
    """Recompute activations in the backward pass instead of keeping them."""
    enable_memory_cleanup: Annotated[bool, Flag(TRAIN_FLAG.verbs, off="disable_memory_cleanup")] = (
        True
    )
    """Drop references early and return cached memory to the driver now and then."""
    memory_cleanup_interval_steps: int = Field(default=8, ge=1)
    """Optimizer steps between two such returns."""
    torch_compile: Annotated[bool, TRAIN_FLAG] = False
    """Compile the model with torch.compile; compilation time is reported apart."""
    torch_compile_mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune"], TRAIN_FLAG
    ] = "default"
    """Mode of torch.compile."""
    torch_compile_optional: bool = False
    """Go on without torch.compile where it fails; the run then says so in `clew.compile_failed`."""
    use_tf32: bool = False
    """TF32 matrix products on NVIDIA GPUs of the Ampere generation and later."""
    keep_allocator_pages: bool = True
    """On the CPU (glibc), keep freed memory in the process instead of returning it at once."""
