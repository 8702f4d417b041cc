"""Views of the page Compare under names: what is in its address, kept in the store for all.

A view is a tag of the experiment of its first run, so that it is written and deleted as a whole, by
any number of people, and no run is needed for it.
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
"""A tag of an experiment holds 5,000 on the servers that hold least."""
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_CHARACTERS - 1}}}")


@dataclass(frozen=True)
class SavedView:
    """What the page showed when somebody saved it."""

    name: str
    address: str
    """The query of the page's address: runs, columns, settings."""
    person: str = ""
    created: str = ""
    """Time in ISO 8601 with zone; filled in when it is written."""
    experiment_id: str = ""
    """Where it is kept."""

    @property
    def parameters(self) -> dict[str, str]:
        """The values in the address by their keys."""
        return dict(parse_qsl(self.address))

    @property
    def run_ids(self) -> list[str]:
        """The runs that it shows."""
        return [run_id for run_id in self.parameters.get("runs", "").split(",") if run_id]


_VIEW = TypeAdapter(SavedView)


@dataclass(frozen=True)
class SavedViews:
    """The views of a store by name, and the tags that are none."""

    views: tuple[SavedView, ...]
    problems: tuple[str, ...] = ()

    def find(self, name: str) -> SavedView | None:
        """Return the view of this name, None if there is none."""
        return next((view for view in self.views if view.name == name), None)


def list_views() -> SavedViews:
    """Return all saved views, in the order of their names.

    Raises:
        TrackingError: the store does not answer.
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
        raise DataError(f"not a whole view ({described(error)})") from None
    kept = content | {"name": check_name(name), "experiment_id": experiment_id}
    return records.validated(kept, _VIEW, "view")


def check_name(name: str) -> str:
    """Return a view's name if it can stand in an address as it is.

    Raises:
        ConfigError: it cannot.
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
    """Keep what an address holds under a name, and return it as written.

    Args:
        name: The name.
        parameters: The address's values by their keys; `runs` is among them.
        person: Who saves it; may be empty.
        replaces: A view that this one takes the place of: the same one changed, or renamed.

    Raises:
        ConfigError: the name cannot be used or is taken, or the address is too long or has no runs.
        TrackingError: the first run is gone, or the store cannot be written.
    """
    check_name(name)
    view = SavedView(name, urlencode(parameters), person, datetime.now(UTC).isoformat())
    if not view.run_ids:
        raise ConfigError("the view has no runs; choose some, then save it")
    if len(view.address) > MAX_ADDRESS_CHARACTERS:
        raise ConfigError(
            f"the view's address has {len(view.address)} characters; at most "
            f"{MAX_ADDRESS_CHARACTERS} fit: choose fewer runs"
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
        ConfigError: there is none of this name.
        TrackingError: the store cannot be written.
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
