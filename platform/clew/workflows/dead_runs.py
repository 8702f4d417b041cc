"""Runs whose process died: whoever touches one ends it first, and leaves a living one alone."""

import time

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs import store
from clew.runs.journal import Journal, list_journals
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import (
    HEARTBEAT_LIMIT_SECONDS,
    RunRecord,
    find_run,
    last_sign_of_life,
    state_of,
)


def end_if_dead(run_id: str) -> None:
    """End a run whose process died, if the store has it.

    Raises:
        TrackingError: it is alive.
    """
    try:
        run = find_run(run_id)
    except TrackingError:  # the folder may come from another machine, with another store
        return
    if run.status == "RUNNING":
        require_dead(run)
        # What it left in the spool is sent first; its configuration may be among that.
        kind = run.tags.get(names.TAG_KIND, names.KIND_TRAIN)
        open_tracker(TrackingConfig(), kind=kind, run_id=run_id).finish("KILLED")


def require_dead(run: RunRecord) -> None:
    """Refuse a run whose process is alive: it holds its spool here, or was heard of from elsewhere.

    A spool that nobody holds is a process of this machine that died, however lately.
    """
    folder = store.spool_root() / run.run_id
    if folder in list_journals(folder.parent):
        Journal.open(folder).close(keep=True)
    elif state_of(run) == "running":
        silent = time.time() - last_sign_of_life(run)
        raise TrackingError(
            f"run {run.run_id} was alive {silent:.0f} s ago, on another machine or with another "
            "spool folder; wait until it ends; if its process was killed, wait until it has been "
            f"silent for {HEARTBEAT_LIMIT_SECONDS:.0f} s"
        )
