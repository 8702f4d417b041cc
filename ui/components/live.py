"""What is running now: the progress of each run, refreshed while any run is alive."""

import time

import streamlit as st

from clew import names
from clew.ui.components import glossary, markup, states
from clew.ui.components.runs_table import seconds_text
from clew.ui.data.runs import (
    EpochProgress,
    RunRecord,
    headline_key,
    last_heartbeat,
    last_sign_of_life,
    live_runs,
    number_text,
    progress,
    state_of,
)

SECONDS_BETWEEN = 5
MAX_SHOWN = 8


def section(experiment_ids: tuple[str, ...]) -> None:
    """Show the runs that are marked as running; nothing if there are none."""
    runs = live_runs(experiment_ids)
    if not runs:
        return
    st.header("Now", anchor=False)
    alive = any(state_of(run) == "running" for run in runs)
    known = frozenset(run.run_id for run in runs)
    st.fragment(_runs, run_every=SECONDS_BETWEEN if alive else None)(experiment_ids, known)


def _runs(experiment_ids: tuple[str, ...], known: frozenset[str]) -> None:
    """Show the runs; once one of the `known` runs has ended, reload the whole page."""
    with states.guarded("The progress of runs"):
        runs = sorted(live_runs(experiment_ids), key=lambda run: state_of(run) == "stuck")
        if known - {run.run_id for run in runs}:
            st.rerun()
        for run in runs[:MAX_SHOWN]:
            _run(run)
        if len(runs) > MAX_SHOWN:
            st.caption(f"and {len(runs) - MAX_SHOWN} more")


def _run(run: RunRecord) -> None:
    done = progress(run)
    title = markup.fill(
        "<b>{name}</b> <span class='clew-muted clew-small'>{detail}</span>",
        name=run.name or run.run_id[:8],
        detail=_detail(run, done),
    )
    st.html(title)
    if state_of(run) == "stuck":
        _stuck(run)
        return
    if done is not None:
        left = done.seconds_left
        rest = f" · about {seconds_text(left)} to go" if left else ""
        st.progress(done.share, text=f"{done.share:.0%}{rest}")
    if last_heartbeat(run) is None:
        said = "last metric" if run.last_metric_ms else "started"
        ago = seconds_text(time.time() - last_sign_of_life(run))
        st.caption(f"{said} {ago} ago; it sends no heartbeats, so whether it is alive is not known")


def _stuck(run: RunRecord) -> None:
    """Warn that a run is silent, and show what to do.

    Only a training resumes from a checkpoint. A trial of a search keeps none; its search continues.
    """
    silent = seconds_text(time.time() - last_sign_of_life(run))
    said = f"Stuck: silent for {silent}. Its process has probably died"
    if run.tags.get(names.TAG_KIND) == names.KIND_TRAIN and names.TAG_TRIAL not in run.tags:
        command = f"clew train --resume {run.run_id}"
        states.warning(f"{said}; this command continues from its last checkpoint:", command=command)
    elif typed := run.tags.get(names.TAG_COMMAND):
        states.warning(f"{said}; start it again:", command=typed)
    else:
        states.warning(f"{said}.")


def _detail(run: RunRecord, done: EpochProgress | None) -> str:
    parts = [run.tags.get(names.TAG_VARIANT, ""), run.tags.get(names.TAG_DATASET, "")]
    if done is not None:
        parts.append(f"epoch {done.epochs:.3g} of {done.total_epochs:.3g}")
    key = headline_key(run)
    if key in run.metrics:
        parts.append(f"{glossary.words(key).label} {number_text(run.metrics[key])}")
    return " · ".join(part for part in parts if part)
