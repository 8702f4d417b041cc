"""The write side of the model registry: versions, their tags, their files.

Everything here is one call or a few to MLflow; which alias may move when is `alias_moves`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient, artifacts
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from clew.runs import store
from clew.errors import ConfigError, TrackingError
from clew.runs.opening import connect

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. \-]{0,199}")
_ALIAS = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_VERSION_ALIAS = re.compile(r"v\d+", re.IGNORECASE)
_MISSING = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    number: str
    run_id: str
    tags: Mapping[str, str]

    @property
    def uri(self) -> str:
        """Address of this very version, whatever the aliases do."""
        return f"models:/{self.name}/{self.number}"


@dataclass(frozen=True)
class ModelState:
    """What a registered model says of itself in one read: alias to version number, and tags."""

    aliases: Mapping[str, str]
    tags: Mapping[str, str]


def check_name(name: str) -> None:
    """Refuse a name that the registry, or an address with it, cannot hold.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name) or name.strip() != name:
        raise ConfigError(
            f"model name {name!r} is not allowed; use up to 200 letters, digits, `_`, `-`, `.` and "
            "spaces, beginning with a letter, digit or `_` (no `/`, no `:`)"
        )


def check_alias(alias: str, *, reserved: frozenset[str] = frozenset()) -> None:
    """Refuse an alias that the registry does not take or that is kept for another use.

    Raises:
        ConfigError: it is refused.
    """
    if not _ALIAS.fullmatch(alias) or alias.lower() == "latest" or _VERSION_ALIAS.fullmatch(alias):
        raise ConfigError(
            f"alias {alias!r} is not allowed; use letters, digits, `_` and `-`, not `latest` and "
            "not `v` with a number"
        )
    if alias in reserved:
        raise ConfigError(
            f"alias {alias!r} is set by the promotion itself; give the alias to compete for, for "
            "example champion"
        )


@contextmanager
def using(uri: str, what: str) -> Iterator[None]:
    """Turn whatever a store raises into one line that says what could not be done.

    Raises:
        TrackingError: it could not.
    """
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise TrackingError(
            f"{what} failed on {store.shown(uri)} ({first_line}); check that the store answers and "
            "run the command again"
        ) from None


class Registry:
    """The registry of the tracking store in use."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client
        self.uri = str(client.tracking_uri)

    @classmethod
    def connect(cls) -> "Registry":
        """Open the registry.

        Raises:
            TrackingError: the store does not answer or cannot be written.
        """
        return cls(connect(store.tracking_uri()))

    def state(self, name: str) -> ModelState | None:
        """Return the model's aliases and tags as they are now; None if there is no such model."""
        with using(self.uri, f"reading model {name!r}"):
            try:
                model = self.client.get_registered_model(name)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise
        aliases = {alias: str(number) for alias, number in dict(model.aliases).items()}
        return ModelState(aliases, dict(model.tags))

    def names(self) -> list[str]:
        """Return the names of registered models."""
        with using(self.uri, "listing registered models"):
            return [str(model.name) for model in self.client.search_registered_models()]

    def version(self, name: str, number: str) -> Version:
        """Return a version by its number.

        Raises:
            TrackingError: there is none.
        """
        with using(self.uri, f"reading version {number} of model {name!r}"):
            try:
                return _version_of(self.client.get_model_version(name, number))
            except MlflowException as error:
                if error.error_code not in _MISSING:
                    raise
        raise TrackingError(
            f"model {name!r} has no version {number} in {store.shown(self.uri)}; list them with "
            f"the dashboard, or register one with `clew promote --name {name}`"
        )

    def version_at(self, name: str, alias: str) -> Version:
        """Return the version that an alias points to.

        Raises:
            TrackingError: there is no such model or alias.
        """
        state = self.state(name)
        if state is None:
            raise TrackingError(
                f"no model {name!r} is registered in {store.shown(self.uri)}; registered: "
                f"{', '.join(self.names()) or 'none'}; register one with `clew promote`"
            )
        if alias not in state.aliases:
            raise TrackingError(
                f"model {name!r} has no alias {alias!r}; it has "
                f"{', '.join(sorted(state.aliases)) or 'none'}"
            )
        return self.version(name, state.aliases[alias])

    def versions_of_run(self, name: str, run_id: str) -> list[Version]:
        """Return the model's versions that a run was the source of, the newest first."""
        query = f"name = '{name}' AND run_id = '{run_id}'"
        with using(self.uri, f"listing versions of model {name!r}"):
            found = self.client.search_model_versions(query)
        versions = [_version_of(v) for v in found if v.status == "READY"]
        return sorted(versions, key=lambda version: int(version.number), reverse=True)

    def register(self, name: str, folder: Path, *, run_id: str, tags: Mapping[str, str]) -> Version:
        """Upload a saved model and make it a version; it is visible only when it is whole."""
        with using(self.uri, f"registering a version of model {name!r}"):
            experiment_id = self.client.get_run(run_id).info.experiment_id
            model = self.client.create_logged_model(
                experiment_id,
                name="servable",
                source_run_id=run_id,
                tags=dict(tags),
                model_type="servable",
            )
            try:
                self.client.log_model_artifacts(model.model_id, str(folder))
            except Exception:
                with suppress(MlflowException, SQLAlchemyError, OSError):
                    self.client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
                raise
            self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            self._create_model(name)
            created = self.client.create_model_version(
                name,
                f"models:/{model.model_id}",
                run_id=run_id,
                tags=dict(tags),
                model_id=model.model_id,
            )
            return _version_of(created)

    def tag(self, version: Version, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        with using(self.uri, f"tagging {version.uri}"):
            for key, value in tags.items():
                self.client.set_model_version_tag(version.name, version.number, key, value)

    def set_alias(self, name: str, alias: str, number: str | None) -> None:
        """Point an alias to a version, or remove it."""
        with using(self.uri, f"moving alias {alias!r} of model {name!r}"):
            if number is None:
                self.client.delete_registered_model_alias(name, alias)
            else:
                self.client.set_registered_model_alias(name, alias, number)

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        """Set a tag of the model itself."""
        with using(self.uri, f"tagging model {name!r}"):
            self.client.set_registered_model_tag(name, key, value)

    def delete_model_tag(self, name: str, key: str) -> None:
        """Remove a tag of the model itself; one that is gone already is no error."""
        with using(self.uri, f"untagging model {name!r}"):
            try:
                self.client.delete_registered_model_tag(name, key)
            except MlflowException as error:
                if error.error_code not in _MISSING:
                    raise

    def download(self, version: Version, folder: Path) -> Path:
        """Copy the files of a version into `folder` and return where they are."""
        folder.mkdir(parents=True, exist_ok=True)
        with using(self.uri, f"downloading {version.uri}"):
            # `models:/` addresses would be looked up in MLflow's global store, not in this one.
            location = self.client.get_model_version_download_uri(version.name, version.number)
            path = artifacts.download_artifacts(
                artifact_uri=location, dst_path=os.fspath(folder), tracking_uri=self.uri
            )
            return Path(path)

    def _create_model(self, name: str) -> None:
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def _version_of(version: ModelVersion) -> Version:
    return Version(
        str(version.name), str(version.version), str(version.run_id or ""), dict(version.tags)
    )
