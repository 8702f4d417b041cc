"""Moves aliases of a registered model so that only one of several concurrent processes succeeds.

MLflow sets one alias at a time, without a condition. A process that wants to move aliases therefore
works in these steps:

1. It sets a claim: a tag of the model under a key of its own.
2. It reads the model back, and continues only if there is no other live claim. Each process sets
   its claim before it reads, so if two processes run at once, at least one of them sees the other's
   claim, and they never both continue.
3. It compares the aliases with those that its decision was based on.
4. It writes the planned move into the claim.
5. It moves the decisive alias first. This single write is the decision: before it, nothing has
   changed. After it, the other aliases follow, and if the process dies, the next process completes
   the move.

A process counts as dead when its claim is older than `CLAIM_SECONDS` by the clocks of the machines
involved. A process stops by itself after half that time, and a request ends after 30 s.
"""

import random
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from clew.errors import PromotionRefused, TrackingError
from clew.runs.registry import ModelState, Registry

CLAIM_PREFIX = "clew.claim."
CLAIM_SECONDS = 60.0
RETRY_SECONDS = 0.2

Aliases = Mapping[str, str | None]
"""Version number of each alias; None if the alias is not set."""


class MoveClaim(BaseModel):
    """The content of a claim: when it was made, and the aliases before and after the planned move.

    A tag with other content counts as an expired claim without a plan.
    """

    made_at: float = 0.0
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}

    @property
    def age_seconds(self) -> float:
        """Age of the claim in seconds."""
        return time.time() - self.made_at


class UnsettledMove(TrackingError):
    """The registry stopped responding during a move; the claim stays and describes the move."""


def move_aliases(registry: Registry, name: str, *, before: Aliases, after: Aliases) -> None:
    """Move all aliases from `before` to `after`, or none; the first alias of `after` is decisive.

    Raises:
        PromotionRefused: The aliases differ from `before`, or other processes claim the model for
            too long.
        UnsettledMove: The registry stopped responding during the move; the next command completes
            the move.
        TrackingError: The registry does not respond; nothing was moved.
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
    """Wait until no move is in progress, complete moves of dead processes, return the aliases.

    Raises:
        PromotionRefused: Other processes claim the model for too long.
        TrackingError: The registry does not respond.
    """
    if (state := registry.state(name)) is None:
        return {}
    if not _claims(state):
        return state.aliases
    key, claim, _ = _claim(registry, name)
    return _release(registry, name, key, claim)


def _claim(registry: Registry, name: str) -> tuple[str, MoveClaim, Mapping[str, str]]:
    """Get the only live claim and complete the moves of dead processes.

    Returns:
        The key of the claim, the claim, and the aliases after these moves.
    """
    deadline = time.monotonic() + 2 * CLAIM_SECONDS
    while True:
        if not _others(_state(registry, name)):
            key, claim = f"{CLAIM_PREFIX}{uuid.uuid4().hex}", MoveClaim(made_at=time.time())
            try:
                registry.set_model_tag(name, key, claim.model_dump_json())
                state = _state(registry, name)
                if not _others(state, key):
                    dead = {k: other for k, other in _claims(state).items() if k != key}
                    for other_key, other in dead.items():
                        _settle(registry, name, other_key, other)
                    return key, claim, (_state(registry, name) if dead else state).aliases
            except BaseException:
                with suppress(TrackingError):  # the claim expires anyway
                    registry.delete_model_tag(name, key)
                raise
            registry.delete_model_tag(name, key)
        if time.monotonic() > deadline:
            raise PromotionRefused(
                f"other processes keep moving the aliases of model {name!r}, for more than "
                f"{2 * CLAIM_SECONDS:.0f} s already; run the command again"
            )
        # Random pauses: if two processes withdrew for each other, one of them returns first.
        time.sleep(RETRY_SECONDS * random.uniform(0.5, 2))


def _release(registry: Registry, name: str, key: str, claim: MoveClaim) -> Mapping[str, str]:
    try:
        return _settle(registry, name, key, claim, own=True)
    except TrackingError as error:
        raise UnsettledMove(
            f"the registry stopped responding while aliases of model {name!r} were being moved "
            f"({error}); a promotion or rollback at least {CLAIM_SECONDS:.0f} s from now completes "
            "the move"
        ) from None


def _settle(
    registry: Registry, name: str, key: str, claim: MoveClaim, *, own: bool = False
) -> Mapping[str, str]:
    """Complete the move of a claim, remove the claim, and return the aliases as read before.

    The other aliases move only if the decisive alias was moved. An alias that somebody has set to a
    third version meanwhile is not changed.
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


def _require_time(claim: MoveClaim) -> None:
    """Stop in time, so that others do not consider this process dead during a slow request."""
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
                "compete with the current version"
            )


def _state(registry: Registry, name: str) -> ModelState:
    if (state := registry.state(name)) is None:
        raise PromotionRefused(f"model {name!r} was deleted meanwhile; run the command again")
    return state


def _claims(state: ModelState) -> dict[str, MoveClaim]:
    found = {}
    for key, value in state.tags.items():
        if key.startswith(CLAIM_PREFIX):
            try:
                found[key] = MoveClaim.model_validate_json(value)
            except ValidationError:
                found[key] = MoveClaim()
    return found


def _others(state: ModelState, own: str = "") -> bool:
    claims = _claims(state).items()
    return any(key != own and claim.age_seconds <= CLAIM_SECONDS for key, claim in claims)
