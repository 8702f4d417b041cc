"""The write side of the model registry: versions, their tags and files, and moves of aliases.

MLflow sets an alias unconditionally, one at a time. So whoever moves aliases first sets a claim, a
tag of the model under its own key, reads the model back, and goes on only if no other live
claim is there. Each sets before it reads, so of two at once at least one reads the other's claim:
never do both go on. Then the aliases are compared with what the decision was based on, the claim
gets the plan, and the alias that counts moves first. That one write is the decision. Before it
nothing has changed; after it the rest only follows, and whoever comes next does what is missing.

A process is taken for dead when its claim is older than `CLAIM_SECONDS`, by the clocks of the
machines that take part. It stops by itself at half that time, and a request ends after 30 s.
"""

import os
import random
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient, artifacts
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from clew import names
from clew.errors import ConfigError, PromotionRefused, TrackingError
from clew.runs import store
from clew.runs.opening import connect

CLAIM_PREFIX = "clew.claim."
CLAIM_SECONDS = 60.0
RETRY_SECONDS = 0.2
SERVABLE = "servable"
"""Name and type of the model entries that versions are made of."""

Aliases = Mapping[str, str | None]
"""Alias to version number; None: the alias is not set."""

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
        TrackingError: If the store or the network fails.
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
            with using(self.uri, "listing registered models"):
                known = [str(model.name) for model in self.client.search_registered_models()]
            raise TrackingError(
                f"no model {name!r} is registered in {store.shown(self.uri)}; registered: "
                f"{', '.join(known) or 'none'}; register one with `clew promote`"
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

    def abandon(self, promote_run: str, source_run: str, reason: str) -> None:
        """Mark what a promotion that died has left: an upload without end, versions unjudged."""
        mine = f"tags.`{names.TAG_PROMOTE_RUN}` = '{promote_run}'"
        with using(self.uri, f"ending what promotion {promote_run} began"):
            experiment_id = self.client.get_run(source_run).info.experiment_id
            for model in self.client.search_logged_models([experiment_id], mine):
                if model.status == LoggedModelStatus.PENDING:
                    self.client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
            found = [_version_of(v) for v in self.client.search_model_versions(mine)]
        for version in found:
            state = self.state(version.name)
            in_use = state is not None and version.number in state.aliases.values()
            if version.tags.get(names.TAG_VALIDATION) == names.VALIDATION_PENDING and not in_use:
                verdict = {names.TAG_REFUSED_BECAUSE: reason}
                self.tag(version, verdict | {names.TAG_VALIDATION: names.VALIDATION_FAILED})

    def register(self, name: str, folder: Path, *, run_id: str, tags: Mapping[str, str]) -> Version:
        """Upload a saved model and make it a version; it is visible only when it is whole."""
        with using(self.uri, f"registering a version of model {name!r}"):
            experiment_id = self.client.get_run(run_id).info.experiment_id
            model = self.client.create_logged_model(
                experiment_id,
                name=SERVABLE,
                source_run_id=run_id,
                tags=dict(tags),
                model_type=SERVABLE,
            )
            try:
                self.client.log_model_artifacts(model.model_id, str(folder))
            except Exception:
                with suppress(MlflowException, SQLAlchemyError, OSError):
                    self.client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)
                raise
            self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
            try:
                self.client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
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


def _version_of(version: ModelVersion) -> Version:
    return Version(
        str(version.name), str(version.version), str(version.run_id or ""), dict(version.tags)
    )


class Claim(BaseModel):
    """The content of a claim: when it was made and, once its process goes on, from where to where.

    A tag that does not hold this is a claim of long ago without a plan.
    """

    made_at: float = 0.0
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}

    @property
    def age_seconds(self) -> float:
        """How long ago it was made."""
        return time.time() - self.made_at


class UnsettledMove(TrackingError):
    """The registry went away during a move; the claim that tells how to complete it is there."""


def move_aliases(registry: Registry, name: str, *, before: Aliases, after: Aliases) -> None:
    """Move aliases from `before` to `after`, or none of them; the first of `after` decides.

    Raises:
        PromotionRefused: the aliases are not as `before` says, or others hold the model too long.
        UnsettledMove: the registry went away half way; the next command completes the move.
        TrackingError: the registry does not answer; nothing has moved.
    """
    decisive = next(iter(after))
    key, claim, aliases = _claim(registry, name)
    try:
        _expect(name, aliases, before)
        claim = claim.model_copy(update={"before": dict(before), "after": dict(after)})
        registry.set_model_tag(name, key, claim.model_dump_json())
        _require_time(claim)
        registry.set_alias(name, decisive, after[decisive])
    finally:
        aliases = _release(registry, name, key, claim)
    _expect(name, aliases, {decisive: after[decisive]})


