"""An MLflow server with accounts: a refusal names the user, or the permission that is missing."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from mlflow import MlflowClient

from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs import store
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import find_experiment, open_tracker
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.spool import list_spools
from tests.ports import free_port
from tests.runs.conftest import FAST
from tests.workflows.servers import process

pytestmark = pytest.mark.slow
ADMINISTRATOR, READER = ("admin", "of-the-administrator"), ("ada", "of-ada-herself")


def sign_in(patch: pytest.MonkeyPatch, user: str, password: str) -> None:
    patch.setenv("MLFLOW_TRACKING_USERNAME", user)
    patch.setenv("MLFLOW_TRACKING_PASSWORD", password)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, store_template: Path) -> Iterator[str]:
    """Start the server, with a user who may only read."""
    pytest.importorskip("flask_wtf")
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "mlflow.db").write_bytes(store_template.read_bytes())
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{folder}/accounts.db\n"
        f"admin_username = {ADMINISTRATOR[0]}\nadmin_password = {ADMINISTRATOR[1]}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "mlartifacts")]
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-the-server",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    uri = f"http://127.0.0.1:{port}"
    with (
        process(command, folder / "server.log", uri, **environment),
        pytest.MonkeyPatch.context() as patch,
    ):
        sign_in(patch, *ADMINISTRATOR)
        account = dict(zip(("username", "password"), READER, strict=True))
        users = f"{uri}/api/2.0/mlflow/users/create"
        requests.post(users, json=account, auth=ADMINISTRATOR, timeout=60).raise_for_status()
        find_experiment(MlflowClient(uri), "clew")
        yield uri


@pytest.fixture(autouse=True)
def in_use(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


def test_who_may_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, *READER)
    search_runs(RunQuery())
    with pytest.raises(TrackingError, match="403") as caught:
        open_tracker(TrackingConfig(), kind="train", pace=FAST)
    said = str(caught.value)
    assert "\n" not in said
    assert {"'ada'", "EDIT"} <= set(said.split())
    assert sync_spool() == []
    assert list_spools(store.spool_root()) == []


def test_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, READER[0], "guessed-by-somebody")
    with pytest.raises(TrackingError, match="401") as caught:
        open_tracker(TrackingConfig(), kind="train", pace=FAST)
    said = str(caught.value)
    assert "guessed" not in said
    assert {"'ada'", "MLFLOW_TRACKING_USERNAME"} <= set(said.split())


def test_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrackingError, match="401") as caught:
        search_runs(RunQuery())
    assert "MLFLOW_TRACKING_USERNAME" in str(caught.value).split()


def test_an_account_that_is_closed_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sign_in(monkeypatch, *ADMINISTRATOR)
    tracker = open_tracker(TrackingConfig(), kind="train", pace=FAST)
    tracker.flush()  # nothing is sent with the name of one and the password of the other
    sign_in(monkeypatch, *READER)
    tracker.metrics({"train/loss": 1.0}, 1)
    tracker.finish("FINISHED")
    assert "user 'ada' has no permission for this (403)" in caplog.text
    [result] = sync_spool()
    assert "user 'ada' has no permission for this (403)" in str(result.problem)
    sign_in(monkeypatch, *ADMINISTRATOR)
    [result] = sync_spool()
    assert result.problem is None
    assert MlflowClient().get_run(tracker.run_id).data.metrics == {"train/loss": 1.0}
