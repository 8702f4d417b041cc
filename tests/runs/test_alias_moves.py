"""Aliases move whole or not at all, and of two who move at once one is told that it lost."""

import random
import threading
import time

import pytest

from clew.errors import PromotionRefused, TrackingError
from clew.runs import alias_moves
from clew.runs.alias_moves import (
    CLAIM_PREFIX,
    Claim,
    UnsettledMove,
    move_aliases,
    settle_dead_claims,
)
from clew.runs.registry import ModelState


class Aliases:
    """A registry in memory: every call takes a moment, may fail, and sets unconditionally."""

    def __init__(self, aliases: dict[str, str], *, slow: bool = False) -> None:
        self.aliases = dict(aliases)
        self.tags: dict[str, str] = {}
        self.writes: list[tuple[str, str | None]] = []
        self.calls_left: float = float("inf")
        self.lock = threading.Lock()
        self.slow = slow

    def _call(self) -> None:
        if self.slow:
            time.sleep(random.random() * 0.004)
        self.calls_left -= 1
        if self.calls_left < 0:
            raise TrackingError("the registry does not answer")

    def state(self, name: str) -> ModelState:
        self._call()
        with self.lock:
            return ModelState(dict(self.aliases), dict(self.tags))

    def set_alias(self, name: str, alias: str, number: str | None) -> None:
        self._call()
        with self.lock:
            self.writes.append((alias, number))
            if number is None:
                self.aliases.pop(alias, None)
            else:
                self.aliases[alias] = number

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        self._call()
        with self.lock:
            self.tags[key] = value

    def delete_model_tag(self, name: str, key: str) -> None:
        self._call()
        with self.lock:
            self.tags.pop(key, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_moves, "POLL_SECONDS", 0.002)


BEFORE = {"previous": "1", "champion": "2"}
AFTER = {"previous": "2", "champion": "3"}


def test_aliases_move_in_the_order_given_and_no_claim_stays() -> None:
    registry = Aliases({**BEFORE, "challenger": "9"})
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == {**AFTER, "challenger": "9"}
    assert registry.writes == [("previous", "2"), ("champion", "3")]
    assert registry.tags == {}


def test_an_alias_that_is_not_set_is_expected_and_set_and_removed() -> None:
    registry = Aliases({})
    move_aliases(registry, "m", before={"champion": None}, after={"champion": "1"})
    assert registry.aliases == {"champion": "1"}
    move_aliases(registry, "m", before={"champion": "1"}, after={"champion": None})
    assert registry.aliases == {}


