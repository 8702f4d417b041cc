"""Training again without the facts marked wrong: which run, and what it changed."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from clew import names
from clew.config.load import from_mapping
from clew.errors import DataError, described
from clew.files import expanded, write_whole
from clew.runs import store
from clew.runs.reading.metrics import number_text
from clew.runs.reading.reviews import Review
from clew.runs.reading.runs import RunRecord, read_config, started_in
from clew.spreadsheets import FactList
from clew.ui import access
from clew.ui.components import basics, glossary, jobs
from clew.ui.components.influence_controls import run_labels
from clew.ui.components.jobs import Job
from clew.ui.components.runs import runs_by_id
from clew.ui.work import Training

FOLDER = Path("runs/left_out")
"""The folder of the lists, relative to the folder that commands run in."""
MEASURES = (names.MRR, *(names.hits_at(k) for k in (1, 3, 10)), names.MEAN_RANK)
SUFFIX = " without the facts marked wrong"
"""End of the names of such runs."""


def explained_runs(reviews: Iterable[Review], runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the trainings whose explanations were reviewed, the newest first.

    Args:
        reviews: The reviews.
        runs: The runs of these explanations.
    """
    sources = {run.run_id: run.tags.get(names.TAG_SOURCE_RUN, "") for run in runs}
    found = runs_by_id(sorted({sources[review.run_id] for review in reviews} - {""}))
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
    return jobs.jobs().start(Training(config), title=f"Train {title}", action="train")


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


NOISE = (
    "One run each says little: another seed changes these numbers too. To be sure, train both "
    "with several seeds and compare those. In the ranks of the new run, the facts left out are no "
    "longer known answers."
)


def choose(runs: Sequence[RunRecord], *, key: str) -> RunRecord | None:
    """Let a person train one of these runs again; return it once they do."""
    labels = run_labels(runs)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = st.selectbox(
            "Training to repeat",
            list(labels),
            key=f"repeat-{key}",
            format_func=lambda run_id: labels[run_id],
            help="The models whose explanations were reviewed, the newest first.",
        )
        pressed = st.button(
            "Train again without these facts",
            key=f"train-{key}",
            disabled=not access.may("train"),
            help="Starts a training on this machine with the same configuration and seed; it takes "
            "about as long as the first one did.",
        )
    return next((run for run in runs if pressed and run.run_id == chosen), None)


def started(job: Job, run: RunRecord) -> None:
    """Put a training that repeats a run into the address, so that the page shows it."""
    for key, value in (("training", job.job_id), ("before", run.run_id), ("after", None)):
        basics.write_address(key, value)
    st.rerun()


def outcome() -> None:
    """Show the training that the address names, if it names one, and then both runs' metrics."""
    job_id, after = basics.address("training"), basics.address("after")
    if not (job_id or after):
        return
    st.header("Trained again", anchor=False)
    if after and jobs.find(job_id) is None:
        _compare(after)
    else:
        jobs.show(job_id, progress=_working, result=_finished)


def _working(job: Job) -> None:
    if job.state == "running":
        basics.link("overview", "Its progress")


def _finished(job: Job) -> None:
    if job.state == "done":
        basics.write_address("after", job.run_id())
        _compare(job.run_id())


def _compare(after_id: str) -> None:
    """Show the test metrics of the address's run, and of its repetition without some facts."""
    found = runs_by_id([basics.address("before"), after_id])
    if len(found) < 2:
        basics.note("One of the two runs is not in the store any more.")
        return
    before, after = found
    measured = before_and_after(before, after)
    if measured.empty:
        basics.note("The two runs have no test metric in common.")
    else:
        st.dataframe(frame(measured), alt="Test metrics before and after", hide_index=True)
        basics.note(NOISE)
    with st.container(horizontal=True):
        both = f"{before.run_id},{after.run_id}"
        basics.link("compare", "Compare both runs", runs=both, ref=before.run_id)
        basics.link("run", "The new run", id=after.run_id)


def frame(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics in a readable form."""
    changes = [float(change) for change in measured["after"] - measured["before"]]
    signs = ["+" if change > 0 else "−" if change < 0 else "" for change in changes]
    return pd.DataFrame(
        {
            "Metric": [glossary.label(str(key)) for key in measured.index],
            "Before": [number_text(value) for value in measured["before"]],
            "After": [number_text(value) for value in measured["after"]],
            "Change": [
                f"{sign}{number_text(abs(change), 3)}"
                for sign, change in zip(signs, changes, strict=True)
            ],
        }
    )
