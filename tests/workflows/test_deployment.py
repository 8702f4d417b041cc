"""The parts of docs/deploy/compose.yaml as processes: PostgreSQL, an S3 store, MLflow, dashboard.

Commands and environments are those of the file, with ports and hosts of this machine; the job that
makes the accounts runs too. The images themselves, and the proxy with its certificates, are not
tested.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from clew.config.services import TrackingConfig
from clew.errors import TrackingError
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.runs import find_run
from tests.ports import free_port
from tests.postgresql import PROGRAMS
from tests.workflows.servers import process

MISSING = [
    what
    for what, is_there in (
        ("PostgreSQL (apt-get install postgresql)", PROGRAMS is not None),
        ("root or a user who may run it", os.getuid() == 0 and shutil.which("setpriv")),
        ("moto (pip install 'moto[s3]')", find_spec("moto") is not None),
        ("boto3 (pip install boto3)", find_spec("boto3") is not None),
        ("psycopg2 (pip install psycopg2-binary)", find_spec("psycopg2") is not None),
        ("Flask-WTF (pip install 'flask-wtf<2')", find_spec("flask_wtf") is not None),
    )
    if not is_there
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]
ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/deploy/compose.yaml"
PATHS = os.pathsep.join(str(ROOT / part) for part in ("", "platform"))
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
VALUES = {
    "DOMAIN": "clew.example.org",
    "DATABASE_PASSWORD": "of-the-database",
    "FILES_PASSWORD": "of-the-files",
    "SERVER_KEY": "of-the-server",
    "ADMIN_PASSWORD": "of-the-administrator",
    "DASHBOARD_PASSWORD": "of-the-dashboard",
    "ACCOUNTS": "ada of-ada-herself promote\neve of-eve-herself read",
}


@dataclass(frozen=True)
class Deployment:
    """The addresses of the parts, and how hosts and ports of the file are called here."""

    tracking: str
    files: str
    places: dict[str, str]


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return found


def filled(value: object, places: dict[str, str]) -> str:
    """Return a value of the file with its variables and this machine's hosts and ports."""
    text = re.sub(r"\$\{(\w+):\?\}", lambda found: VALUES[found[1]], str(value))
    for written, here in places.items():
        text = text.replace(written, here)
    return text


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployed")
    ports = {name: free_port() for name in ("database", "files", "tracking")}
    tracking, files = (f"http://127.0.0.1:{ports[name]}" for name in ("tracking", "files"))
    places = {
        "@database/": f"@127.0.0.1:{ports['database']}/",
        "http://files:9000": files,
        "--port 5000": f"--port {ports['tracking']}",
        "--host 0.0.0.0": "--host 127.0.0.1",
        "--workers 2": "--workers 1",
        "tracking:5000": f"127.0.0.1:{ports['tracking']}",
        "/run/secrets/auth": str(folder / "auth.ini"),
    }
    example = (FILE.parent / "example.env").read_text(encoding="utf-8")
    settings = re.search(r'AUTH_CONFIG="(.*)"', example, re.DOTALL)
    assert settings is not None
    own = settings[1].replace("${DATABASE_PASSWORD}", VALUES["DATABASE_PASSWORD"])
    (folder / "auth.ini").write_text(filled(own, places), encoding="utf-8")
    command, environment = program_of("tracking", places)
    with ExitStack() as stack:
        stack.enter_context(database(folder, ports["database"]))
        moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(ports["files"])]
        stack.enter_context(process(moto, folder / "files.log", files))
        make_bucket(files)
        program = [sys.executable, "-m", *command]
        stack.enter_context(process(program, folder / "tracking.log", tracking, **environment))
        here = Deployment(tracking, files, places)
        make_accounts(here)
        yield here


