"""A job in the page: its state, its output, and a button to cancel it."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from clew.errors import ClewError
from clew.ui import access
from clew.ui.components import markup, states
from clew.ui.components.runs_table import seconds_text
from clew.ui.data.jobs import Job, find

SECONDS_BETWEEN = 0.5
SECONDS_AT_FIRST = 1.0
TAIL_LINES = 30
ICONS = {"running": "▶", "done": "✓", "refused": "✗", "failed": "✗", "cancelled": "■"}

Show = Callable[[Job], None]


def show(job_id: str, *, progress: Show | None = None, result: Show | None = None) -> None:
    """Show a job, and refresh it while it runs.

    Args:
        job_id: The job; if the server does not have it (any more), a note is shown.
        progress: Shows the output so far.
        result: Shows the result, once the job has ended.
    """
    job = find(job_id)
    if job is None:
        states.note("This dashboard no longer knows that command; start it again.")
        return
    if job.state == "running" and job.seconds < SECONDS_AT_FIRST:
        job.wait(SECONDS_AT_FIRST)  # most jobs have ended by then, and need no refresh
    running = job.state == "running"

    def body() -> None:
        with states.guarded("The command"):
            _body(job, progress)
        if running and job.state != "running":
            st.rerun()

    st.fragment(body, run_every=SECONDS_BETWEEN if running else None)()
    if not running and result is not None:
        with states.guarded("The result"):
            result(job)


def _body(job: Job, progress: Show | None) -> None:
    state = job.state
    line = f"{ICONS[state]} **{markup.markdown(job.title)}** · {state}"
    if who := job.cancelled_by or job.person:
        line += f" by {markup.markdown(who)}" if job.cancelled_by else f", {markup.markdown(who)}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"{line} · {seconds_text(job.seconds)}" if state == "running" else line)
        if state == "running":
            st.button(
                "Cancel",
                key=f"cancel-{job.job_id}",
                disabled=not access.may(job.action),
                on_click=_cancel,
                args=(job,),
            )
    if state == "running":
        st.progress(_share(job.events()), text=_last_line(job))
    if progress is not None:
        progress(job)
    if state in {"failed", "refused"}:
        st.error(markup.markdown(job.message() or f"It ended with exit code {job.exit_code}."))
    _log(job)


def _cancel(job: Job) -> None:
    try:
        job.cancel()
    except ClewError as error:
        st.toast(markup.markdown(str(error)), icon="⚠️")


def _share(events: list[dict[str, Any]]) -> float:
    """Return the share that is done, if the command reports it, else a small share."""
    for event in reversed(events):
        done, total = event.get("done"), event.get("total")
        if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
            return max(0.0, min(1.0, done / total))
    return 0.05


def _last_line(job: Job) -> str:
    lines = [line for line in job.log().replace("\r", "\n").splitlines() if line.strip()]
    return markup.markdown(lines[-1][:200]) if lines else "working …"


def _log(job: Job) -> None:
    text = job.log().replace("\r", "\n").strip()
    if text:
        with st.expander("Its messages"):
            st.code("\n".join(text.splitlines()[-TAIL_LINES:]), language=None, wrap_lines=True)
