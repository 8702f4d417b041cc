"""Train a run's configuration again without the facts marked wrong, and compare the metrics."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from clew import names
from clew.config.load import from_mapping
from clew.errors import DataError, described
from clew.files import write_whole
from clew.folders import expanded
from clew.runs import store
from clew.runs.reading.reviews import OfRun
from clew.runs.reading.runs import read_config, started_in
from clew.spreadsheets import FactList
from clew.ui import access
from clew.ui.data import jobs
from clew.ui.data.jobs import Job
from clew.ui.data.runs import RunRecord, runs_by_id

FOLDER = Path("runs/left_out")
"""The folder of the lists, relative to the folder that commands run in."""
CONFIG_FILE = "config.yaml"
MEASURES = (names.MRR, *(names.hits_at(k) for k in (1, 3, 10)), names.MEAN_RANK)
SUFFIX = " without the facts marked wrong"
"""End of the names of such runs."""


def explained_runs(things: Iterable[OfRun], runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the trainings whose explanations were reviewed or decided on, the newest first.

    Args:
        things: The reviews or decisions.
        runs: The runs of these explanations.
    """
    sources = {run.run_id: run.tags.get(names.TAG_SOURCE_RUN, "") for run in runs}
    found = runs_by_id(sorted({sources[thing.run_id] for thing in things} - {""}))
    return sorted(found, key=lambda run: -run.started_ms)


def train_without(run: RunRecord, listed: str) -> Job:
    """Start training a run's configuration again without the facts of a list.

    The list stays in a file, because later commands on the new run read its data again.

    Args:
        run: The training to repeat.
        listed: The list, in the format of `data.exclude`.

    Raises:
        AccessError: The person may not train.
        TrackingError: The run keeps no configuration.
        ConfigError: This version of Clew cannot use the run's configuration.
        DataError: The run itself left facts out, and their list cannot be read.
        UsageError: Too many commands are running.
    """
    access.authorize("train")  # before the list is written
    config = read_config(run.run_id)
    data, tracking = (_section(run, config, name) for name in ("data", "tracking"))
    folder = started_in(run.run_id)
    for name in from_mapping(config).data.paths:
        data[name] = _where_it_was(data.get(name), folder)
    data["exclude"] = str(_kept(listed, data.get("exclude")))
    title = f"{(run.name or run.run_id[:8]).removesuffix(SUFFIX)}{SUFFIX}"
    tracking["run_name"] = title
    return jobs.jobs().start(
        ["train", f"--config={{folder}}/{CONFIG_FILE}"],
        title=f"Train {title}",
        action="train",
        files={CONFIG_FILE: yaml.safe_dump(config, sort_keys=False)},
    )


def _section(run: RunRecord, config: Mapping[str, object], name: str) -> dict[str, Any]:
    section = config.get(name)
    if not isinstance(section, dict):
        raise DataError(
            f"run {run.run_id}: its configuration has no section {name}; choose another run"
        )
    return section


def _where_it_was(path: str | None, folder: str) -> str | None:
    """Return a path of a run's data joined to the run's folder if that exists, else unchanged."""
    there = Path(folder) / expanded(path) if path and folder else None
    return str(there) if there and there.exists() else path


def _kept(listed: str, earlier: str | None) -> Path:
    """Write a list to a file named after its content, after the facts that were left out before.

    Only the earlier list keeps its lines about the data, because the new facts are from the same
    data without the earlier ones.
    """
    if earlier:
        before = FactList.parse(_earlier_list(earlier))
        listed = replace(before, facts=before.facts + FactList.parse(listed).facts).text()
    digest = hashlib.sha256(listed.encode()).hexdigest()[:12]
    path = store.project_root() / FOLDER / f"wrong_facts_{digest}.tsv"
    write_whole(path, listed)
    return path


def _earlier_list(path: str) -> str:
    try:
        return (store.project_root() / expanded(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: the facts that this run left out cannot be read ({described(error)}); put "
            "the list back, or repeat a run on all facts"
        ) from None


def before_and_after(before: RunRecord, after: RunRecord) -> pd.DataFrame:
    """Return the test metrics that two runs share: index is the key; columns `before`, `after`."""
    keys = (names.metric("test", name) for name in MEASURES)
    rows = {
        key: (before.metrics[key], after.metrics[key])
        for key in keys
        if key in before.metrics and key in after.metrics
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after"])
