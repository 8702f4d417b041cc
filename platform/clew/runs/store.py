"""Where runs are kept: the tracking store, its artifacts, and the spool of unsent records.

Importing this module does not import mlflow, so that an unusable store is refused in milliseconds.
"""

import getpass
import hashlib
import os
import shutil
import sqlite3
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from filelock import FileLock

from clew.errors import TrackingError, described, masked, refusing

if TYPE_CHECKING:
    from mlflow import MlflowClient

PROJECT_FILE = "MLproject"
PROBE_SECONDS = 5.0
SQLITE_PREFIX = "sqlite:///"
PERSON_VARIABLE = "CLEW_USER"
"""Environment variable with the user's name, set when the dashboard acts for a signed-in user."""
ARTIFACTS_VARIABLE = "CLEW_ARTIFACTS"
DATABASE_SERVERS = ("postgresql", "mysql", "mssql")
MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"})
"""MLflow's error codes for a missing object; the second is for an id that is malformed."""
REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
"""MLflow's error codes for a user who is unknown, or may not do something."""

# Values that the user sets in the environment take precedence.
CLIENT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    # Clew retries failed requests itself; MLflow's own seven retries block for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A progress bar for each checkpoint would interrupt the training output.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # In a folder with a uv.lock, MLflow would copy that project into every model. It would then
    # serve the model in the project's environment instead of the model's own.
    "MLFLOW_UV_AUTO_DETECT": "false",
}


