"""A new store is created completely and only once, without touching other files."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow.store.db.utils as migrations
import pytest
from filelock import FileLock, Timeout
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from clew.errors import TrackingError
from clew.runs import store
from clew.runs.reading import runs
from clew.runs.store import connect
from clew.ui.components.runs import store_exists


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a store that does not exist yet, and use it in the test."""
    uri = f"sqlite:///{tmp_path}/project/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    known = set(SqlAlchemyStore._engine_map)
    yield uri
    for opened in SqlAlchemyStore._engine_map.keys() - known:
        SqlAlchemyStore._engine_map.pop(opened).dispose()


@pytest.fixture
def in_the_middle(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a hook that runs a function once, between the first tables and the migrations."""

    def interrupt(action: Callable[[], None]) -> None:
        upgrade = migrations._upgrade_db

        def interrupted(engine: object) -> None:
            monkeypatch.setattr(migrations, "_upgrade_db", upgrade)
            action()
            upgrade(engine)

        monkeypatch.setattr(migrations, "_upgrade_db", interrupted)

    return interrupt


def is_usable(client: MlflowClient) -> bool:
    run = client.create_run("0")
    return client.get_run(run.info.run_id).info.status == "RUNNING"


def test_a_dashboard_that_starts_meanwhile_sees_no_store_yet(
    uri: str, in_the_middle: Callable[[Callable[[], None]], None]
) -> None:
    seen: list[str] = []

    def open_dashboard() -> None:
        seen.append(f"exists: {store_exists()}")
        with pytest.raises(TrackingError, match=r"no tracking store at .*train a first run"):
            runs.client()
        seen.append("told so")

    in_the_middle(open_dashboard)
    client = connect(uri)
    assert seen == ["exists: False", "told so"]
    assert store_exists()
    assert is_usable(client)
    assert is_usable(runs.client())


def test_another_command_waits_until_the_store_is_there(
    uri: str, tmp_path: Path, in_the_middle: Callable[[Callable[[], None]], None]
) -> None:
    held: list[bool] = []

    def try_the_lock() -> None:
        with pytest.raises(Timeout):
            FileLock(f"{tmp_path}/project/mlflow.db.lock", timeout=0).acquire()
        held.append(True)

    in_the_middle(try_the_lock)
    connect(uri)
    assert held == [True]


def test_a_creation_that_is_killed_leaves_no_half_store(
    uri: str, tmp_path: Path, in_the_middle: Callable[[Callable[[], None]], None]
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    in_the_middle(die)
    with pytest.raises(KeyboardInterrupt):
        connect(uri)
    assert store.is_missing(uri)
    assert not (tmp_path / "project" / "mlflow.db").exists()
    assert is_usable(connect(uri))
    left = {path.name for path in (tmp_path / "project").iterdir()}
    assert left == {"mlflow.db", "mlflow.db.lock"}


def test_an_empty_file_is_no_store_yet(uri: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mlflow.db").touch()
    with pytest.raises(TrackingError, match="no tracking store"):
        runs.client()
    client = connect(uri)
    assert is_usable(client)
    default = client.get_experiment("0").artifact_location
    assert default == (tmp_path / "project" / "mlartifacts" / "0").as_uri()


def test_nothing_is_opened_in_the_systems_temporary_folder(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    connect(uri)
    assert list(shared.iterdir()) == []


def test_a_link_in_the_locks_place_is_not_followed(uri: str, tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("secret")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mlflow.db.lock").symlink_to(tmp_path / "diary.txt")
    with pytest.raises(TrackingError, match="its lock cannot be made") as caught:
        connect(uri)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "diary.txt").read_text() == "secret"


def test_a_database_server_has_its_lock_in_the_users_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with store.creation_lock("postgresql://me:secret@host/base"):
        [lock] = (tmp_path / "clew").iterdir()
        with pytest.raises(Timeout):
            FileLock(lock, timeout=0).acquire()
    FileLock(lock, timeout=0).acquire().lock.release()
    assert (tmp_path / "clew").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(lock))
    expected = r"postgresql://\*\*\*@host/base: its lock cannot be made"
    with (
        pytest.raises(TrackingError, match=expected),
        store.creation_lock("postgresql://me:secret@host/base"),
    ):
        pass
