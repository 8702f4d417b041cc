"""Aliases move completely or not at all, and of several simultaneous moves exactly one wins.

Kills and races are enumerated: a registry in memory stops a process at each of its calls, and runs
two processes call by call in every order, and three in every order with at most three switches.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from greenlet import getcurrent, greenlet

from clew.errors import PromotionRefused, TrackingError
from clew.runs import alias_moves as module
from clew.runs.alias_moves import (
    CLAIM_PREFIX,
    MoveClaim,
    UnsettledMove,
    move_aliases,
    settle_moves,
)
from clew.runs.registry import ModelState


class Aliases:
    """A registry in memory: every call can be slow or fail, and writes are unconditional."""

    def __init__(self, aliases: dict[str, str], *, slow: bool = False) -> None:
        self.aliases = dict(aliases)
        self.tags: dict[str, str] = {}
        self.writes: list[tuple[str, str | None]] = []
        self.calls_left: float = float("inf")
        self.slow = slow

    def _call(self) -> None:
        if self.slow:
            time.sleep(random.random() * 0.004)
        self.calls_left -= 1
        if self.calls_left < 0:
            raise TrackingError("the registry does not answer")

    def state(self, name: str) -> ModelState:
        self._call()
        return ModelState(dict(self.aliases), dict(self.tags))

    def set_alias(self, name: str, alias: str, number: str | None) -> None:
        self._call()
        self.writes.append((alias, number))
        if number is None:
            self.aliases.pop(alias, None)
        else:
            self.aliases[alias] = number

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        self._call()
        self.tags[key] = value

    def delete_model_tag(self, name: str, key: str) -> None:
        self._call()
        self.tags.pop(key, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.002)


def pass_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock until the claims of dead processes expire."""
    later = time.time() + 1000
    monkeypatch.setattr(module.time, "time", lambda: later)


BEFORE = {"champion": "2", "previous": "1"}
AFTER = {"champion": "3", "previous": "2"}


def test_the_alias_that_decides_moves_first_and_no_claim_stays() -> None:
    registry = Aliases({**BEFORE, "challenger": "3"})
    before, after = BEFORE | {"challenger": "3"}, AFTER | {"challenger": None}
    move_aliases(registry, "m", before=before, after=after)
    assert registry.aliases == AFTER
    assert registry.writes == [("champion", "3"), ("previous", "2"), ("challenger", None)]
    assert registry.tags == {}


def test_an_alias_that_is_not_set_is_expected_and_set_and_removed() -> None:
    registry = Aliases({})
    move_aliases(registry, "m", before={"champion": None}, after={"champion": "1"})
    assert registry.aliases == {"champion": "1"}
    move_aliases(registry, "m", before={"champion": "1"}, after={"champion": None})
    assert registry.aliases == {}


