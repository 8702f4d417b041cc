"""An MLflow server with accounts, which docs/deploy/accounts.py makes.

Who may train does so in one experiment, and a refusal names the user, or the permission that is
missing.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from clew.__main__ import run as run_command
from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs import store
from clew.runs.delivery import sync_spool
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.run_details import describe_run
from clew.runs.reading.runs import find_run
from clew.runs.reading.search import RunQuery, search_runs
from clew.runs.registry import Registry
from tests.ports import free_port
from tests.runs.conftest import FAST
from tests.workflows.servers import process

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SMALL = [
    "model.embedding_dim=16",
    "model.output_channels=4",
    "training.num_epochs=1",
    "training.device=cpu",
    "training.num_threads=1",
]


class Account(NamedTuple):
    user: str
    password: str
    may: str


ADMINISTRATOR = Account("admin", "of-the-administrator", "")
READER = Account("ada", "of-ada-herself", "read")
TRAINERS = Account("bob", "of-bob-himself", "train"), Account("cid", "of-cid-himself", "train")
DASHBOARD = Account("dashboard", "of-the-dashboard", "promote")
PROMOTER = Account("eve", "of-eve-herself", "promote")
ACCOUNTS = (READER, *TRAINERS, DASHBOARD, PROMOTER)


def sign_in(patch: pytest.MonkeyPatch, account: Account) -> None:
    patch.setenv("MLFLOW_TRACKING_USERNAME", account.user)
    patch.setenv("MLFLOW_TRACKING_PASSWORD", account.password)


def users(uri: str, what: str, account: Account, **given: str) -> requests.Response:
    """Ask the server something about its users, by its REST API."""
    version, method, sent = {
        "create": ("2.0", "POST", "json"),
        "update-password": ("2.0", "PATCH", "json"),
        "permissions/get": ("3.0", "GET", "params"),
    }[what]
    address = f"{uri}/api/{version}/mlflow/users/{what}"
    options = {"auth": (account.user, account.password), "timeout": 60, sent: given}
    return requests.request(method, address, **options)


def start_job(
    uri: str, *lines: str, administrator: Account = ADMINISTRATOR
) -> "subprocess.CompletedProcess[str]":
    """Run the job of the first start as compose.yaml does, with some lines of ACCOUNTS."""
    environment = {
        "ACCOUNTS": "\n".join(lines),
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_TRACKING_USERNAME": administrator.user,
        "MLFLOW_TRACKING_PASSWORD": administrator.password,
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
    }
    command = [sys.executable, "docs/deploy/accounts.py"]
    return subprocess.run(
        command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accounts")


@pytest.fixture(scope="module")
def address(folder: Path, store_template: Path) -> Iterator[str]:
    """Start the server, and make the accounts."""
    pytest.importorskip("flask_wtf")
    (folder / "mlflow.db").write_bytes(store_template.read_bytes())
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{folder}/accounts.db\n"
        f"admin_username = {ADMINISTRATOR.user}\nadmin_password = {ADMINISTRATOR.password}\n"
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
    with process(command, folder / "server.log", uri, **environment):
        done = start_job(uri, *map(" ".join, ACCOUNTS))
        assert done.returncode == 0, done.stderr
        yield uri


@pytest.fixture(autouse=True)
def in_use(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)


def test_who_may_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, READER)
    search_runs(RunQuery())
    with pytest.raises(TrackingError, match="403") as caught:
        open_tracker(TrackingConfig(), kind="train", pace=FAST)
    said = str(caught.value)
    assert "\n" not in said
    assert {"'ada'", "EDIT"} <= set(said.split())
    assert list(store.spool_root().iterdir()) == []
    assert sync_spool() == []


def test_two_people_train_into_one_experiment_and_a_third_may_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for person in TRAINERS:
        sign_in(monkeypatch, person)
        monkeypatch.setenv("CLEW_USER", person.user)
        command = ["train", "umls", *SMALL, f"tracking.run_name=by-{person.user}"]
        assert run_command(command) == 0, capsys.readouterr().err
    sign_in(monkeypatch, READER)
    found = {run.name: run for run in search_runs(RunQuery()).runs}
    first, second = (found[f"by-{person.user}"] for person in TRAINERS)
    assert first.experiment_id == second.experiment_id
    for run in (first, second):
        assert run.status == "FINISHED"
        paths = {item.path for item in MlflowClient().list_artifacts(run.run_id)}
        assert {"best", "checkpoints"} <= paths
    capsys.readouterr()
    assert run_command(["train", "umls", *SMALL, "tracking.run_name=by-ada"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert {"'ada'", "EDIT"} <= set(line.split())
    assert "by-ada" not in {run.name for run in search_runs(RunQuery()).runs}
    assert list(store.spool_root().iterdir()) == []


def content(folder: Path) -> list[str]:
    """Return all that the server's two databases hold."""
    lines = []
    for name in ("accounts.db", "mlflow.db"):
        with closing(sqlite3.connect(folder / name)) as base:
            lines += list(base.iterdump())
    return lines