def program_of(service: str, places: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a part."""
    part = services()[service]
    environment = {key: filled(value, places) for key, value in part["environment"].items()}
    return shlex.split(filled(part["command"], places)), environment


def make_accounts(here: Deployment) -> None:
    """Run the job of the first start."""
    command, environment = program_of("accounts", here.places)
    environment |= {"PYTHONPATH": PATHS}
    subprocess.run(
        [sys.executable, *command[1:]], env=os.environ | environment, cwd=ROOT, check=True
    )


def database(folder: Path, port: int) -> Any:
    """Start PostgreSQL as a user without rights, with the user, password and base of the file."""
    assert PROGRAMS is not None
    place = Path(f"/tmp/clew-postgres-{port}")
    place.mkdir(mode=0o700)
    (place / "password").write_text(VALUES["DATABASE_PASSWORD"])
    for path in (place, place / "password"):
        os.chown(path, 65534, 65534)
    stack = ExitStack()
    stack.callback(shutil.rmtree, place, ignore_errors=True)
    data = ["-D", str(place / "data")]
    made = [*NOBODY, str(PROGRAMS / "initdb"), *data, "-U", "clew", "--auth=scram-sha-256"]
    subprocess.run([*made, f"--pwfile={place / 'password'}"], check=True, capture_output=True)
    options = ["-p", str(port), "-k", str(place), "-h", "127.0.0.1"]
    server = [*NOBODY, str(PROGRAMS / "postgres"), *data, *options]
    running = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(running.wait)
    stack.callback(running.kill)
    ready = [str(PROGRAMS / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode:
        assert running.poll() is None
    environment = os.environ | {"PGPASSWORD": VALUES["DATABASE_PASSWORD"]}
    create = [str(PROGRAMS / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "clew", "clew"]
    subprocess.run(create, check=True, env=environment)
    return stack


def files_of(address: str) -> Any:
    """Return a client of the S3 store."""
    import boto3

    keys = {"aws_access_key_id": "clew", "aws_secret_access_key": VALUES["FILES_PASSWORD"]}
    return boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)


def make_bucket(address: str) -> None:
    files_of(address).create_bucket(Bucket="clew")


@pytest.fixture
def member(deployed: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sign in as one of the people, with the right password."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", deployed.tracking)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "of-ada-herself")
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "spool"))


@pytest.mark.usefixtures("member")
def test_runs_go_to_the_database_and_files_to_the_bucket(
    deployed: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note = tmp_path / "note.txt"
    note.write_text("kept")
    with open_tracker(TrackingConfig(), kind="train") as tracker:
        tracker.metrics({"valid/mrr": 0.5}, 1)
        tracker.artifact(note)
    run = find_run(tracker.run_id)
    assert (run.status, run.metrics["valid/mrr"]) == ("FINISHED", 0.5)
    listed = files_of(deployed.files).list_objects_v2(Bucket="clew")["Contents"]
    assert [entry["Key"] for entry in listed if entry["Key"].endswith("note.txt")]
    assert not list(tmp_path.glob("ml*"))  # no local files


@pytest.mark.usefixtures("member")
def test_nobody_gets_in_without_a_password(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{deployed.tracking}/api/2.0/mlflow/experiments/search")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "guessed")
    with pytest.raises(TrackingError):
        open_tracker(TrackingConfig(), kind="train")


@pytest.mark.usefixtures("member")
def test_who_may_only_read_is_refused_after_a_second_start_too(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_accounts(deployed)
    open_tracker(TrackingConfig(), kind="train").finish("FINISHED")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "eve")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "of-eve-herself")
    with pytest.raises(TrackingError, match="403") as caught:
        open_tracker(TrackingConfig(), kind="train")
    assert {"'eve'", "EDIT"} <= set(str(caught.value).split())


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://clew.example.org:5443", 200), ("https://evil.example.org", 403)],
)
def test_a_browser_may_use_mlflows_own_pages(
    deployed: Deployment, origin: str, status: int
) -> None:
    answer = requests.post(
        f"{deployed.tracking}/ajax-api/2.0/mlflow/experiments/search",
        json={"max_results": 1},
        headers={"Host": "clew.example.org:5443", "Origin": origin},
        auth=("eve", "of-eve-herself"),
        timeout=60,
    )
    assert answer.status_code == status, answer.text


def test_the_dashboard_of_the_file_starts_on_its_options_with_an_account_of_its_own(
    deployed: Deployment, tmp_path: Path
) -> None:
    port = free_port()
    places = {"0.0.0.0": "127.0.0.1", "8501": str(port), **deployed.places}
    command, environment = program_of("dashboard", places)
    address = f"http://127.0.0.1:{port}/_stcore"  # with `/health`
    program = [sys.executable, *command[1:]]
    with process(program, tmp_path / "ui.log", address, **environment, PYTHONPATH=PATHS):
        pass
    user, password = (environment[f"MLFLOW_TRACKING_{name}"] for name in ("USERNAME", "PASSWORD"))
    found = requests.get(
        f"{deployed.tracking}/api/2.0/mlflow/users/current", auth=(user, password), timeout=60
    ).json()["user"]
    assert (found["username"], found["is_admin"]) == ("dashboard", False)
