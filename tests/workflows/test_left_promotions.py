"""The next promotion ends one that died, whatever happened to its training run."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

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
    promote._end_dead_promotions(Registry.connect())
    ended = client.get_run(left)
    assert ended.info.status == "KILLED"
    assert ended.data.tags[names.TAG_DECISION] == promote.CUT_OFF