def test_a_champion_moved_meanwhile_refuses_the_move() -> None:
    registry = Aliases({"previous": "2", "champion": "4"})
    with pytest.raises(PromotionRefused, match="somebody else moved it meanwhile"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == {"previous": "2", "champion": "4"}
    assert registry.writes == []
    assert registry.tags == {}


def test_a_hand_that_moves_the_champion_during_the_move_is_seen() -> None:
    class Interfering(Aliases):
        def set_alias(self, name: str, alias: str, number: str | None) -> None:
            super().set_alias(name, alias, number)
            if alias == "champion":
                self.aliases["champion"] = "77"

    registry = Interfering(BEFORE)
    with pytest.raises(PromotionRefused, match="'champion' of model 'm' is at version 77"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.tags == {}


@pytest.mark.parametrize("seed", range(12))
def test_of_several_at_once_exactly_one_wins(seed: int) -> None:
    random.seed(seed)
    registry = Aliases(BEFORE, slow=True)
    outcomes: dict[str, str] = {}
    barrier = threading.Barrier(4)

    def compete(number: str) -> None:
        barrier.wait()
        try:
            after = {"previous": "2", "champion": number}
            move_aliases(registry, "m", before=BEFORE, after=after)
            outcomes[number] = "won"
        except PromotionRefused:
            outcomes[number] = "lost"

    threads = [threading.Thread(target=compete, args=(str(10 + i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, outcome in outcomes.items() if outcome == "won"]
    assert len(outcomes) == 4
    assert registry.aliases == {"previous": "2", "champion": winner}
    assert registry.tags == {}
    assert [write for write in registry.writes if write[0] == "champion"] == [("champion", winner)]


def calls_of_a_whole_move() -> int:
    registry = Aliases(BEFORE)
    registry.calls_left = 1000
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    return int(1000 - registry.calls_left)


@pytest.mark.parametrize("calls", range(calls_of_a_whole_move()))
def test_a_registry_that_goes_away_at_any_call_leaves_no_half(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Aliases(BEFORE)
    registry.calls_left = calls
    failed = False
    try:
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    except TrackingError:
        failed = True
    registry.calls_left = float("inf")
    # What others read as champion is the old one until the last write, and then the new one.
    assert registry.aliases["champion"] in ("2", "3")
    later = time.time() + 1000
    monkeypatch.setattr(alias_moves.time, "time", lambda: later)
    settle_dead_claims(registry, "m")
    assert registry.aliases in (BEFORE, AFTER)
    assert registry.tags == {}
    if not failed:
        assert registry.aliases == AFTER


def test_half_a_move_is_reported_as_such_and_undone_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Aliases(BEFORE)

    def fail_at_champion(name: str, alias: str, number: str | None) -> None:
        if alias == "champion":
            registry.calls_left = 0
        Aliases.set_alias(registry, name, alias, number)

    registry.set_alias = fail_at_champion  # type: ignore[method-assign]
    with pytest.raises(UnsettledMove, match="undoes what was begun"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    del registry.set_alias
    registry.calls_left = float("inf")
    assert registry.aliases == {"previous": "2", "champion": "2"}
    later = time.time() + 1000
    monkeypatch.setattr(alias_moves.time, "time", lambda: later)
    move_aliases(registry, "m", before=BEFORE, after={"previous": "2", "champion": "5"})
    assert registry.aliases == {"previous": "2", "champion": "5"}
    assert registry.writes[1] == ("previous", "1")


def test_an_interruption_by_the_person_is_undone_at_once() -> None:
    registry = Aliases(BEFORE)

    def interrupted(name: str, alias: str, number: str | None) -> None:
        if (alias, number) == ("champion", "3"):
            raise KeyboardInterrupt
        Aliases.set_alias(registry, name, alias, number)

    registry.set_alias = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == BEFORE
    assert registry.tags == {}


def test_a_live_claim_of_another_is_waited_for_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_moves, "CLAIM_SECONDS", 0.3)
    registry = Aliases(BEFORE)
    other = Claim(f"{CLAIM_PREFIX}0", time.time(), {}, {})
    registry.tags[other.key] = other.text()
    began = time.monotonic()
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert time.monotonic() - began > 0.2
    assert registry.aliases == AFTER


def test_a_claim_that_never_ends_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_moves, "CLAIM_SECONDS", 0.05)
    registry = Aliases(BEFORE)
    immortal = Claim(f"{CLAIM_PREFIX}0", time.time() + 1000, {}, {})
    registry.tags[immortal.key] = immortal.text()
    with pytest.raises(PromotionRefused, match="being moved by others"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert list(registry.tags) == [immortal.key]


def test_a_damaged_claim_is_no_obstacle() -> None:
    registry = Aliases(BEFORE)
    registry.tags[f"{CLAIM_PREFIX}x"] = "not a claim"
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.tags == {}


def test_too_slow_a_registry_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Aliases(BEFORE)
    now = time.time()
    ticks = iter(range(10_000))
    monkeypatch.setattr(alias_moves.time, "time", lambda: now + 10.0 * next(ticks))
    monkeypatch.setattr(alias_moves, "CLAIM_SECONDS", 15.0)
    with pytest.raises(TrackingError, match="answers too slowly"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == BEFORE
