"""`clew.train`, `clew.plan` and `clew.tune`: a configuration in, a run, a plan or a search out."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import pandas as pd
from pydantic import ConfigDict, Field, ValidationError, validate_call

from clew import names
from clew.api.models import Model, load, reference_of
from clew.config.load import from_mapping
from clew.config.load import load as load_config
from clew.config.schema import RunConfig
from clew.errors import ConfigError, quoted, reason_of
from clew.files import working_folder
from clew.runs.reading.runs import download_artifact
from clew.workflows.leave_one_out import leaves_one_out, train_each_group
from clew.workflows.planning.plan import MemoryPlan
from clew.workflows.planning.plan import plan as plan_memory
from clew.workflows.train import train as train_once

P = ParamSpec("P")
R = TypeVar("R")
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


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses arguments of wrong types in one line.

    Raises:
        ConfigError: an argument is not what the signature says; nothing was done.
    """
    signature = inspect.signature(function)
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        try:
            return validated(**given)  # type: ignore[call-arg]
        except ValidationError as error:
            if error.title != function.__name__:  # it comes from within
                raise
            problem, *others = error.errors()
            name = str(problem["loc"][0])
            expected = reason_of(problem)
            if any(other["loc"][0] == name for other in others):  # none of several types
                annotation = inspect.formatannotation(signature.parameters[name].annotation)
                expected = "expected " + re.sub(r"(\w+\.)+", "", annotation)
            elif len(problem["loc"]) > 1:  # something in it
                raise ConfigError(f"{name}: {quoted(problem['input'])} given; {expected}") from None
            raise ConfigError(f"{name} is {quoted(given[name])}; {expected}") from None

    return call


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


@dataclass(frozen=True)
class Search:
    """What a search found so far."""

    run_id: str
    """Its id in the tracking store; the trials are parts of this run."""
    metric: str
    """The validation metric that chose, for example `valid/mrr`."""
    value: float
    """What the best trial reached."""
    best_run_id: str
    """Run of the best trial."""
    settings: Mapping[str, object]
    """The best trial's settings, `section.key` to value."""
    config: Path
    """The best configuration as YAML: `clew.train(search.config)` trains it."""
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
) -> Search:
    """Search for the best configuration by the validation metric; called again, it goes on.

    No trial is evaluated on the test split.

    Args:
        config: What the trials have in common, as for `train`.
        space: YAML file, or the name of a space that ships with Clew; empty: the one for this kind
            of data.
        minutes: Time for this call; then the running trial is stopped.
        trials: Stop after so many trials in all, those of earlier calls included.
        seed: Seed of the search; `training.seed` is that of the trainings.
        overrides: Settings to change, `section.key` to value.
        output_dir: Folder that keeps the trials and the best configuration; None: in `runs/tune`.

    Raises:
        UsageError: configuration, space, data or tracking store cannot be used, or no trial was
            completed in time.
        Interrupted: stopped by the user; the trials that ended are kept.
    """
    # Only who searches waits for Optuna's import.
    from clew.workflows.tuning.report import TRIALS_FILE
    from clew.workflows.tuning.search import TuneRequest
    from clew.workflows.tuning.tune import tune as search

    result = search(
        TuneRequest(
            read_configuration(config, overrides or {}),
            space=str(space),
            minutes=minutes,
            trials=trials,
            seed=seed,
            output_dir=Path(output_dir) if output_dir is not None else None,
        )
    )
    best = result.best
    assert best.value is not None
    return Search(
        result.run_id,
        result.metric,
        best.value,
        best.run_id,
        best.settings,
        result.best_file,
        pd.read_csv(result.folder / TRIALS_FILE),
    )


def read_configuration(config: Configuration, overrides: Mapping[str, object]) -> RunConfig:
    """Return the checked configuration with the overrides applied."""
    if isinstance(config, str | Path):
        return load_config(config, overrides)
    content = config.model_dump(mode="json") if isinstance(config, RunConfig) else config
    return from_mapping(content, overrides)
