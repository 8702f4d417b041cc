"""A promotion that is cut off before any of its calls leaves no half state, and can be repeated."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus

from clew import names
from clew.runs.registry import Registry
from clew.workflows.gate import Check, Gate
from clew.workflows.promote import PromotionRequest, hand_over, promote, rollback
from tests.workflows.test_promote import Crown, aliases, champion
from tests.workflows.trained import TrainedStore

pytestmark = pytest.mark.slow

__all__ = ["champion"]

WRITES = (
    "create_logged_model",
    "finalize_logged_model",
    "create_model_version",
    "set_model_version_tag",
    "set_registered_model_alias",
    "delete_registered_model_alias",
)
"""Calls of MLflow's client by which a promotion writes to the registry, some several times."""


class CutOff(BaseException):
    """Stands for the death of the process."""


def before_each(patch: pytest.MonkeyPatch, hook: Callable[[], None]) -> None:
    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            hook()
            return original(*args, **options)

        return stepped

    for name in WRITES:
        patch.setattr(MlflowClient, name, wrapped(getattr(MlflowClient, name)))


def cut_off_after(step: int) -> Callable[[], None]:
    left = iter(range(step))

    def cut() -> None:
        if next(left, None) is None:
            raise CutOff

    return cut


def test_a_promotion_that_was_cut_off_is_whole_when_repeated(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(gate: Gate) -> Any:
        yield gate._checkpoint()
        yield gate._weights()

    monkeypatch.setattr(Gate, "checks", accept)
    monkeypatch.setattr(Gate, "served", lambda *arguments: Check("served", True, ""))
    step, done = 0, False
    while not done:
        name = f"cut {step}"
        champion(name, trained.weak)
        with monkeypatch.context() as patch:
            before_each(patch, cut_off_after(step))
            try:
                promote(PromotionRequest(trained.strong, name=name))
                done = True
            except CutOff:
                assert aliases(name)["champion"] in ("1", "2")
        result = promote(PromotionRequest(trained.strong, name=name))
        assert aliases(name) == {"champion": result.number, "previous": "1"}
        version = Registry().version(name, result.number or "")
        assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_PASSED
        for number in range(2, int(version.number)):
            left = Registry().version(name, str(number))
            assert left.tags[names.TAG_VALIDATION] == names.VALIDATION_FAILED
        step += 1
    assert step > len(WRITES)


def test_another_promotion_ends_what_one_left_that_was_cut_off(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version without a verdict gets one even if nobody repeats the command."""
    champion("left", trained.weak)
    client = MlflowClient()
    with monkeypatch.context() as patch:
        before_each(patch, cut_off_after(3))
        with pytest.raises(CutOff):
            promote(PromotionRequest(trained.strong, name="left"))
    version = Registry().version("left", "2")
    assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_PENDING
    promote(PromotionRequest(trained.other, name="elsewhere"))
    version = Registry().version("left", "2")
    assert version.tags[names.TAG_VALIDATION] == names.VALIDATION_FAILED
    run = client.get_run(version.tags[names.TAG_PROMOTE_RUN])
    assert run.info.status == "KILLED"
    assert names.TAG_DECISION in run.data.tags


def test_another_promotion_ends_an_upload_that_was_cut_off(
    trained: TrainedStore, champion: Crown, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*arguments: object) -> None:
        raise CutOff

    champion("half", trained.weak)
    client, run_id = MlflowClient(), trained.strong
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_model_artifacts", cut)
        with pytest.raises(CutOff):
            promote(PromotionRequest(run_id, name="half"))
    place = [client.get_run(run_id).info.experiment_id]
    found = client.search_logged_models(place)
    (left,) = [model for model in found if model.status == LoggedModelStatus.PENDING]
    promote(PromotionRequest(trained.other, name="elsewhere"))
    assert client.get_logged_model(left.model_id).status == LoggedModelStatus.FAILED


@pytest.fixture
def three(trained: TrainedStore, champion: Crown) -> Callable[[str], None]:
    """Return a function that makes a model with a former version, a champion and a third one."""

    def make(name: str) -> None:
        champion(name, trained.weak)
        client = MlflowClient(trained.uri)
        first = client.get_model_version(name, "1")
        for _ in range(2):
            client.create_model_version(
                name, first.source, first.run_id, dict(first.tags), model_id=first.model_id
            )
        client.set_registered_model_alias(name, "champion", "2")
        client.set_registered_model_alias(name, "previous", "1")

    return make


def cut_off_everywhere(
    called: str,
    three: Callable[[str], None],
    act: Callable[[str], object],
    former: Mapping[str, str],
) -> set[tuple[str, str]]:
    """Cut an action off before each of its calls, then roll back and forth; return what was left.

    `former` says for each champion that can be left which version a rollback goes back to.
    """
    step, done, seen = 0, False, set[tuple[str, str]]()
    while not done:
        name = f"{called} {step}"
        three(name)
        with pytest.MonkeyPatch.context() as patch:
            before_each(patch, cut_off_after(step))
            try:
                act(name)
                done = True
            except CutOff:
                pass
        now = aliases(name)["champion"]
        seen.add((now, aliases(name)["previous"]))
        for number, other in ((former[now], now), (now, former[now])):
            assert rollback(name).number == number
            assert aliases(name) == {"champion": number, "previous": other}
        step += 1
    return seen


def test_a_promotion_that_was_cut_off_can_be_rolled_back(
    trained: TrainedStore, three: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "checks", lambda gate: iter([gate._checkpoint(), gate._weights()]))
    monkeypatch.setattr(Gate, "served", lambda *arguments: Check("served", True, ""))
    seen = cut_off_everywhere(
        "undone",
        three,
        lambda name: promote(PromotionRequest(trained.strong, name=name)),
        {"2": "1", "4": "2"},
    )
    assert seen == {("2", "1"), ("2", "2"), ("4", "2")}


def test_a_rollback_that_was_cut_off_goes_on_when_repeated(three: Callable[[str], None]) -> None:
    seen = cut_off_everywhere("back", three, rollback, {"2": "1", "1": "2"})
    assert seen == {("2", "1"), ("2", "2"), ("1", "2")}


def test_each_alias_has_its_own_way_back(
    three: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, registry = "two ways", Registry()
    three(name)
    for alias, number in (("prod", "2"), ("prod-previous", "3")):
        registry.set_alias(name, alias, number)
    with monkeypatch.context() as patch:
        patch.setattr(Registry, "move_alias", lambda *given, **options: cut_off_after(0)())
        for alias in ("champion", "prod"):
            with pytest.raises(CutOff):
                hand_over(registry, registry.version(name, "3"), alias, registry.version(name, "2"))
    assert rollback(name).number == "1"
    assert rollback(name, "prod").number == "3"
