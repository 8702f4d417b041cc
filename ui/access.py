"""Who may enter the dashboard, and what each person may do there.

People sign in by OpenID Connect if the secrets have a section `[auth]`. The section `[clew]` lists
them; who is missing is refused. Without `[auth]` nobody signs in, and everything is allowed.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import streamlit as st
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from clew.errors import AccessError, ConfigError, described

Role = Literal["reader", "reviewer", "promoter"]
ROLES: tuple[Role, ...] = get_args(Role)
Reviewing = Literal["ask", "explain", "upload", "review", "decide"]
Promoting = Literal["confirm", "check", "promote", "roll back", "train", "describe"]
Action = Reviewing | Promoting
ACTIONS: Mapping[Action, Role] = {
    action: "reviewer" if action in get_args(Reviewing) else "promoter"
    for action in (*get_args(Reviewing), *get_args(Promoting))
}
"""Each action that starts or changes something, and the lowest role that may do it.

A command is cancelled by those who may start it.
"""
ADDRESS = re.compile(r"[^@\s]+@[^@\s]+")
DOMAIN = re.compile(r"@[^@\s]+")


def _entry(text: str) -> str:
    if not (ADDRESS.fullmatch(text) or DOMAIN.fullmatch(text)):
        raise ValueError(f"expected an address or a domain with its @, not {text[:80]!r}")
    return _folded(text)


must_sign_in = False
"""Whether people had to sign in when the dashboard started; secrets that are gone let nobody in."""
Entries = list[Annotated[str, AfterValidator(_entry)]]


class Settings(BaseModel):
    """The section `[clew]` of the secrets; a person has the highest role of the lists."""

    model_config = ConfigDict(extra="forbid")

    people: Entries = []
    """Addresses and domains of the readers."""
    reviewers: Entries = []
    promoters: Entries = []


def settings() -> Settings | None:
    """Return who may enter, None if nobody has to sign in.

    Raises:
        ConfigError: The secrets cannot be read, or their section `[clew]` is invalid.
    """
    secrets = _secrets()
    if "auth" not in secrets:
        if "clew" in secrets or must_sign_in:
            raise ConfigError(
                "the secrets have no section [auth], so nobody would have to sign in; add it, or "
                "remove the section [clew] and start again"
            )
        return None
    try:
        return Settings.model_validate(secrets.get("clew", {}))
    except ValidationError as error:
        valid = ", ".join(Settings.model_fields)
        raise ConfigError(
            f"secrets, section [clew]: {described(error)}; valid keys: {valid}"
        ) from None


def _secrets() -> dict[str, Any]:
    """Return the secrets, empty if there is no such file; Streamlit takes a bad one for none."""
    try:
        return st.secrets.to_dict()
    except (OSError, ValueError) as error:
        places = [str(place) for place in st.get_option("secrets.files")]
        if not any(map(os.path.lexists, places)):
            return {}
        raise ConfigError(
            f"the secrets ({', '.join(places)}) cannot be read: {described(error)}; mend the file, "
            "or remove it if nobody has to sign in"
        ) from None


def role_of(claims: Mapping[str, Any], allowed: Settings) -> Role | None:
    """Return the role of a signed-in person; None if the person may not enter.

    The provider must say that it has verified the address: `email_verified` is `true`.
    """
    email = claims.get("email") if claims.get("email_verified") is True else None
    if not isinstance(email, str) or not ADDRESS.fullmatch(email):
        return None
    address = _folded(email)
    named = {address, address[address.index("@") :]}
    lists = (allowed.promoters, allowed.reviewers, allowed.people)
    found = (role for role, each in zip(ROLES[::-1], lists, strict=True) if named & {*each})
    return next(found, None)


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else text


def authorize(action: Action, claims: Mapping[str, Any] | None = None) -> str:
    """Return who does something now, empty if nobody has to sign in.

    Outside of a page, `claims` must say what is known of the person.

    Raises:
        AccessError: The person is not signed in, or has a lower role than the action needs.
        ConfigError: See `settings`.
    """
    allowed = settings()
    if allowed is None:
        return ""
    if claims is None:
        claims = st.user.to_dict()
    role = role_of(claims, allowed) if claims.get("is_logged_in") is True else None
    if role is None or ROLES.index(role) < ROLES.index(ACTIONS[action]):
        who = f"{claims.get('email')} is a {role}" if role else "you are not signed in"
        raise AccessError(
            f"to {action} needs the role {ACTIONS[action]}, but {who}; ask the person who runs "
            "this dashboard"
        )
    return str(claims["email"])


def may(action: Action) -> bool:
    try:
        authorize(action)
    except AccessError:
        return False
    return True


def person() -> str:
    """Return the address of the signed-in person, empty if nobody has to sign in."""
    return str(st.user.get("email") or "") if is_configured() else ""


def is_configured() -> bool:
    return settings() is not None
