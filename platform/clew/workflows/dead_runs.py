"""Ends runs whose process died, and refuses to touch runs whose process is alive."""

import time
from contextlib import suppress

from clew import names
from clew.config.services import TrackingConfig
from clew.errors import Interrupted, TrackingError
from clew.runs import store
from clew.runs.forwarder import DIED
from clew.runs.journal import Journal, list_journals
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import (
    HEARTBEAT_LIMIT_SECONDS,
    RunRecord,
    find_run,
    last_heartbeat,
    last_sign_of_life,
    state_of,
)


def end_if_dead(run_id: str) -> None:
    """End a run whose process died, if the store has the run.

    Raises:
        TrackingError: The process of the run is alive.
    """
    try:
        run = find_run(run_id)
    except TrackingError:  # the folder may come from another machine, with another store
        return
    if run.status == "RUNNING":
        require_dead(run)
        # The records in its spool are sent first; its configuration may be one of them.
        kind = run.tags.get(names.TAG_KIND, names.KIND_TRAIN)
        with suppress(Interrupted), open_tracker(TrackingConfig(), kind=kind, run_id=run_id):
            raise Interrupted(DIED)


def require_dead(run: RunRecord) -> None:
    """Refuse a run whose process is alive.

    A process of this machine is alive if it holds the lock of the run's spool. If there is no spool
    here, the last sign of life in the store decides.
    """
    folder = store.spool_root() / run.run_id
    if folder in list_journals(folder.parent):
        Journal.open(folder).close(keep=True)
    elif last_heartbeat(run) is None:
        raise TrackingError(
            f"run {run.run_id} is marked as running and sent no heartbeat, so nobody knows whether "
            "it is alive; if it is not, run `clew sync` where it ran, or end it: MlflowClient()."
            f"set_terminated({run.run_id!r}, 'KILLED')"
        )
    elif state_of(run) == "running":
        silent = time.time() - last_sign_of_life(run)
        raise TrackingError(
            f"run {run.run_id} was alive {silent:.0f} s ago, on another machine or with another "
            "spool folder; wait until it ends; if its process was killed, wait until it has been "
            f"silent for {HEARTBEAT_LIMIT_SECONDS:.0f} s"
        )
