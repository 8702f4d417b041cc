"""Moves aliases so that two people cannot both win, and an interrupted move leaves no half.

MLflow sets an alias unconditionally, one at a time. So whoever wants to move some first puts a
claim on the model, a tag that says what was and what shall be, and enters when no other claim is
in the way: Lamport's one-bit algorithm (1986, "The mutual exclusion problem, part II"), in which
of two who claim at once one always sees the other. Inside, the aliases are read again; if they
are not what the decision was based on, the move is refused. The alias named last is the one
that counts: until it has moved, nothing has.

The claim is also the journal. A claim whose owner died is settled by whoever comes next: a move
that did not reach its last alias is undone. Owners are taken to be dead after `CLAIM_SECONDS`,
by the clocks of the machines that take part.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from clew.errors import PromotionRefused, TrackingError
from clew.runs.registry import ModelState

logger = logging.getLogger(__name__)

CLAIM_PREFIX = "clew.claim."
CLAIM_SECONDS = 60.0
POLL_SECONDS = 0.1

Aliases = Mapping[str, str | None]
"""Alias to version number; None: the alias is not set."""


class AliasStore(Protocol):
    """What moving needs of a registry."""

    def state(self, name: str) -> ModelState | None:
        """Return aliases and tags as they are now."""
        ...

    def set_alias(self, name: str, alias: str, number: str | None) -> None:
        """Point an alias to a version, or remove it."""
        ...

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        """Set a tag of the model."""
        ...

    def delete_model_tag(self, name: str, key: str) -> None:
        """Remove a tag of the model."""
        ...


@dataclass(frozen=True)
class Claim:
    """Somebody wants to move aliases; once inside, it says from where to where."""

    key: str
    made_at: float
    before: Aliases
    after: Aliases

    @property
    def is_dead(self) -> bool:
        """Whether its owner must have died."""
        return time.time() - self.made_at > CLAIM_SECONDS

    def text(self) -> str:
        """Return the tag's value."""
        return json.dumps(
            {"made_at": self.made_at, "before": dict(self.before), "after": dict(self.after)}
        )


class UnsettledMove(TrackingError):
    """The registry went away with a move half done; the claim that says so is still there."""


def move_aliases(registry: AliasStore, name: str, *, before: Aliases, after: Aliases) -> None:
    """Move aliases from `before` to `after`, in the order of `after`, or none of them.

    Raises:
        PromotionRefused: the aliases are not as `before` says (any more).
        UnsettledMove: the registry went away half way; the next command undoes what was begun.
        TrackingError: the registry does not answer; nothing has moved.
    """
    with _claimed(registry, name) as claim:
        _expect(_state(registry, name), name, before)
        plan = replace(claim, made_at=time.time(), before=before, after=after)
        registry.set_model_tag(name, plan.key, plan.text())
        try:
            for alias, number in after.items():
                if number != before.get(alias):
                    _refuse_if_late(plan)
                    registry.set_alias(name, alias, number)
        except BaseException as error:
            _undo_now(registry, name, plan, error)
            raise
        _expect(_state(registry, name), name, after)


def settle_dead_claims(registry: AliasStore, name: str) -> None:
    """Undo what dead processes began and did not finish, and remove their claims."""
    state = registry.state(name)
    if state and any(claim.is_dead for claim in _claims(state)):
        with _claimed(registry, name):
            pass


@contextmanager
def _claimed(registry: AliasStore, name: str) -> Iterator[Claim]:
    """Hold the only live claim on the model's aliases; dead ones are settled first."""
    claim = Claim(f"{CLAIM_PREFIX}{uuid.uuid4().hex}", time.time(), {}, {})
    try:
        _enter(registry, name, claim)
        for dead in [other for other in _claims(_state(registry, name)) if other.is_dead]:
            _settle(registry, name, dead)
        yield claim
    except UnsettledMove:
        raise
    except BaseException:
        _remove(registry, name, claim)
        raise
    _remove(registry, name, claim)


