"""`clew.train`, `clew.plan` and `clew.tune`: train a model, plan its memory, tune its settings."""

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
from clew.config.load import from_mapping, full_settings
from clew.config.load import load as load_config
from clew.config.schema import RunConfig
from clew.files import working_folder
from clew.runs.reading.runs import download_artifact
from clew.spreadsheets import restored
from clew.workflows.plan import MemoryPlan
from clew.workflows.plan import plan as plan_memory
from clew.workflows.train import train as train_once

Configuration = str | Path | Mapping[str, object] | RunConfig
"""Name of a preset, a YAML file, a dictionary with the content of one, or a `RunConfig`."""


@dataclass(frozen=True)
class Run:
    """A finished training run."""

    run_id: str | None
    """The run's id in the tracking store; None if the store did not answer, or in a process of a
    distributed training that does not record."""
    variant: str
    """Short form of precision and optimizations, for example `bf16+ckpt`."""
    metrics: dict[str, float] = field(repr=False)
    """Last value of each metric, for example `metrics["test/mrr"]`."""

    @cached_property
    def history(self) -> pd.DataFrame:
        """All recorded values of all metrics, in the order of recording.

        The columns are `key`, `value`, `step` (number of optimizer steps), `epoch` and
        `elapsed_seconds` (since training began).

        Raises:
            UsageError: If the run was not recorded, or the store does not answer.
        """
        with working_folder("history") as folder:
            path = download_artifact(reference_of(self), names.ARTIFACT_HISTORY, folder)
            return pd.read_parquet(path)

    def load(self) -> Model:
        """Return the model of the run's best checkpoint.

        Raises:
            UsageError: If the run was not recorded, or has no best checkpoint.
        """
        return load(reference_of(self))


@checked
def train(
    config: Configuration,
    *,
    epochs: int | None = None,
    overrides: Mapping[str, object] | None = None,
    output_dir: str | Path | None = None,
    **settings: object,
) -> Run:
    """Train a model, evaluate it, and record both as a run.

    Args:
        config: The name of a preset such as `umls`, a YAML file, a dictionary with the content of
            one, or a `RunConfig`.
        epochs: Number of passes over the training data; None: as configured.
        overrides: Other settings to change, `section.key` to value, for example
            `{"training.seed": 3}`.
        output_dir: New folder to which the configuration and all checkpoints are also written.
        settings: More settings by their short names, such as `batch_size=256, lr=0.01`.

    Raises:
        UsageError: If the configuration, the data or the tracking store cannot be used; nothing was
            trained.
        ProtectedStop: If training stopped to protect the result, for example because the loss
            became NaN.
        Interrupted: If the user stopped the training; the last checkpoint is kept.
    """
    given = settings | ({} if epochs is None else {"epochs": epochs})
    result = train_once(
        read_configuration(config, overrides, given),
        output_dir=None if output_dir is None else Path(output_dir),
    )
    return Run(result.run_id, result.variant, result.metrics)


@checked
def plan(
    config: Configuration,
    *,
    device: str | None = None,
    memory_gib: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None,
    overrides: Mapping[str, object] | None = None,
    **settings: object,
) -> MemoryPlan:
    """Predict the memory that each part of training needs, and the largest batch that fits.

    Nothing is trained. `print(plan.table())` shows the result; `plan.variants` contains it.

    Args:
        config: The configuration, as for `train`.
        device: Device to plan for: `cpu`, `cuda`, or a GPU by name, such as `H100 80GB`, which this
            machine does not need to have; None: as configured.
        memory_gib: Available memory in GiB; None: the memory of the device.
        overrides: Settings to change, `section.key` to value.
        settings: More settings by their short names, as for `train`.

    Raises:
        ConfigError: If the configuration is invalid, or the device is unknown.
        DataError: If the data cannot be read.
    """
    chosen = read_configuration(config, overrides, settings)
    return plan_memory(chosen, device=device, memory_gib=memory_gib)


@dataclass(frozen=True)
class Search:
    """The result of a hyperparameter search."""

    run_id: str
    """The search's run id in the tracking store; the trials are child runs of this run."""
    metric: str
    """The validation metric by which trials are compared, for example `valid/mrr`."""
    value: float
    """The metric's value in the best trial."""
    best_run_id: str
    """Run id of the best trial."""
    settings: Mapping[str, object]
    """Settings of the best trial, `section.key` to value."""
    config: Path
    """YAML file of the best configuration; `clew.train(search.config)` trains it."""
    trials: pd.DataFrame = field(repr=False)
    """One row for each trial, one column for each setting."""


@checked
def tune(
    config: Configuration,
    *,
    space: str | Path = "",
    minutes: Annotated[float, Field(gt=0)] = 60.0,
    trials: Annotated[int | None, Field(ge=1)] = None,
    seed: Annotated[int, Field(ge=0)] = 0,
    overrides: Mapping[str, object] | None = None,
    output_dir: str | Path | None = None,
    **settings: object,
) -> Search:
    """Search for the best configuration by the validation metric; another call continues it.

    No trial is evaluated on the test split.

    Args:
        config: The configuration that the trials share, as for `train`.
        space: YAML file, or the name of a space that ships with Clew; empty: the space for this
            kind of data.
        minutes: Time for this call; after it, the running trial is stopped.
        trials: Stop after this total number of trials, including those of earlier calls.
        seed: Seed of the search; `training.seed` is the seed of training.
        overrides: Settings to change, `section.key` to value.
        output_dir: Folder for the trials and the best configuration; None: in `runs/tune`.
        settings: More settings by their short names, as for `train`.

    Raises:
        UsageError: If the configuration, the space, the data or the tracking store cannot be used,
            or no trial was completed in time.
        Interrupted: If the user stopped the search; finished trials are kept.
    """
    # Imported here because the import of Optuna is slow.
    from clew.workflows.tune import TuneRequest
    from clew.workflows.tune import tune as search

    chosen = read_configuration(config, overrides, settings)
    place = Path(output_dir) if output_dir is not None else None
    request = TuneRequest(
        config=chosen, space=str(space), minutes=minutes, trials=trials, seed=seed, output_dir=place
    )
    result = search(request)
    best, rows = result.best, pd.read_csv(result.folder / names.TRIALS_CSV)
    assert best.value is not None
    rows = rows.map(lambda cell: restored(cell) if isinstance(cell, str) else cell)
    return Search(
        result.run_id, result.metric, best.value, best.run_id, best.settings, result.best_file, rows
    )


def read_configuration(
    config: Configuration, overrides: Mapping[str, object] | None, settings: Mapping[str, object]
) -> RunConfig:
    """Return the checked configuration with the overrides and settings applied."""
    changed = full_settings({**(overrides or {}), **settings})
    if isinstance(config, str | Path):
        return load_config(config, changed)
    content = config.model_dump(mode="json") if isinstance(config, RunConfig) else config
    return from_mapping(content, changed)