def test_a_second_start_changes_nothing(address: str, folder: Path) -> None:
    own = READER._replace(password="chosen-by-ada-herself")
    change = {"username": own.user, "current_password": READER.password, "password": own.password}
    users(address, "update-password", READER, **change).raise_for_status()
    before = content(folder)
    done = start_job(address, *map(" ".join, ACCOUNTS))
    assert done.returncode == 0, done.stderr
    assert content(folder) == before
    back = change | {"current_password": own.password, "password": READER.password}
    users(address, "update-password", own, **back).raise_for_status()


def test_what_an_account_may_do_is_what_its_line_says(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(monkeypatch, ADMINISTRATOR)
    experiment = MlflowClient().get_experiment_by_name("clew")
    assert experiment is not None
    things = (("experiment", experiment.experiment_id), ("registered_model", "any"))

    def permissions(user: str) -> list[str]:
        answers = [
            users(
                address,
                "permissions/get",
                ADMINISTRATOR,
                username=user,
                resource_type=kind,
                resource_id=which,
            )
            for kind, which in things
        ]
        return [str(answer.json()["permission"]) for answer in answers]

    for may, expected in {"promote": ["EDIT", "MANAGE"], "read": ["READ", "READ"]}.items():
        assert start_job(address, f"fay of-fay-herself {may}").returncode == 0
        assert (may, permissions("fay")) == (may, expected)
    assert permissions("bob") == ["EDIT", "READ"]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["fay of-fay-herself train", "gil of-gil-himself write"], {"2", "read,"}),
        (["gil PASSWORD train"], {"12", "characters."}),
    ],
)
def test_a_line_that_is_wrong(address: str, lines: list[str], named: set[str]) -> None:
    done = start_job(address, *lines)
    assert done.returncode != 0
    *_, line = done.stderr.splitlines()
    assert named <= set(line.split())
    assert not {word for given in lines for word in given.split()[1:-1]} & set(line.split())


def test_a_server_that_refuses_the_administrator(address: str) -> None:
    done = start_job(address, administrator=ADMINISTRATOR._replace(password="guessed"))
    *_, line = done.stderr.splitlines()
    assert done.returncode != 0
    assert {"'admin'", "(401);"} <= set(line.split())


def test_the_dashboard_may_do_what_its_pages_do_and_no_more(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(monkeypatch, TRAINERS[0])
    with open_tracker(TrackingConfig(), kind="train", pace=FAST) as tracker:
        tracker.metrics({"valid/mrr": 0.5}, 1)
    model, name, numbers = tmp_path / "model", "of-a-team", []
    model.mkdir()
    (model / "MLmodel").write_text("a model")
    for account in (PROMOTER, DASHBOARD):  # the second writes to a model of the first
        sign_in(monkeypatch, account)
        registry = Registry()
        version = registry.register(name, model, run_id=tracker.run_id, tags={})
        registry.tag(version, {"checked": "yes"})
        registry.set_alias(name, "challenger", version.number)
        former = registry.aliases(name).get("champion")
        registry.move_alias(name, "champion", version.number, expected=former)
        registry.client.delete_registered_model_alias(name, "challenger")
        numbers.append(version.number)
    describe_run(find_run(tracker.run_id), "seen", {"of": "interest"})
    describe_run(find_run(tracker.run_id), "seen", {})
    new = {"username": "mallory", "password": "of-mallory-himself"}
    assert users(address, "create", DASHBOARD, **new).status_code == 403
    with pytest.raises(MlflowException, match="Permission denied"):
        MlflowClient().delete_experiment(find_run(tracker.run_id).experiment_id)
    sign_in(monkeypatch, TRAINERS[1])
    with pytest.raises(TrackingError, match="403") as caught:
        registry.set_alias(name, "champion", numbers[0])
    assert "'cid'" in str(caught.value).split()
    assert registry.aliases(name) == {"champion": numbers[1]}


def test_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch, READER._replace(password="guessed-by-somebody"))
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
    sign_in(monkeypatch, TRAINERS[0])
    tracker = open_tracker(TrackingConfig(), kind="train", pace=FAST)
    tracker.flush()  # nothing is sent with the name of one and the password of the other
    sign_in(monkeypatch, READER)
    tracker.metrics({"train/loss": 1.0}, 1)
    tracker.finish("FINISHED")
    assert "user 'ada' has no permission for this (403)" in caplog.text
    [result] = sync_spool()
    assert "user 'ada' has no permission for this (403)" in str(result.problem)
    sign_in(monkeypatch, TRAINERS[0])
    [result] = sync_spool()
    assert result.problem is None
    assert MlflowClient().get_run(tracker.run_id).data.metrics == {"train/loss": 1.0}
