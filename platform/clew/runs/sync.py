"""Sends what earlier processes could not: `clew sync`."""

import logging
from dataclasses import dataclass
from pathlib import Path

from clew.runs import store
from clew.errors import TrackingError
from clew.runs.delivery import Delivery
from clew.runs.opening import connect
from clew.runs.spool import Spool, list_spools

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncResult:
    """What became of one run's spool."""

    folder: Path
    run_id: str
    tracking_uri: str
    num_sent: int = 0
    num_refused: int = 0
    problem: str | None = None
    """Why the spool is still there, if it is."""


def sync_spool(root: Path | None = None) -> list[SyncResult]:
    """Send what waits in every spool under `root`, and end runs whose process died.

    A spool that is sent is removed; one whose process is alive is left alone.
    """
    return [_sync_one(folder) for folder in list_spools(root or store.spool_root())]


def _sync_one(folder: Path) -> SyncResult:
    try:
        spool = Spool.open(folder)
    except TrackingError as error:
        return SyncResult(folder, folder.name, "", problem=str(error))
    origin = spool.origin
    sent, problem = 0, None
    try:
        delivery = Delivery(connect(origin.tracking_uri), spool)
        sent = delivery.send_waiting()
        delivery.end_abandoned()
    except Exception as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        logger.info("%s: %s", folder, problem)
    refused = spool.num_refused
    if refused and problem is None:
        problem = f"the store refused {refused} messages; see {folder / 'refused.jsonl'}"
    spool.close()
    return SyncResult(folder, origin.run_id, origin.tracking_uri, sent, refused, problem)
