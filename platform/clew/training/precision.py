"""Half precision: the data type, the autocast context, and the float16 loss scaler.

float16 has only five exponent bits, so small gradients become zero. The loss is therefore
multiplied by a scale, which is halved when a gradient overflows (that step is skipped) and doubled
after 2,000 steps without overflow. bfloat16 has the exponent range of float32 and needs no scaling.
Parameters, their gradients, losses and optimizer state stay in float32 with both types.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.amp.grad_scaler import GradScaler

from clew.config.services import InfluenceConfig
from clew.config.training import OptimizationsConfig
from clew.errors import ConfigError
from clew.layers.products import products_in

PRECISION_NAMES = {None: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def half_precision_type(
    settings: OptimizationsConfig | InfluenceConfig, device: torch.device
) -> torch.dtype | None:
    """Return the half-precision type in use, or None for float32.

    `auto` is float16 on a GPU and bfloat16 on the CPU, where float16 products are slow.
    """
    if not settings.use_mixed_precision:
        return None
    chosen = settings.mixed_precision_dtype
    if chosen == "auto":
        chosen = "float16" if device.type == "cuda" else "bfloat16"
    return torch.float16 if chosen == "float16" else torch.bfloat16


def resolve_device(kind: str, local_rank: int = 0) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`."""
    has_gpu = torch.cuda.is_available()
    if kind == "cuda" and not has_gpu:
        raise ConfigError(
            "training.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu', or install a "
            "CUDA build of torch"
        )
    if kind == "cpu" or not has_gpu:
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


class Precision:
    """The data type and the device of a training run.

    Attributes:
        autocast: The context for a forward pass and its loss.
        products: The context for a whole step, forward and backward, with fast products.
        scaler: The loss scaler; it does nothing unless the data type is float16.
    """

    def __init__(
        self, dtype: torch.dtype | None, device: torch.device, *, compiled: bool = False
    ) -> None:
        self.dtype, self.device = dtype, device
        self.autocast: AbstractContextManager[object] = nullcontext()
        if dtype is not None:
            self.autocast = torch.autocast(device.type, dtype=dtype)
        # torch.compile chooses the products of a compiled model.
        self.products = products_in(None if compiled else dtype, device)
        self.scaler = GradScaler(device.type, enabled=dtype is torch.float16)

    @property
    def name(self) -> str:
        """Short name: `fp32`, `fp16` or `bf16`."""
        return PRECISION_NAMES[self.dtype]

    @property
    def loss_scale(self) -> float | None:
        """The current loss scale; None without a scaler."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

    def state(self) -> dict[str, float]:
        return self.scaler.state_dict()

    def restore(self, state: dict[str, float]) -> None:
        if self.scaler.is_enabled() and state:
            self.scaler.load_state_dict(state)


def variant_name(options: OptimizationsConfig, precision: str) -> str:
    """Return the run's variant: the precision, and the optimizations that are not the default."""
    parts = [precision]
    parts += ["+tf32"] if options.use_tf32 and torch.cuda.is_available() else []
    parts += ["+ckpt"] if options.use_gradient_checkpointing else []
    parts += ["+compile"] if options.torch_compile else []
    parts += [] if options.enable_memory_cleanup else ["-cleanup"]
    return "".join(parts)


def apply_tf32(*, enabled: bool) -> None:
    """Choose TF32 or full float32 for matrix products and convolutions on NVIDIA GPUs.

    torch 2.9 deprecated `allow_tf32` in favour of `fp32_precision`. Using both raises an error, so
    Clew uses only `fp32_precision`.
    """
    if not torch.cuda.is_available():
        return
    precision = "tf32" if enabled else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]
