"""Moves aliases of a registered model, so that of several processes at once exactly one decides.

MLflow sets an alias unconditionally, one at a time. So whoever moves aliases first sets a claim, a
tag of the model under its own key, reads the model back, and goes on only if no other live
claim is there. Each sets before it reads, so of two at once at least one reads the other's claim:
never do both go on. Then the aliases are compared with what the decision was based on, the claim
gets the plan, and the alias that counts moves first. That one write is the decision. Before it
nothing has changed; after it the rest only follows, and whoever comes next does what is missing.

A process is taken for dead when its claim is older than `CLAIM_SECONDS`, by the clocks of the
machines that take part. It stops by itself at half that time, and a request ends after 30 s.
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
"""Alias to version number; None: the alias is not set."""


class MoveClaim(BaseModel):
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


def _claim(registry: Registry, name: str) -> tuple[str, MoveClaim, Mapping[str, str]]:
    """Hold the only live claim; return it, and the aliases with dead processes' moves completed."""
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


def _release(registry: Registry, name: str, key: str, claim: MoveClaim) -> Mapping[str, str]:
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
    registry: Registry, name: str, key: str, claim: MoveClaim, *, own: bool = False
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


def _require_time(claim: MoveClaim) -> None:
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
    """Whether another live claim is there."""
    claims = _claims(state).items()
    return any(key != own and claim.age_seconds <= CLAIM_SECONDS for key, claim in claims)
