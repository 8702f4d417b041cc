"""The next promotion ends one that died, whatever happened to its training run."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from clew import names
from clew.runs.registry import Registry
from clew.workflows import promote
from tests.recorded import Recorded


@pytest.mark.parametrize("source", ["0" * 32, ""], ids=["deleted for good", "never said"])
def test_the_training_run_may_be_gone(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    store = recorded.copy(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    client = MlflowClient(store.uri)
    tags = {names.TAG_KIND: names.KIND_PROMOTE} | ({names.TAG_SOURCE_RUN: source} if source else {})
    left = client.create_run("1", tags=tags).info.run_id
    client.set_terminated(left, "FAILED")
    promote._end_dead_promotions(Registry())
    ended = client.get_run(left)
    assert ended.info.status == "KILLED"
    assert ended.data.tags[names.TAG_DECISION] == promote.CUT_OFF


def test_what_somebody_else_left_and_may_not_be_changed_stops_nobody(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = recorded.copy(tmp_path / "store")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    client = MlflowClient(store.uri)
    left = [
        client.create_run("1", tags={names.TAG_KIND: names.KIND_PROMOTE}).info.run_id
        for _ in range(2)
    ]
    for run_id in left:
        client.set_terminated(run_id, "FAILED")
    update = MlflowClient.update_run

    def refuse_one(self: MlflowClient, run_id: str, **values: str) -> None:
        if run_id == left[0]:
            raise MlflowException("Permission denied", PERMISSION_DENIED)
        update(self, run_id, **values)

    monkeypatch.setattr(MlflowClient, "update_run", refuse_one)
    promote._end_dead_promotions(Registry())
    assert [client.get_run(run_id).info.status for run_id in left] == ["FAILED", "KILLED"]
