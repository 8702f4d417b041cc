"""A server behind a proxy that fails every third change: nothing is lost or duplicated."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew import names
from clew.runs import store
from clew.runs.delivery import sync_spool
from clew.runs.spool import list_spools
from tests.attack.faulty_proxy import FAULTS, Fault, FaultyProxy, faulty_proxy
from tests.workflows.test_tracking_server import (
    Server,
    everything_is_there,
    keep_checkpoint,
    server,
    start_run,
    train,
)

__all__ = ["server"]

pytestmark = pytest.mark.slow

MOST_SYNCS = 40
"""Each sync sends at least one message, and fewer messages remain when a run ends."""


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.uri) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
        monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
        monkeypatch.setattr(store, "PROBE_SECONDS", 5.0)
        monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
        yield proxy


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_or_doubled(
    proxy: FaultyProxy,
    fault: Fault,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracker = start_run(run_name=fault)
    # Only from here on, and only for answers that never come: a busy machine may need a second.
    if fault == "hang":
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    proxy.fault = fault
    for epoch in (1, 2):
        train(tracker, 100 * (epoch - 1), 100 * epoch)
        keep_checkpoint(tracker, tmp_path, epoch)
        tracker.flush()
    tracker.finish("FINISHED")
    for _ in range(MOST_SYNCS):
        if not list_spools(store.spool_root()):
            break
        sync_spool()
    assert proxy.num_faults > 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    everything_is_there(tracker.run_id, steps=200, epochs=[1, 2], folder=tmp_path)
    kept = MlflowClient().get_run(tracker.run_id)
    assert kept.info.status == "FINISHED"
    assert kept.data.tags[names.TAG_KIND] == "train"
