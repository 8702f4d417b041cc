"""The location of the tracking store, and quick errors for unusable stores."""

import http.server
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from clew.errors import TrackingError, masked
from clew.runs import store
from clew.runs.mlflow_store import _folder_name
from tests.ports import free_port


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "CLEW_SPOOL"):
        monkeypatch.delenv(name, raising=False)
    inner = tmp_path / "project" / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path / "project"


def test_the_root_holds_mlproject(project: Path) -> None:
    assert store.project_root() == project / "a" / "b"
    (project / "MLproject").write_text("name: x\n")
    assert store.project_root() == project
    assert store.tracking_uri() == f"sqlite:///{project}/mlflow.db"
    assert store.artifact_root(store.tracking_uri()) == (project / "mlartifacts").as_uri()
    assert store.spool_root() == project / "spool"


def test_the_environment_names_another_store(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert store.tracking_uri() == "http://127.0.0.1:5000"
    assert store.artifact_root(store.tracking_uri()) is None
    assert store.spool_root() == project / "a" / "b" / "spool"
    assert store.spool_root(f"sqlite:///{tmp_path}/other/mlflow.db") == tmp_path / "other" / "spool"
    monkeypatch.setenv("CLEW_SPOOL", str(tmp_path / "elsewhere"))
    assert store.spool_root() == tmp_path / "elsewhere"


def test_a_database_server_has_its_artifacts_where_all_find_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEW_ARTIFACTS", raising=False)
    (project / "MLproject").touch()
    uri = "postgresql://user:secret@host/base"
    assert store.artifact_root(uri) == (project / "mlartifacts").as_uri()  # not the current folder
    monkeypatch.setenv("CLEW_ARTIFACTS", "s3://bucket/clew/")
    assert store.artifact_root(uri) == "s3://bucket/clew"
    monkeypatch.setenv("CLEW_ARTIFACTS", "/shared/clew files")
    assert store.artifact_root(uri) == "file:///shared/clew%20files"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host")
    assert store.artifact_root(store.tracking_uri()) is None  # the server decides


def test_folders_have_names_that_need_no_quoting() -> None:
    assert [_folder_name(name) for name in ("clew", "my-runs_2.0")] == ["clew", "my-runs_2.0"]
    names = ["50% off", "50_ off", "a%20b", "../up", ".", "a/b", "x" * 300, "é"]
    folders = [_folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,99}", f) for f in folders)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////data/mlflow.db", "/data/mlflow.db"),
        ("sqlite:////data/my%20runs.db?timeout=3", "/data/my runs.db"),
        ("sqlite:///:memory:", None),
        ("postgresql://host/base", None),
        ("https://host", None),
    ],
)
def test_the_database_file_is_known(uri: str, path: str | None) -> None:
    assert store.database_path(uri) == (None if path is None else Path(path))


def test_a_relative_database_is_in_the_working_folder(project: Path) -> None:
    assert store.database_path("sqlite:///mlflow.db") == Path.cwd() / "mlflow.db"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:secret@host:5000/x", "https://***@host:5000/x"),
        ("https://secret@host", "https://***@host"),
        ("https://:secret@host", "https://***@host"),
        ("postgresql://me:sec/ret@host/base", "postgresql://***@host/base"),
        ("postgresql://me:sec@ret@host/base", "postgresql://***@host/base"),
        (
            "postgresql://host/base?user=me&password=secret",
            "postgresql://host/base?user=***&password=***",
        ),
        (
            "cannot reach https://me:secret@host/a?token=secret, nor http://u:secret@b",
            "cannot reach https://***@host/a?token=*** nor http://***@b",
        ),
        ("http://host:5000", "http://host:5000"),
        ("sqlite:////srv/me@work/mlflow.db", "sqlite:////srv/me@work/mlflow.db"),
    ],
)
def test_secrets_are_not_shown(uri: str, shown: str) -> None:
    assert masked(uri) == shown


def test_a_store_has_one_address(project: Path) -> None:
    (project / "MLproject").write_text("name: x\n")
    assert store.address("sqlite:///../../mlflow.db") == store.address(store.tracking_uri())
    spaced = f"sqlite:///{project}/my%20runs.db"
    assert store.address(store.address(spaced)) == store.address(spaced)
    assert "secret" not in store.address("postgresql://me:secret@host/base")


def test_what_a_person_set_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    store.prepare_client_environment()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "7"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


class Forbidding(http.server.BaseHTTPRequestHandler):
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def forbidding_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_any_answer_is_an_answer(forbidding_server: str) -> None:
    assert store.probe(f"http://{forbidding_server}") is None
    assert store.probe(f"http://me:secret@{forbidding_server}/prefix/") is None
    assert Forbidding.paths == ["/health", "/prefix/health"]


def test_a_port_without_a_server_is_one_line() -> None:
    with pytest.raises(TrackingError) as caught:
        store.check_answers(f"http://me:secret@127.0.0.1:{free_port()}")
    assert "Connection refused" in str(caught.value)
    assert "start it, or set MLFLOW_TRACKING_URI" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_accepts_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "PROBE_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        reason = store.probe(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert reason is not None
    assert "timed out" in reason


@pytest.mark.parametrize("uri", ["http://", "http://host:port", "http://[", "http://\x00"])
def test_an_address_that_is_none_is_one_line(uri: str) -> None:
    with pytest.raises(TrackingError):
        store.check_answers(uri)


def test_a_store_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    store.check_writable(f"sqlite:///{tmp_path}/new/mlflow.db")
    with closing(sqlite3.connect(tmp_path / "new" / "mlflow.db")) as base:
        assert base.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_a_store_that_is_being_written_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PROBE_SECONDS", 0.05)
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as base:
        base.execute("BEGIN EXCLUSIVE")
        store.check_writable(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("kind", ["folder", "text", "below a file", "read-only"])
def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mlflow.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("not a database, but a text of more than a hundred bytes " * 10)
    elif kind == "below a file":
        path.write_text("")
        path = path / "mlflow.db"
    else:
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        path.touch()
        path.chmod(0o444)
    with pytest.raises(TrackingError) as got:
        store.check_writable(f"sqlite:///{path}")
    assert "\n" not in str(got.value)
