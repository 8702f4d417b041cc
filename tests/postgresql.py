"""A new PostgreSQL server for a test or a benchmark. Its programs refuse to run as root."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
SERVER_USER = "postgres"


def missing() -> str | None:
    """Return what this machine lacks for a server, or None if it has everything."""
    if PROGRAMS is None:
        return "no PostgreSQL here: apt-get install postgresql"
    if importlib.util.find_spec("psycopg2") is None:
        return "no driver for PostgreSQL: pip install psycopg2-binary"
    return None


@contextmanager
def postgresql(*settings: str) -> Iterator[str]:
    """Start a server with an empty database and settings like `fsync=off`; yield its address."""
    assert PROGRAMS is not None
    folder = Path(tempfile.mkdtemp(prefix="clew-postgresql-"))
    data, port = folder / "data", free_port()
    as_user = []
    if os.geteuid() == 0:
        as_user = ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups"]
        shutil.chown(folder, SERVER_USER)
    subprocess.run(
        [*as_user, PROGRAMS / "initdb", "-D", data, "-U", "clew", "--auth=trust", "--no-sync"],
        check=True,
        capture_output=True,
        cwd="/",
    )
    given = (f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *settings)
    options = " ".join(f"-c {setting}" for setting in given)
    control = [*as_user, str(PROGRAMS / "pg_ctl"), "-D", str(data), "-w", "-l", f"{folder}/log"]
    subprocess.run([*control, "-o", options, "start"], check=True, capture_output=True, cwd="/")
    try:
        yield f"postgresql+psycopg2://clew@127.0.0.1:{port}/postgres"
    finally:
        stop = [*control, "-m", "immediate", "stop"]
        subprocess.run(stop, check=True, capture_output=True, cwd="/")
        shutil.rmtree(folder)
