"""Which tracking store is shown, and whether there is one."""

from clew.runs import store
from clew.runs.reading.search import list_experiments

store.prepare_client_environment()


def uri() -> str:
    """Return the address of the store."""
    return store.tracking_uri()


def shown_uri() -> str:
    """Return the address as people may see it, without a password."""
    return store.shown(uri())


def exists() -> bool:
    """Return whether there is a store: a database file that is not there yet is none."""
    return not store.is_missing(uri())


def connect() -> None:
    """Ask the store for the first time, which takes longer than any time after it.

    Raises:
        TrackingError: it does not answer.
    """
    if exists():
        list_experiments(uri())
