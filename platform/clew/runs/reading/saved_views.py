"""Named views of the page Compare: the settings in its URL, stored for all users.

A view is a tag on the experiment of its first run. It is therefore written and deleted as a whole,
several people can do so at the same time, and it needs no run of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.errors import ConfigError, DataError, UsageError, described
from clew.runs import store
from clew.runs.reading import records
from clew.runs.reading.runs import client, find_run
from clew.runs.reading.search import experiments_of

MAX_NAME_CHARACTERS = 60
MAX_ADDRESS_CHARACTERS = 4000
"""Some tracking servers limit the tag of an experiment to 5,000 characters."""
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARACTERS - 1}}}")


@dataclass(frozen=True)
class SavedView:
    """A saved state of the page Compare."""

    name: str
    address: str
    """The query string of the page's URL: runs, columns, settings."""
    person: str = ""
    created: str = ""
    """Time in ISO 8601 with time zone, set when the view is written."""
    experiment_id: str = ""
    """The experiment that the view is stored with."""

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(self.address))

    @property
    def run_ids(self) -> list[str]:
        return [run_id for run_id in self.parameters.get("runs", "").split(",") if run_id]


_VIEW = TypeAdapter(SavedView)


@dataclass(frozen=True)
class SavedViews:
    """The views of a store, sorted by name, and the problems of unreadable views."""

    views: tuple[SavedView, ...]
    problems: tuple[str, ...] = ()

    def find(self, name: str) -> SavedView | None:
        """Return the view with this name; None if there is none."""
        return next((view for view in self.views if view.name == name), None)


def list_views() -> SavedViews:
    """Return all saved views, sorted by name.

    Raises:
        TrackingError: The store does not respond.
    """
    with store.using("the saved views"):
        experiments = experiments_of(client())
    found: dict[str, SavedView] = {}
    problems = []
    for experiment in experiments:
        for key, value in experiment.tags.items():
            if not key.startswith(names.TAG_VIEW_PREFIX):
                continue
            name = key.removeprefix(names.TAG_VIEW_PREFIX)
            try:
                view = _decode(name, value, str(experiment.experiment_id))
            except UsageError as error:
                problems.append(f"{name}: {error}")
                continue
            if name not in found or found[name].created < view.created:
                found[name] = view
    order = sorted(found.values(), key=lambda view: view.name.lower())
    return SavedViews(tuple(order), tuple(problems))


def _decode(name: str, text: str, experiment_id: str) -> SavedView:
    try:
        content = TypeAdapter(dict[str, Any]).validate_json(text)
    except ValidationError as error:
        raise DataError(f"not a complete view ({described(error)})") from None
    kept = content | {"name": check_name(name), "experiment_id": experiment_id}
    return records.validated(kept, _VIEW, "view")


def check_name(name: str) -> str:
    """Return the name of a view if it can be used in a URL without escaping.

    Raises:
        ConfigError: The name cannot be used.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a view's name is {name[:80]!r}; expected 1 to {MAX_NAME_CHARACTERS} letters, digits, "
            "and -, _ or . after the first of them"
        )
    return name


def save_view(
    name: str,
    parameters: Mapping[str, str],
    person: str,
    *,
    replaces: str = "",
) -> SavedView:
    """Save the values of a URL as a view, and return the view as written.

    Args:
        name: Name of the view.
        parameters: The values of the URL's query string by their keys, including `runs`.
        person: Name of the person who saves the view; can be empty.
        replaces: Name of the view that this view replaces, if a view is changed or renamed.

    Raises:
        ConfigError: The name is invalid or already used, or the URL is too long or has no runs.
        TrackingError: The first run no longer exists, or the store cannot be written.
    """
    check_name(name)
    view = SavedView(name, urlencode(parameters), person, datetime.now(UTC).isoformat())
    if not view.run_ids:
        raise ConfigError("the view has no runs; choose some, then save it")
    if len(view.address) > MAX_ADDRESS_CHARACTERS:
        raise ConfigError(
            f"the view's address has {len(view.address)} characters, but at most "
            f"{MAX_ADDRESS_CHARACTERS} can be saved; choose fewer runs"
        )
    found = list_views()
    taken = found.find(name)
    if taken is not None and name != replaces:
        raise ConfigError(
            f"there is a view {name} of {taken.person or 'somebody'} already; choose another name, "
            "or open it and save it again"
        )
    experiment_id = find_run(view.run_ids[0]).experiment_id
    content = {"schema_version": records.SCHEMA_VERSION} | asdict(view)
    del content["name"], content["experiment_id"]
    text = TypeAdapter(dict[str, Any]).dump_json(content).decode()
    with store.using(f"saving the view {name}"):
        client().set_experiment_tag(experiment_id, names.TAG_VIEW_PREFIX + name, text)
    old = found.find(replaces)
    if old is not None and (old.name, old.experiment_id) != (name, experiment_id):
        _delete(old)
    return SavedView(name, view.address, person, view.created, experiment_id)


def delete_view(name: str) -> None:
    """Delete a saved view.

    Raises:
        ConfigError: There is no view with this name.
        TrackingError: The store cannot be written.
    """
    found = list_views()
    view = found.find(name)
    if view is None:
        there = ", ".join(each.name for each in found.views[:20]) or "none"
        raise ConfigError(f"no view {name[:80]} is in the store; there is {there}")
    _delete(view)


def _delete(view: SavedView) -> None:
    with store.using(f"deleting the view {view.name}"):
        key = names.TAG_VIEW_PREFIX + view.name
        client().delete_experiment_tag(view.experiment_id, key)
