"""What is running now: progress of each run, renewed by itself while any is alive."""

import time

import streamlit as st

from clew import names
from ui.components import glossary, markup, states
from ui.components.runs_table import seconds_text
from ui.data.comparison import number_text
from ui.data.runs import (
    RunRecord,
    headline_key,
    last_sign_of_life,
    live_runs,
    progress_of,
    state_of,
)

SECONDS_BETWEEN = 5
MAX_SHOWN = 8


def section(experiment_ids: tuple[str, ...]) -> None:
    """Show the runs that say they are running; nothing if none does."""
    runs = live_runs(experiment_ids)
    if not runs:
        return
    st.subheader("Now", anchor=False)
    alive = any(state_of(run) == "running" for run in runs)
    st.fragment(_runs, run_every=SECONDS_BETWEEN if alive else None)(experiment_ids)


def _runs(experiment_ids: tuple[str, ...]) -> None:
    with states.guarded("The progress of runs"):
        runs = sorted(live_runs(experiment_ids), key=lambda run: state_of(run) == "stuck")
        for run in runs[:MAX_SHOWN]:
            _run(run)
        if len(runs) > MAX_SHOWN:
            st.caption(f"and {len(runs) - MAX_SHOWN} more")


def _run(run: RunRecord) -> None:
    title = markup.fill(
        "<b>{name}</b> <span class='clew-muted clew-small'>{detail}</span>",
        name=run.name or run.run_id[:8],
        detail=_detail(run),
    )
    st.html(title)
    if state_of(run) == "stuck":
        silent = seconds_text(time.time() - last_sign_of_life(run))
        states.warning(
            f"Stuck: silent for {silent}. Its process has probably died; this goes on from its "
            "last checkpoint:",
            command=f"clew train --resume {run.run_id}",
        )
        return
    share = progress_of(run)
    if share is not None:
        st.progress(share, text=f"{share:.0%}{_remaining(run, share)}")


def _detail(run: RunRecord) -> str:
    parts = [run.tags.get(names.TAG_VARIANT, ""), run.tags.get(names.TAG_DATASET, "")]
    epoch = run.metrics.get(names.TRAIN_EPOCH)
    if epoch is not None:
        total = run.params.get(f"{names.PARAMETER_PREFIX}training.num_epochs", "?")
        parts.append(f"epoch {epoch:.0f} of {total}")
    key = headline_key(run)
    if key in run.metrics:
        parts.append(f"{glossary.words(key).label} {number_text(run.metrics[key])}")
    return " · ".join(part for part in parts if part)


def _remaining(run: RunRecord, share: float) -> str:
    """Return how long the rest takes at the pace so far."""
    if not 0 < share < 1:
        return ""
    passed = time.time() - run.started_ms / 1000
    return f" · about {seconds_text(passed / share * (1 - share))} to go"
