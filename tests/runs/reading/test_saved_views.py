"""Saved views: stored under names, and changed, renamed and deleted by their users."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clew.errors import ConfigError, TrackingError
from clew.names import TAG_VIEW_PREFIX
from clew.runs.reading.runs import find_run
from clew.runs.reading.saved_views import SavedView, delete_view, list_views, save_view
from tests.recorded import Recorded


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


@pytest.fixture(scope="module")
def without_views(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a store for tests that do not save anything."""
    return recorded.copy(tmp_path_factory.mktemp("none") / "store")


def shown(store: Recorded, **more: str) -> dict[str, str]:
    return {"runs": f"{store.runs['fp32 1']},{store.runs['bf16 1']}"} | more


def found() -> list[str]:
    return [view.name for view in list_views().views]


def test_a_view_comes_back_as_it_was_saved(store: Recorded) -> None:
    parameters = shown(store, more="test/mrr,valid/mrr", curve="train/loss", odd="ü & <b>=%")
    written = save_view("Ada_1.x-y", parameters, "Ada")
    assert list_views().views == (written,)
    assert written.parameters == parameters
    assert written.run_ids == [store.runs["fp32 1"], store.runs["bf16 1"]]
    assert (written.person, bool(written.created)) == ("Ada", True)


def test_saving_again_changes_or_renames_and_replaces_nothing_unseen(store: Recorded) -> None:
    save_view("a", shown(store), "Ada")
    with pytest.raises(ConfigError, match="there is a view a of Ada already"):
        save_view("a", shown(store), "Grace")
    save_view("b", shown(store), "Grace")
    with pytest.raises(ConfigError, match="there is a view b of Grace already"):
        save_view("b", shown(store), "Ada", replaces="a")
    save_view("a", shown(store, pick="last"), "Grace", replaces="a")
    changed = list_views().find("a")
    assert changed is not None
    assert (changed.person, changed.parameters["pick"]) == ("Grace", "last")
    save_view("c", shown(store), "Ada", replaces="a")
    assert found() == ["b", "c"]


def test_a_view_moves_with_its_first_run(store: Recorded) -> None:
    other = store.client.create_experiment("other")
    run_id = store.client.create_run(other).info.run_id
    save_view("a", shown(store), "Ada")
    moved = save_view("a", {"runs": run_id}, "Ada", replaces="a")
    assert moved.experiment_id == other
    assert list_views().views == (moved,)
    delete_view("a")
    assert found() == []


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a/b", "ä", "a" * 61, "<b>", "a\n", "a&b"])
def test_names_that_need_an_escape_are_refused(
    without_views: Recorded, use: Callable[[str], None], name: str
) -> None:
    use(without_views.uri)
    with pytest.raises(ConfigError, match="a view's name is") as refused:
        save_view(name, shown(without_views), "Ada")
    assert "\n" not in str(refused.value)
    assert found() == []


def test_what_else_is_refused(store: Recorded) -> None:
    with pytest.raises(ConfigError, match="has no runs"):
        save_view("a", {"pick": "last"}, "Ada")
    with pytest.raises(ConfigError, match="at most 4000 can be saved"):
        save_view("a", shown(store, ignore="x" * 4000), "Ada")
    with pytest.raises(TrackingError, match="no run"):
        save_view("a", {"runs": "0" * 32}, "Ada")
    save_view("a", shown(store), "Ada")
    with pytest.raises(ConfigError, match="no view b is in the store; there is a"):
        delete_view("b")


def test_tags_that_are_no_views_are_named(store: Recorded) -> None:
    save_view("a", shown(store), "Ada")
    experiment = find_run(store.runs["fp32 1"]).experiment_id
    for name, text in {"x": "{", "y": "{}", "z": '{"schema_version": 1}', "a b": "[]"}.items():
        store.client.set_experiment_tag(experiment, TAG_VIEW_PREFIX + name, text)
    views = list_views()
    assert [view.name for view in views.views] == ["a"]
    assert sorted(problem.split(":")[0] for problem in views.problems) == ["a b", "x", "y", "z"]
    assert all("\n" not in problem for problem in views.problems)


def test_runs_of_an_address_without_any() -> None:
    assert SavedView("a", "pick=last").run_ids == []
