"""Saved views on the page Compare: saved, opened by an address, renamed, deleted, out of date."""

from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from clew.runs.reading.saved_views import list_views, save_view
from tests.recorded import Recorded
from tests.ui.conftest import Open, no_surprise, shown


@pytest.fixture
def store(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    store = recorded.copy(tmp_path / "store")
    use(store.uri)
    return store


def runs(store: Recorded) -> str:
    return f"{store.runs['fp32 1']},{store.runs['bf16 1']}"


def save(app: AppTest, name: str, current: str = "") -> AppTest:
    app.text_input(key=f"view-name-{current}").set_value(name)
    app.text_input(key="reviewer").set_value("Ada")
    return no_surprise(app.button(key="view-save").click().run())


def saved() -> list[str]:
    return [view.name for view in list_views().views]


def test_what_is_shown_is_saved_renamed_and_deleted(page: Open, store: Recorded) -> None:
    app = page("compare", store.uri, runs=runs(store), pick="last", change="both")
    app = save(app, "mine")
    (view,) = list_views().views
    assert view.person == "Ada"
    assert view.parameters == {"runs": runs(store), "pick": "last", "change": "both"}
    assert app.query_params["view"] in ("mine", ["mine"])
    assert "View mine, saved by Ada" in shown(app)
    app = save(app, "ours", "mine")
    assert saved() == ["ours"]
    app.checkbox(key="view-instead-ours").uncheck()
    app = save(app, "third", "ours")
    assert saved() == ["ours", "third"]
    app = no_surprise(app.button(key="view-delete").click().run())
    assert saved() == ["ours"]
    assert "view" not in app.query_params


def test_a_view_is_opened_by_its_name(page: Open, store: Recorded) -> None:
    parameters = {"runs": runs(store), "pick": "last", "seeds": "false", "smooth": "0.5"}
    save_view("mine", parameters, "Ada")
    app = page("compare", store.uri, view="mine")
    assert app.query_params["runs"] in (runs(store), [runs(store)])
    assert app.button_group(key="pick").value == "last"
    assert app.toggle(key="seeds").value is False
    assert app.slider(key="smooth").value == 0.5
    assert '<a href="?view=mine">mine</a>' in shown(app)


def test_a_name_that_is_refused_is_one_line(page: Open, store: Recorded) -> None:
    save_view("taken", {"runs": runs(store)}, "Grace")
    app = page("compare", store.uri, runs=runs(store))
    for name, message in (("a <b>", "name is"), ("taken", "view taken of Grace already")):
        app = save(app, name)
        (error,) = app.error
        assert message in error.value.replace("\\", "")
    assert saved() == ["taken"]


def test_a_view_whose_runs_are_gone_says_so(page: Open, store: Recorded) -> None:
    save_view("mine", {"runs": runs(store)}, "Ada")
    store.client.delete_run(store.runs["bf16 1"])
    (warning,) = page("compare", store.uri, view="mine").warning
    assert "View mine: 1 of 2 runs are not in the store any more" in plain(warning.value)
    store.client.delete_run(store.runs["fp32 1"])
    st.cache_data.clear()  # pages cache their data for some seconds
    app = page("compare", store.uri, runs=runs(store), view="mine", pick="step")
    (warning,) = app.warning
    assert "View mine: none of its 2 runs is in the store any more" in plain(warning.value)
    no_surprise(app.button(key="view-delete").click().run())
    assert saved() == []


def test_a_view_that_is_gone_says_so(page: Open, store: Recorded) -> None:
    (warning,) = page("compare", store.uri, view="<b>gone").warning
    assert "No view <b>gone is in the store" in plain(warning.value)


def plain(text: str) -> str:
    return text.replace("\\", "").replace("\u2060", "")
