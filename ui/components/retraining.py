"""Training again without the facts marked wrong: which run, and what it changed."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from clew.ui import access
from clew.ui.components import address, glossary, job_view, links, states
from clew.ui.components.influence_controls import run_labels
from clew.ui.data import jobs
from clew.ui.data.jobs import Job
from clew.ui.data.retraining import before_and_after
from clew.ui.data.runs import RunRecord, number_text, runs_by_id

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
        address.write(key, value)
    st.rerun()


def outcome() -> None:
    """Show the training that the address names, if it names one, and then both runs' metrics."""
    job_id, after = address.text("training"), address.text("after")
    if not (job_id or after):
        return
    st.header("Trained again", anchor=False)
    if after and jobs.find(job_id) is None:
        _compare(after)
    else:
        job_view.show(job_id, progress=_working, result=_finished)


def _working(job: Job) -> None:
    if job.state == "running":
        links.to("overview", "Its progress")


def _finished(job: Job) -> None:
    if job.state == "done":
        address.write("after", job.run_id())
        _compare(job.run_id())


def _compare(after_id: str) -> None:
    """Show the test metrics of the address's run, and of its repetition without some facts."""
    found = runs_by_id([address.text("before"), after_id])
    if len(found) < 2:
        states.note("One of the two runs is not in the store any more.")
        return
    before, after = found
    measured = before_and_after(before, after)
    if measured.empty:
        states.note("The two runs have no test metric in common.")
    else:
        st.dataframe(frame(measured), alt="Test metrics before and after", hide_index=True)
        states.note(NOISE)
    with st.container(horizontal=True):
        both = f"{before.run_id},{after.run_id}"
        links.to("compare", "Compare both runs", runs=both, ref=before.run_id)
        links.to("run", "The new run", id=after.run_id)


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
