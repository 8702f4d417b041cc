"""`clew.train` and `clew.plan`: a configuration in, a finished run or a memory plan out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field

from clew import names
from clew.api.arguments import checked
from clew.api.models import Model, load, reference_of
from clew.config.load import from_mapping
from clew.config.load import load as load_config
from clew.config.schema import RunConfig
from clew.files import working_folder
from clew.runs.reading.runs import download_artifact
from clew.workflows.leave_one_out import leaves_one_out, train_each_group
from clew.workflows.planning.plan import MemoryPlan
from clew.workflows.planning.plan import plan as plan_memory
from clew.workflows.train import train as train_once

Configuration = str | Path | Mapping[str, object] | RunConfig
"""Name of a preset, a YAML file, its content as a dictionary, or a checked configuration."""


@dataclass(frozen=True)
class Run:
    """A finished training run."""

    run_id: str | None
    """Its id in the tracking store; None where the store did not answer, or in a process of a
    distributed training that does not record."""
    variant: str
    """Precision and optimizations in short, for example `bf16+ckpt`."""
    metrics: dict[str, float] = field(repr=False)
    """Last value of each metric, for example `metrics["test/mrr"]`."""

    @cached_property
    def history(self) -> pd.DataFrame:
        """Every value of every metric, in the order of recording.

        A row has the columns `key`, `value`, `step` (optimizer steps done), `epoch` and
        `elapsed_seconds` (since training began).

        Raises:
            UsageError: the run was not recorded, or the store does not answer.
        """
        with working_folder("history") as folder:
            path = download_artifact(reference_of(self), names.ARTIFACT_HISTORY, folder)
            return pd.read_parquet(path)

    def load(self) -> Model:
        """Return the model at its best checkpoint.

        Raises:
            UsageError: the run was not recorded, or has no best checkpoint.
        """
        return load(reference_of(self))


@checked
def train(
    config: Configuration,
    *,
    epochs: int | None = None,
    overrides: Mapping[str, object] | None = None,
    output_dir: str | Path | None = None,
) -> Run:
    """Train a model, evaluate it, and record both as a run.

    Args:
        config: What to train: the name of a preset such as `umls`, a YAML file, its content as a
            dictionary, or a `RunConfig`.
        epochs: Passes over the training data; None: as configured.
        overrides: Other settings to change, `section.key` to value, for example
            `{"training.seed": 3}`.
        output_dir: New folder that gets the configuration and all checkpoints too.

    Raises:
        UsageError: configuration, data or tracking store cannot be used; nothing was trained.
        ProtectedStop: stopped to protect the result, for example because the loss became NaN.
        Interrupted: stopped by the user; the last checkpoint is kept.
    """
    given = dict(overrides or {})
    if epochs is not None:
        given["training.num_epochs"] = epochs
    settings = read_configuration(config, given)
    run = train_each_group if leaves_one_out(settings) else train_once
    result = run(settings, output_dir=None if output_dir is None else Path(output_dir))
    return Run(result.run_id, result.variant, result.metrics)


@checked
def plan(
    config: Configuration,
    *,
    device: str | None = None,
    memory_gib: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None,
    overrides: Mapping[str, object] | None = None,
) -> MemoryPlan:
    """Predict the memory that training takes, part by part, and the largest batch that fits.

    Nothing is trained. `print(plan.table())` shows the result; `plan.variants` holds it.

    Args:
        config: As for `train`.
        device: Where it would run: `cpu`, `cuda`, or a GPU that need not be here, such as
            `H100 80GB`; None: as configured.
        memory_gib: Memory to fit into, in GiB; None: what the device has.
        overrides: Settings to change, `section.key` to value.

    Raises:
        ConfigError: the configuration is wrong, or the device is not known.
        DataError: the data cannot be read.
    """
    return plan_memory(
        read_configuration(config, overrides or {}), device=device, memory_gib=memory_gib
    )


def read_configuration(config: Configuration, overrides: Mapping[str, object]) -> RunConfig:
    """Return the checked configuration with the overrides applied."""
    if isinstance(config, str | Path):
        return load_config(config, overrides)
    content = config.model_dump(mode="json") if isinstance(config, RunConfig) else config
    return from_mapping(content, overrides)