def project_root() -> Path:
    """Return the nearest parent folder that contains `MLproject`, else the working folder."""
    start = Path.cwd()
    return next((p for p in (start, *start.parents) if (p / PROJECT_FILE).is_file()), start)


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI` if it is set, else the address of the project's database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or own_uri(project_root())


def own_uri(project: Path) -> str:
    return f"{SQLITE_PREFIX}{quote(str(project / 'mlflow.db'))}"


def database_path(uri: str) -> Path | None:
    """Return the file of an SQLite store, or None for any other store."""
    if not uri.startswith(SQLITE_PREFIX) or uri == f"{SQLITE_PREFIX}:memory:":
        return None
    return Path(os.path.abspath(unquote(uri[len(SQLITE_PREFIX) :].partition("?")[0])))


def absolute(uri: str) -> str:
    path, query = database_path(uri), uri.partition("?")
    return uri if path is None else f"{SQLITE_PREFIX}{quote(str(path))}{query[1]}{query[2]}"


def artifact_root(uri: str, project: Path | None = None) -> str | None:
    """Return the address where a store keeps artifacts, or None if its server decides.

    An SQLite store keeps them in `mlartifacts` next to the database file. A database server cannot
    keep files: the address is `$CLEW_ARTIFACTS`, which all users of the database set to a place
    that all of them can reach, else `mlartifacts` in the project's root folder.
    """
    if (database := database_path(uri)) is not None:
        return (database.parent / "mlartifacts").as_uri()
    if not uri.startswith(DATABASE_SERVERS):
        return None
    given = os.environ.get(ARTIFACTS_VARIABLE)
    if given and "://" in given:
        return given.rstrip("/")
    return ((project or project_root()) / (given or "mlartifacts")).absolute().as_uri()


def acting_person() -> str:
    """Return the name of the user: `$CLEW_USER`, else the operating system's user."""
    try:
        return os.environ.get(PERSON_VARIABLE) or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


def spool_root(uri: str | None = None) -> Path:
    """Return the folder of unsent records: `$CLEW_SPOOL`, else `spool` next to the store."""
    if folder := os.environ.get("CLEW_SPOOL"):
        return Path(folder).absolute()
    database = database_path(uri or tracking_uri())
    return (project_root() if database is None else database.parent) / "spool"


def prepare_client_environment() -> None:
    """Set MLflow's client options in the environment; call this before mlflow is imported."""
    for name, value in CLIENT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def public_address(uri: str) -> str:
    """Return a server's address without user, password and query."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def in_use() -> str:
    """Return the address of the store in use, without secrets."""
    return masked(tracking_uri())


def address(uri: str) -> str:
    """Return the address that identifies a store: absolute and without secrets."""
    database = database_path(uri)
    return masked(uri) if database is None else f"{SQLITE_PREFIX}{quote(str(database.resolve()))}"


def is_missing(uri: str) -> bool:
    """Return whether the store is a database file that does not exist yet or is empty."""
    path = database_path(uri)
    return path is not None and not (path.is_file() and path.stat().st_size > 0)


def local_artifacts(run_id: str) -> Path | None:
    """Return the artifact folder of a run that an SQLite store has and keeps on this machine.

    None also for a deleted run, or if the store cannot be read: MLflow says then what is wrong.
    """
    path = database_path(tracking_uri())
    if path is None or not path.is_file():
        return None
    wanted = "SELECT artifact_uri FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as base:
            row = base.execute(wanted, [run_id]).fetchone()
    except sqlite3.Error:
        return None
    folder = None if row is None else local_path(row[0])
    return folder if folder is not None and folder.is_dir() else None


def local_path(uri: str) -> Path | None:
    """Return the local folder of an artifact URI; None if the URI is not local."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme in {"", "file"} else None


@contextmanager
def creation_lock(uri: str) -> Iterator[None]:
    """Let one process at a time connect to a database that may have no tables yet.

    MLflow creates the tables at the first connection, and two processes that do so at once break
    each other. The lock of a new database file is next to the file; the lock of a database server
    is in the user's runtime folder.
    """
    path = database_path(uri)
    if not is_missing(uri) and not uri.startswith(DATABASE_SERVERS):
        yield
        return
    what = f"tracking store {masked(uri)}: its lock cannot be made"
    advice = "; expected a writable folder (for a database server, set XDG_RUNTIME_DIR)"
    with refusing(what, OSError, RuntimeError, advice=advice, error=TrackingError):
        if path is None:
            runtime = os.environ.get("XDG_RUNTIME_DIR") or Path("~/.cache").expanduser()
            path = Path(runtime, "clew", f"store-{hashlib.sha256(uri.encode()).hexdigest()[:16]}")
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = f"{path}.lock"
        # FileLock waits forever for a file that it cannot create, for example below /proc.
        os.close(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        held = FileLock(lock, mode=0o600).acquire()
    with held:
        yield


@contextmanager
def using(what: str, uri: str | None = None) -> Iterator[None]:
    """Turn errors of MLflow, the database or the network into a `TrackingError` of one line.

    `what` the block does is for the message: `the list of runs`, `moving an alias`. Without `uri`,
    it is about the store in use.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    where = f"tracking store {masked(uri) if uri else in_use()}"
    try:
        yield
    except ImportError as error:
        problem = f"{where}: its driver is not installed ({described(error)})"
        advice = "install it, or set MLFLOW_TRACKING_URI to another store"
        raise TrackingError(f"{problem}; {advice}") from None
    except (MlflowException, SQLAlchemyError, OSError) as error:
        code, said = getattr(error, "error_code", type(error).__name__), reason_of(error)
        if code == "RESOURCE_DOES_NOT_EXIST":
            said = f"not found ({said}); it may have been deleted"
        elif code not in REFUSED:
            said = (
                f"{said} ({code}); check that the store responds and that MLFLOW_TRACKING_URI is "
                "the right address, then try again"
            )
        raise TrackingError(f"{where}: {what}: {said}") from None


def reason_of(error: Exception) -> str:
    """Return in one line why a store failed; if it refuses the user, also what is missing."""
    code = getattr(error, "error_code", "")
    if code not in REFUSED:
        return described(error)
    from mlflow.utils.credentials import read_mlflow_creds

    user, sign_in = read_mlflow_creds().username, "MLFLOW_TRACKING_USERNAME and _PASSWORD"
    if code == "PERMISSION_DENIED":
        return (
            f"user {user!r} has no permission for this (403); ask the server's administrator for "
            f"EDIT on the experiment or model, or sign in as another user with {sign_in}"
        )
    if user is None:
        return f"the server asks who you are (401); set {sign_in}"
    return f"the server does not know user {user!r} with this password (401); correct {sign_in}"


def connect(uri: str) -> "MlflowClient":
    """Check that a store responds and, if it is a file, is writable; return a client for it."""
    check_answers(uri)
    check_writable(uri)
    from mlflow import MlflowClient

    with using("opening it", uri), creation_lock(uri):
        if is_missing(uri):
            _create_database(uri)
        return MlflowClient(uri)


def _create_database(uri: str) -> None:
    """Create an SQLite store under a temporary name, and rename the file when it is complete.

    A dashboard that opens the store meanwhile finds none instead of an incomplete one. A process
    that is killed here leaves no file that the next process would mistake for a store.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path, artifacts = database_path(uri), artifact_root(uri)
    assert path is not None
    assert artifacts is not None
    prefix = f"{path.name}.new-"
    for left in path.parent.iterdir():  # by a process that was killed
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent) as work:
        new = Path(work) / path.name
        made = SqlAlchemyStore(f"{SQLITE_PREFIX}{quote(str(new))}", artifacts)  # type: ignore[no-untyped-call]
        made.engine.dispose()
        new.replace(path)


def probe(uri: str) -> str | None:
    """Return why a tracking server does not respond, within seconds; None if it responds.

    Any response counts, including a refusal. Stores that are not servers are assumed to respond.
    """
    if not uri.startswith(("http://", "https://")):
        return None
    try:
        with urllib.request.urlopen(f"{public_address(uri)}/health", timeout=PROBE_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        # MLflow's client may accept the certificate; if it does not, it raises its own error.
        return None if isinstance(reason, ssl.SSLError) else str(reason) or type(reason).__name__


def check_answers(uri: str) -> None:
    """Check that a store's address is one, and that a tracking server responds."""
    if "://" not in uri and uri.partition(":")[0] not in ("databricks", "uc"):
        advice = "set MLFLOW_TRACKING_URI to one such as http://127.0.0.1:5000, sqlite:///mlflow.db"
        raise TrackingError(f"tracking store {masked(uri)}: not an address; {advice}")
    if reason := probe(uri):
        raise TrackingError(
            f"tracking server {masked(uri)} does not answer ({reason}); start it, or set "
            "MLFLOW_TRACKING_URI to one that runs (unset it to use the project's own database)"
        )


def check_writable(uri: str) -> None:
    """Check that an SQLite store can be written; MLflow itself would retry for a long time."""
    path = database_path(uri)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if not os.access(path.parent, os.W_OK):
                raise PermissionError(f"no permission to create files in {path.parent}")
            return
        with closing(sqlite3.connect(path, timeout=PROBE_SECONDS, isolation_level=None)) as base:
            base.execute("BEGIN IMMEDIATE")
            base.execute("CREATE TABLE clew_write_check (value INTEGER)")
            base.execute("ROLLBACK")
    except (OSError, sqlite3.Error) as error:
        if "locked" in str(error):  # another run is writing: the store is fine
            return
        problem = f"tracking store {path} cannot be written ({error})"
        advice = "give the project a writable folder, or set MLFLOW_TRACKING_URI to another store"
        raise TrackingError(f"{problem}; {advice}") from None