@pytest.mark.parametrize("found", [{"champion": "4", "previous": "2"}, BEFORE | {"previous": "7"}])
def test_an_alias_moved_meanwhile_refuses_the_move(found: dict[str, str]) -> None:
    registry = Aliases(found)
    with pytest.raises(PromotionRefused, match="somebody else moved it meanwhile"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == found
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
    assert registry.aliases == {"champion": "77", "previous": "1"}
    assert registry.tags == {}


@pytest.mark.parametrize("seed", range(12))
def test_of_several_threads_at_once_exactly_one_wins(seed: int) -> None:
    random.seed(seed)
    registry = Aliases(BEFORE, slow=True)
    outcomes: dict[str, str] = {}
    barrier = threading.Barrier(4)

    def compete(number: str) -> None:
        barrier.wait()
        try:
            after = {"champion": number, "previous": "2"}
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
    assert registry.aliases == {"champion": winner, "previous": "2"}
    assert registry.tags == {}
    assert [write for write in registry.writes if write[0] == "champion"] == [("champion", winner)]


class Stepped(Aliases):
    """A registry whose callers let other processes run before every call."""

    def _call(self) -> None:
        getcurrent().parent.switch()


class MustWait(Exception):
    """Raised when a process would pause; the tested order continues without it."""


Order = tuple[int, ...]


def race(
    moves: list[Callable[[Stepped], object]], order: Order
) -> tuple[Stepped, list[str], list[list[int]]]:
    """Run processes call by call in the given order, and then each one to its end.

    Returns the registry, the outcome of each process, and which processes could run at each turn.
    """
    registry, outcomes = Stepped(BEFORE), [""] * len(moves)

    def process(index: int) -> None:
        try:
            moves[index](registry)
            outcomes[index] = "won"
        except PromotionRefused:
            outcomes[index] = "lost"
        except MustWait:
            outcomes[index] = "waits"

    processes = [greenlet(lambda index=index: process(index)) for index in range(len(moves))]
    for one in processes:
        one.switch()
    choices, last, turns = [], 0, iter(order)
    while ready := [i for i, one in enumerate(processes) if not one.dead]:
        choices.append(ready)
        last = next(turns, last if last in ready else ready[0])
        processes[last].switch()
    for index in [i for i, outcome in enumerate(outcomes) if outcome == "waits"]:
        again = greenlet(lambda index=index: process(index))
        while not again.dead:
            again.switch()
    return registry, outcomes, choices


def all_races(
    moves: list[Callable[[Stepped], object]], max_switches: int = 100
) -> Iterator[tuple[Stepped, list[str]]]:
    """Yield the outcome of every order of calls; a switch leaves a process that could continue."""
    waiting: list[tuple[Order, int]] = [((), 0)]
    while waiting:
        order, switches = waiting.pop()
        registry, outcomes, choices = race(moves, order)
        yield registry, outcomes
        followed, last = list(order), order[-1] if order else 0
        for turn, ready in enumerate(choices):
            if turn >= len(order):
                last = last if last in ready else ready[0]
                if switches < max_switches:
                    others = [other for other in ready if other != last]
                    waiting += [((*followed, other), switches + 1) for other in others]
                followed.append(last)


def promotion(number: str) -> Callable[[Stepped], object]:
    after = {"champion": number, "previous": "2"}
    return lambda registry: move_aliases(registry, "m", before=BEFORE, after=after)


@pytest.mark.parametrize(
    ("num_processes", "max_switches", "num_orders"), [(2, 100, 262), (3, 3, 477)]
)
def test_in_every_order_of_calls_exactly_one_wins(
    monkeypatch: pytest.MonkeyPatch, num_processes: int, max_switches: int, num_orders: int
) -> None:
    def wait(seconds: float) -> None:
        raise MustWait

    monkeypatch.setattr(module.time, "sleep", wait)
    moves = [promotion(str(10 + index)) for index in range(num_processes)]
    num_races = 0
    for registry, outcomes in all_races(moves, max_switches):
        num_races += 1
        winner = str(10 + outcomes.index("won"))
        assert sorted(outcomes) == ["lost"] * (num_processes - 1) + ["won"]
        assert registry.aliases == {"champion": winner, "previous": "2"}
        assert registry.writes == [("champion", winner), ("previous", "2")]
        assert registry.tags == {}
    assert num_races == num_orders


def test_a_promotion_and_a_rollback_at_once_end_as_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(seconds: float) -> None:
        raise MustWait

    def rollback(registry: Stepped) -> None:
        back = {"champion": "1", "previous": "2"}
        move_aliases(registry, "m", before=BEFORE, after=back)

    monkeypatch.setattr(module.time, "sleep", wait)
    for registry, outcomes in all_races([promotion("10"), rollback]):
        won = outcomes.index("won")
        assert sorted(outcomes) == ["lost", "won"]
        assert registry.aliases == {"champion": ["10", "1"][won], "previous": "2"}
        assert registry.tags == {}


def calls_of_a_whole_move() -> int:
    registry = Aliases(BEFORE)
    registry.calls_left = 1000
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    return int(1000 - registry.calls_left)


@pytest.mark.parametrize("calls", range(calls_of_a_whole_move()))
def test_a_process_that_ends_at_any_call_leaves_no_half(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Aliases(BEFORE)
    registry.calls_left = calls
    with pytest.raises(TrackingError):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    registry.calls_left = float("inf")
    decided = registry.aliases["champion"] == "3"
    pass_time(monkeypatch)
    settle_moves(registry, "m")
    assert registry.aliases == (AFTER if decided else BEFORE)
    assert registry.tags == {}


@pytest.mark.parametrize("calls", range(calls_of_a_whole_move()))
def test_the_one_that_completes_it_may_end_at_any_call_too(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(calls_of_a_whole_move()):
        registry = Aliases(BEFORE)
        registry.calls_left = first
        with pytest.raises(TrackingError):
            move_aliases(registry, "m", before=BEFORE, after=AFTER)
        decided = registry.aliases["champion"] == "3"
        with monkeypatch.context() as patch:
            pass_time(patch)
            registry.calls_left = calls
            try:
                settle_moves(registry, "m")
            except TrackingError:
                later = time.time() + 2000
                patch.setattr(module.time, "time", lambda later=later: later)
            registry.calls_left = float("inf")
            settle_moves(registry, "m")
        assert registry.aliases == (AFTER if decided else BEFORE)
        assert registry.tags == {}


def test_half_a_move_is_reported_as_such_and_completed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Aliases(BEFORE)

    def fail_after_champion(name: str, alias: str, number: str | None) -> None:
        Aliases.set_alias(registry, name, alias, number)
        registry.calls_left = 0

    registry.set_alias = fail_after_champion  # type: ignore[method-assign]
    with pytest.raises(UnsettledMove, match="completes the move"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    del registry.set_alias
    registry.calls_left = float("inf")
    assert registry.aliases == {"champion": "3", "previous": "1"}
    pass_time(monkeypatch)
    move_aliases(registry, "m", before=AFTER, after={"champion": "5", "previous": "3"})
    assert registry.aliases == {"champion": "5", "previous": "3"}
    assert registry.tags == {}


def test_what_a_person_set_after_a_half_move_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Aliases({"champion": "3", "previous": "8"})
    registry.tags[f"{CLAIM_PREFIX}0"] = MoveClaim(before=BEFORE, after=AFTER).model_dump_json()
    settle_moves(registry, "m")
    assert registry.aliases == {"champion": "3", "previous": "8"}
    registry = Aliases({"champion": "9", "previous": "1"})
    registry.tags[f"{CLAIM_PREFIX}0"] = MoveClaim(before=BEFORE, after=AFTER).model_dump_json()
    settle_moves(registry, "m")
    assert registry.aliases == {"champion": "9", "previous": "1"}


@pytest.mark.parametrize(("at", "end"), [("champion", BEFORE), ("previous", AFTER)])
def test_an_interruption_by_the_person_leaves_no_half(
    monkeypatch: pytest.MonkeyPatch, at: str, end: dict[str, str]
) -> None:
    registry, interrupted = Aliases(BEFORE), []

    def set_alias(name: str, alias: str, number: str | None) -> None:
        if alias == at and not interrupted:
            interrupted.append(alias)
            raise KeyboardInterrupt
        Aliases.set_alias(registry, name, alias, number)

    registry.set_alias = set_alias  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    pass_time(monkeypatch)
    settle_moves(registry, "m")
    assert registry.aliases == end
    assert registry.tags == {}


def test_a_live_claim_of_another_is_waited_for_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Aliases(BEFORE)
    registry.tags[f"{CLAIM_PREFIX}0"] = MoveClaim(made_at=time.time()).model_dump_json()
    pauses = itertools.count(1)

    def wait(seconds: float) -> None:
        assert registry.writes == []
        if next(pauses) == 3:
            registry.tags.clear()

    monkeypatch.setattr(module.time, "sleep", wait)
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert next(pauses) == 4
    assert registry.aliases == AFTER


def test_a_claim_that_never_ends_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLAIM_SECONDS", 0.0)
    registry = Aliases(BEFORE)
    immortal = MoveClaim(made_at=time.time() + 1000).model_dump_json()
    registry.tags[f"{CLAIM_PREFIX}0"] = immortal
    with pytest.raises(PromotionRefused, match="other processes keep moving the aliases"):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.tags == {f"{CLAIM_PREFIX}0": immortal}


@pytest.mark.parametrize("value", ["not a claim", "[]", '{"made_at": "x"}', '{"after": 3}'])
def test_a_damaged_claim_is_no_obstacle(value: str) -> None:
    registry = Aliases(BEFORE)
    registry.tags[f"{CLAIM_PREFIX}x"] = value
    move_aliases(registry, "m", before=BEFORE, after=AFTER)
    assert registry.aliases == AFTER
    assert registry.tags == {}


@pytest.mark.parametrize("slow_call", range(1, calls_of_a_whole_move()))
def test_a_registry_too_slow_to_be_safe_stops_the_move(
    monkeypatch: pytest.MonkeyPatch, slow_call: int
) -> None:
    """A request can hang for 30 s; nothing is written once others can consider the process dead."""
    now, calls = [time.time()], itertools.count()

    class Hanging(Aliases):
        def _call(self) -> None:
            if next(calls) >= slow_call:
                now[0] += 29

        def set_alias(self, name: str, alias: str, number: str | None) -> None:
            claims = (MoveClaim.model_validate_json(value) for value in self.tags.values())
            assert max(claim.age_seconds for claim in claims) <= module.CLAIM_SECONDS / 2
            super().set_alias(name, alias, number)

    registry = Hanging(BEFORE)

    monkeypatch.setattr(module.time, "time", lambda: now[0])
    with suppress(TrackingError):
        move_aliases(registry, "m", before=BEFORE, after=AFTER)
    now[0] += 1000
    settled = Aliases(registry.aliases)
    settled.tags = registry.tags
    settle_moves(settled, "m")
    assert settled.aliases in (BEFORE, AFTER)
    assert settled.tags == {}
