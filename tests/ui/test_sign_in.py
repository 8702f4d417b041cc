"""Only users who are signed in and allowed have access; promotions record the user."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

PAGE = """
import streamlit as st
from clew.ui.components import sign_in
sign_in.require()
st.title("inside")
st.caption(f"as {sign_in.person()!r}")
"""
ADA = {"is_logged_in": True, "email": "ada@lovelace.org", "email_verified": True}


def opened(user: dict[str, Any], people: list[str] | None = None) -> AppTest:
    app = AppTest.from_string(PAGE, default_timeout=60)
    app.user = user
    app.secrets["clew"] = {} if people is None else {"people": people}
    app.run()
    assert not app.exception
    return app


def titles(app: AppTest) -> list[str]:
    return [str(title.value) for title in app.title]


def test_where_nothing_is_configured_nobody_signs_in() -> None:
    app = opened({})
    assert titles(app) == ["inside"]
    assert [str(caption.value) for caption in app.caption] == ["as ''"]


def test_who_is_not_signed_in_sees_a_button_and_nothing_else() -> None:
    app = opened({"is_logged_in": False})
    assert titles(app) == ["Clew"]
    assert [button.label for button in app.button] == ["Sign in"]


@pytest.mark.parametrize(
    ("user", "people", "inside"),
    [
        (ADA, None, True),
        (ADA, ["ADA@lovelace.org"], True),
        (ADA, ["@lovelace.org"], True),
        (ADA, ["@org", "lovelace.org", "bob@lovelace.org"], False),
        (ADA | {"email": "ada@evil.org"}, ["@lovelace.org"], False),
        (ADA | {"email": "ada@evil-lovelace.org"}, ["@lovelace.org"], False),
        (ADA | {"email_verified": False}, ["@lovelace.org"], False),
        ({"is_logged_in": True}, None, False),
    ],
)
def test_only_the_people_named_are_welcome(
    user: dict[str, Any], people: list[str] | None, inside: bool
) -> None:
    app = opened(user, people)
    assert titles(app) == (["inside"] if inside else ["Clew"])
    assert bool(app.error) is not inside