def _enter(registry: AliasStore, name: str, claim: Claim) -> None:
    """Put the claim up and wait until no live one is in the way: smaller keys go first."""
    deadline = time.monotonic() + 2 * CLAIM_SECONDS

    def others() -> list[str]:
        return [other.key for other in _claims(_state(registry, name), live=True)]

    def wait_while(in_the_way: Callable[[], bool]) -> None:
        while in_the_way():
            if time.monotonic() > deadline:
                raise PromotionRefused(
                    f"aliases of model {name!r} are being moved by others for more than "
                    f"{2 * CLAIM_SECONDS:.0f} s; run the command again"
                )
            time.sleep(POLL_SECONDS)

    def smaller() -> bool:
        return any(key < claim.key for key in others())

    while True:
        text = replace(claim, made_at=time.time()).text()
        registry.set_model_tag(name, claim.key, text)
        if not smaller():
            break
        registry.delete_model_tag(name, claim.key)
        wait_while(smaller)
    wait_while(lambda: any(key > claim.key for key in others()))


def _remove(registry: AliasStore, name: str, claim: Claim) -> None:
    try:
        registry.delete_model_tag(name, claim.key)
    except TrackingError as error:
        logger.warning(
            "claim %s stays on model %r (%s); it lapses after %.0f s",
            claim.key,
            name,
            error,
            CLAIM_SECONDS,
        )


def _refuse_if_late(plan: Claim) -> None:
    """Stop in time before others take this process for dead, a hanging request included."""
    if time.time() - plan.made_at > CLAIM_SECONDS / 2:
        raise TrackingError(
            "the registry answers too slowly to move aliases safely; nothing is moved, run the "
            "command again"
        )


def _undo_now(registry: AliasStore, name: str, plan: Claim, error: BaseException) -> None:
    try:
        _settle(registry, name, plan)
    except TrackingError:
        raise UnsettledMove(
            f"the registry went away while aliases of model {name!r} were moving ({error}); the "
            f"next promotion or rollback, {CLAIM_SECONDS:.0f} s from now or later, first undoes "
            "what was begun"
        ) from None


def _settle(registry: AliasStore, name: str, plan: Claim) -> None:
    """Undo a plan unless all of it was done, and remove its claim."""
    aliases = _state(registry, name).aliases
    moved = {alias: to for alias, to in plan.after.items() if to != plan.before.get(alias)}
    done = all(aliases.get(alias) == to for alias, to in moved.items())
    by_us_alone = all(aliases.get(a) in (plan.before.get(a), to) for a, to in moved.items())
    if not done and by_us_alone:
        for alias in moved:
            if aliases.get(alias) != plan.before.get(alias):
                logger.warning("undoing an interrupted move of alias %r of model %r", alias, name)
                registry.set_alias(name, alias, plan.before.get(alias))
    registry.delete_model_tag(name, plan.key)


def _expect(state: ModelState, name: str, expected: Aliases) -> None:
    for alias, number in expected.items():
        found = state.aliases.get(alias)
        if found != number:
            raise PromotionRefused(
                f"alias {alias!r} of model {name!r} is at {_shown(found)}, expected "
                f"{_shown(number)}: somebody else moved it meanwhile; run the command again to "
                "compete with what is there now"
            )


def _state(registry: AliasStore, name: str) -> ModelState:
    state = registry.state(name)
    if state is None:
        raise PromotionRefused(f"model {name!r} was deleted meanwhile; run the command again")
    return state


def _claims(state: ModelState, *, live: bool = False) -> list[Claim]:
    """Return the claims on a model, or the live ones; a damaged one counts as dead."""
    found = []
    for key, value in state.tags.items():
        if not key.startswith(CLAIM_PREFIX):
            continue
        try:
            content = json.loads(value)
            found.append(Claim(key, content["made_at"], content["before"], content["after"]))
        except (ValueError, KeyError, TypeError):
            found.append(Claim(key, 0.0, {}, {}))
    return [claim for claim in found if not (live and claim.is_dead)]


def _shown(number: str | None) -> str:
    return "no version" if number is None else f"version {number}"
