"""Only people whom the settings name get in; settings that are not valid stop the start."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit import config
from streamlit.runtime.secrets import Secrets
from streamlit.testing.v1 import AppTest

from clew.errors import AccessError, ConfigError
from clew.ui import access, serve
from clew.ui.access import Role, Settings

PAGE = """
import streamlit as st
from streamlit import config
from clew.ui import access
from clew.ui.components import basics
basics.require()
st.title("inside")
st.caption(f"as {access.person()!r}")
"""
ADDRESS = "ada@example.org"
ADA = {"is_logged_in": True, "email": ADDRESS, "email_verified": True}
# Columns: what the provider says, the list of people, whether they get in.
CASES = """
{"email": "ada@example.org", "email_verified": true}	["ada@example.org"]	yes
{"email": "ada@example.org", "email_verified": false}	["ada@example.org"]	no
{"email": "ada@example.org"}	["ada@example.org"]	no
{"email": "ada@example.org", "email_verified": "false"}	["ada@example.org"]	no
{"email": "ada@example.org", "email_verified": "true"}	["ada@example.org"]	no
{"email": "ada@example.org", "email_verified": 1}	["ada@example.org"]	no
{"sub": "ada@example.org"}	["ada@example.org"]	no
{"sub": "ada@example.org", "email_verified": true}	["ada@example.org"]	no
{"email": ["ada@example.org"], "email_verified": true}	["ada@example.org"]	no
{"email": "", "email_verified": true}	["@example.org"]	no
{"email": "@example.org", "email_verified": true}	["@example.org"]	no
{"email": "eve@example.org", "email_verified": true}	["ada@example.org"]	no
{"email": "eve@example.org", "email_verified": true}	[]	no
{"email": "ADA@example.org", "email_verified": true}	["ada@example.org"]	yes
{"email": "ada@example.org", "email_verified": true}	["ADA@EXAMPLE.ORG"]	yes
{"email": "ada@example.org", "email_verified": true}	["@example.org"]	yes
{"email": "eve@evil.test@example.org", "email_verified": true}	["@example.org"]	no
{"email": "ada@evil-example.org", "email_verified": true}	["@example.org"]	no
{"email": "ada@example.org.evil.test", "email_verified": true}	["@example.org"]	no
{"email": "mar\u212a@example.org", "email_verified": true}	["mark@example.org"]	no
{"email": "mark@example.org\\n", "email_verified": true}	["mark@example.org"]	no
"""


def opened(user: dict[str, Any], settings: dict[str, Any] | None) -> AppTest:
    app = AppTest.from_string(PAGE, default_timeout=60)
    app.user = user
    app.secrets["auth"] = {"client_id": "x"}
    if settings is not None:
        app.secrets["clew"] = settings
    app.run()
    assert not app.exception
    return app


def titles(app: AppTest) -> list[str]:
    return [str(title.value) for title in app.title]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return where Streamlit looks for the secrets; nothing is there yet."""
    before, path = config.get_option("secrets.files"), tmp_path / "secrets.toml"
    monkeypatch.setattr(st, "secrets", Secrets())
    config.set_option("secrets.files", [str(path)])
    yield path
    config.set_option("secrets.files", before)


def test_where_nothing_is_configured_nobody_signs_in_and_all_is_allowed(
    place: Path,
) -> None:
    assert not place.exists()
    app = AppTest.from_string(PAGE, default_timeout=60).run()
    assert titles(app) == ["inside"]
    assert [str(caption.value) for caption in app.caption] == ["as ''"]
    assert [access.authorize(action) for action in access.ACTIONS] == [""] * len(access.ACTIONS)


def test_who_is_not_signed_in_sees_a_button_and_nothing_else() -> None:
    app = opened({"is_logged_in": False}, {"people": [ADDRESS]})
    assert titles(app) == ["Clew"]
    assert [button.label for button in app.button] == ["Sign in"]


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_who_is_missing_is_refused(case: str) -> None:
    claims, people, expected = case.split("\t")
    settings = Settings.model_validate({"people": json.loads(people)})
    admitted = access.role_of(json.loads(claims), settings) is not None
    assert admitted is (expected == "yes")


