"""`clew.tune`: search for the best configuration within a budget of time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import Field

from clew.api.arguments import checked
from clew.api.training import Configuration, read_configuration


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