def settle_moves(registry: Registry, name: str) -> Mapping[str, str]:
    """Return the model's aliases once no move is under way; complete those of dead processes.

    Raises:
        PromotionRefused: others hold the model too long.
        TrackingError: the registry does not answer.
    """
    if (state := registry.state(name)) is None:
        return {}
    if not _claims(state):
        return state.aliases
    key, claim, _ = _claim(registry, name)
    return _release(registry, name, key, claim)


def _claim(registry: Registry, name: str) -> tuple[str, Claim, Mapping[str, str]]:
    """Hold the only live claim; return it, and the aliases with dead processes' moves completed."""
    deadline = time.monotonic() + 2 * CLAIM_SECONDS
    while True:
        if not _others(_state(registry, name)):
            key, claim = f"{CLAIM_PREFIX}{uuid.uuid4().hex}", Claim(made_at=time.time())
            try:
                registry.set_model_tag(name, key, claim.model_dump_json())
                state = _state(registry, name)
                if not _others(state, key):
                    dead = {k: other for k, other in _claims(state).items() if k != key}
                    for other_key, other in dead.items():
                        _settle(registry, name, other_key, other)
                    return key, claim, (_state(registry, name) if dead else state).aliases
            except BaseException:
                with suppress(TrackingError):  # it lapses
                    registry.delete_model_tag(name, key)
                raise
            registry.delete_model_tag(name, key)
        if time.monotonic() > deadline:
            raise PromotionRefused(
                f"aliases of model {name!r} are being moved by others for more than "
                f"{2 * CLAIM_SECONDS:.0f} s; run the command again"
            )
        # Unequal pauses: of two that withdrew for each other, one comes back first.
        time.sleep(RETRY_SECONDS * random.uniform(0.5, 2))


def _release(registry: Registry, name: str, key: str, claim: Claim) -> Mapping[str, str]:
    """Complete one's own move if it was decided, and take the claim away."""
    try:
        return _settle(registry, name, key, claim, own=True)
    except TrackingError as error:
        raise UnsettledMove(
            f"the registry went away while aliases of model {name!r} were moving ({error}); the "
            f"next promotion or rollback, {CLAIM_SECONDS:.0f} s from now or later, completes "
            "what was decided"
        ) from None


def _settle(
    registry: Registry, name: str, key: str, claim: Claim, *, own: bool = False
) -> Mapping[str, str]:
    """Move what still has to follow the decisive alias, remove the claim, return the aliases read.

    Aliases that somebody has set to a third version meanwhile stay.
    """
    aliases = _state(registry, name).aliases
    (decisive, target), *rest = [*claim.after.items()] or [("", "")]
    if aliases.get(decisive) == target:
        for alias, number in rest:
            if aliases.get(alias) == claim.before.get(alias) != number:
                if own:
                    _require_time(claim)
                registry.set_alias(name, alias, number)
    registry.delete_model_tag(name, key)
    return aliases


def _require_time(claim: Claim) -> None:
    """Stop before others take this process for dead, a hanging request included."""
    if claim.age_seconds > CLAIM_SECONDS / 2:
        raise TrackingError(
            "the registry answers too slowly to move aliases safely; run the command again"
        )


def _expect(name: str, aliases: Aliases, expected: Aliases) -> None:
    for alias, number in expected.items():
        if (found := aliases.get(alias)) != number:
            raise PromotionRefused(
                f"alias {alias!r} of model {name!r} is at version {found or 'none'}, expected "
                f"{number or 'none'}: somebody else moved it meanwhile; run the command again to "
                "compete with what is there now"
            )


def _state(registry: Registry, name: str) -> ModelState:
    if (state := registry.state(name)) is None:
        raise PromotionRefused(f"model {name!r} was deleted meanwhile; run the command again")
    return state


def _claims(state: ModelState) -> dict[str, Claim]:
    found = {}
    for key, value in state.tags.items():
        if key.startswith(CLAIM_PREFIX):
            try:
                found[key] = Claim.model_validate_json(value)
            except ValidationError:
                found[key] = Claim()
    return found


def _others(state: ModelState, own: str = "") -> bool:
    """Whether another live claim is there."""
    claims = _claims(state).items()
    return any(key != own and claim.age_seconds <= CLAIM_SECONDS for key, claim in claims)
