"""The flat flags of the command line and of MLproject, and the configuration key behind each.

`clew train --batch-size 512` and `mlflow run . -e train -P batch_size=512` both set
`training.batch_size`. The command line is generated from this table, MLproject is checked
against it.
"""

from collections.abc import Mapping

TRAIN_FLAGS: dict[str, str] = {
    "train": "data.train",
    "valid": "data.valid",
    "test": "data.test",
    "entity_to_id": "data.entity_to_id",
    "relation_to_id": "data.relation_to_id",
    "use_mixed_precision": "optimizations.use_mixed_precision",
    "use_gradient_checkpointing": "optimizations.use_gradient_checkpointing",
    "enable_memory_cleanup": "optimizations.enable_memory_cleanup",
    "torch_compile": "optimizations.torch_compile",
    "torch_compile_mode": "optimizations.torch_compile_mode",
    "batch_size": "training.batch_size",
    "num_epochs": "training.num_epochs",
    "learning_rate": "optimizer.learning_rate",
    "embedding_dim": "model.embedding_dim",
    "output_channels": "model.output_channels",
    "label_smoothing": "loss.label_smoothing",
    "num_workers": "training.num_workers",
    "gradient_accumulation": "training.gradient_accumulation",
    "max_grad_norm": "training.max_grad_norm",
    "checkpoint_frequency": "training.checkpoint_frequency",
    "temporal_frames": "data.temporal_frames",
    "seed": "training.seed",
}
"""Flag of `train` to configuration key."""

INFLUENCE_FLAGS: dict[str, str] = {
    name: f"influence.{name}"
    for name in (
        "top_k",
        "batch_size",
        "use_mixed_precision",
        "use_gradient_checkpointing",
        "enable_memory_cleanup",
        "use_last_layers_only",
        "num_last_layers",
    )
}
"""Flag of `tracin` to configuration key."""

FILTER_FLAGS: dict[str, str] = {
    name: f"influence.{name}" for name in ("n_hops", "min_degree", "strict_path_filtering")
}
"""Further flags of `batch_tracin` to configuration key."""

BOOLEAN_FLAGS = frozenset(
    {
        "use_mixed_precision",
        "use_gradient_checkpointing",
        "enable_memory_cleanup",
        "torch_compile",
        "use_last_layers_only",
        "strict_path_filtering",
    }
)
"""Flags that mean `true` when they stand alone."""


def overrides_from_flags(
    flags: Mapping[str, str | None], keys: Mapping[str, str] = TRAIN_FLAGS
) -> dict[str, str]:
    """Return the configuration overrides for the flags that were given; empty means unset."""
    return {keys[name]: value for name, value in flags.items() if value}