@pytest.mark.parametrize(
    ("claims", "settings", "inside"),
    [
        ({}, {"people": [ADDRESS]}, True),
        ({}, {"promoters": [ADDRESS]}, True),
        ({"email_verified": None}, {"people": [ADDRESS]}, False),
        ({}, {}, False),
        ({}, None, False),
        ({}, {"poeple": [ADDRESS]}, False),
    ],
)
def test_the_page_is_shown_only_to_people_with_a_role(
    claims: dict[str, Any], settings: dict[str, Any] | None, inside: bool
) -> None:
    app = opened(ADA | claims, settings)
    assert ("inside" in titles(app)) is inside
    assert bool(app.error) is not inside


@pytest.mark.parametrize(
    ("settings", "role"),
    [
        ({"people": ["@example.org"], "reviewers": [ADDRESS]}, "reviewer"),
        ({"people": [ADDRESS], "reviewers": [ADDRESS], "promoters": ["@example.org"]}, "promoter"),
        ({"people": [ADDRESS], "reviewers": ["@other.org"]}, "reader"),
        ({"promoters": ["eve@example.org"]}, None),
    ],
)
def test_the_highest_role_counts(settings: dict[str, Any], role: Role | None) -> None:
    assert access.role_of(ADA, Settings.model_validate(settings)) == role


def test_secrets_that_are_gone_let_nobody_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "must_sign_in", False)
    monkeypatch.setattr(sys, "argv", ["serve"])
    monkeypatch.setattr(serve.cli, "main", lambda *_, **__: None)
    monkeypatch.setattr(serve, "warm_up", lambda: None)
    place.write_text(f"{AUTH}[clew]\npromoters = ['{ADDRESS}']\n", encoding="utf-8")
    serve.main()
    place.unlink()
    monkeypatch.setattr(st, "secrets", Secrets())
    with pytest.raises(ConfigError):
        access.authorize("promote")
    app = AppTest.from_string(PAGE, default_timeout=60).run()
    assert not titles(app)
    assert app.error


AUTH = "[auth]\nclient_id = 'x'\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{AUTH}[clew]\npoeple = ['ada@example.org']\n", "poeple"),
        (f"{AUTH}[clew]\npeople = 'ada@example.org'\n", "people"),
        (f"{AUTH}[clew]\npromoters = ['example.org']\n", "promoters"),
        (f"{AUTH}[clew]\npeople = [7]\n", "people"),
        (f"clew = 3\n{AUTH}", "clew"),
        ("[clew]\npeople = ['ada@example.org']\n", "auth"),
        (f"{AUTH}[clew\npeople = []\n", "secrets.toml"),
    ],
)
def test_bad_settings_stop_the_start_and_are_named(
    text: str, named: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        access.settings()
    assert named in str(refused.value)
    monkeypatch.setattr(sys, "argv", ["serve"])
    monkeypatch.setattr(serve.cli, "main", lambda *_, **__: pytest.fail("it has started"))
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == ConfigError.exit_code


def test_a_folder_in_the_place_of_the_secrets_stops_the_start(place: Path) -> None:
    place.mkdir()  # as Docker does when the file that it mounts is missing
    with pytest.raises(ConfigError):
        access.settings()


def test_who_has_signed_out_may_do_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_text(f"{AUTH}[clew]\npromoters = ['{ADDRESS}']\n", encoding="utf-8")
    monkeypatch.setattr(access.st, "user", _User(ADA | {"is_logged_in": False}))
    for action in access.ACTIONS:
        with pytest.raises(AccessError):
            access.authorize(action)
    monkeypatch.setattr(access.st, "user", _User(ADA))
    assert access.authorize("promote") == ADDRESS


class _User(dict[str, Any]):
    def to_dict(self) -> dict[str, Any]:
        return dict(self)
