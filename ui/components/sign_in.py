"""Who is at the dashboard: people sign in by OpenID Connect, where the secrets have `[auth]`.

Without it nobody signs in: the dashboard then listens to its own machine alone.
"""

import streamlit as st

from clew.ui.components import markup


def person() -> str:
    """Return the e-mail of who is signed in; empty where nobody has to."""
    return str(st.user.get("email") or st.user.get("sub") or "") if is_configured() else ""


def name_box() -> str:
    """Say under which name things are saved, or let a person give one; return it."""
    if found := person():
        st.caption(f"Saved as {markup.markdown(found)}")
        return found
    return st.text_input(
        "Your name",
        key="reviewer",
        persist_state="session",
        help="Kept with what you save, so that others can ask you.",
    ).strip()


def require() -> None:
    """Let only people pass who are signed in, and whom the secrets' `clew.people` name if given."""
    if not is_configured():
        return
    if not st.user.get("is_logged_in"):
        st.title("Clew", anchor=False)
        st.write("Reviews and promotions are recorded with your e-mail address.")
        st.button("Sign in", type="primary", on_click=st.login)
        st.stop()
    if not _is_welcome(person()):
        st.title("Clew", anchor=False)
        who = markup.markdown(person() or "You")
        st.error(f"{who} may not use this dashboard; ask the person who runs it.")
        st.button("Sign out", on_click=st.logout)
        st.stop()
    with st.sidebar:
        st.caption(f"Signed in as {markup.markdown(person())}")
        st.button("Sign out", on_click=st.logout)


def is_configured() -> bool:
    """Whether people have to sign in."""
    return "is_logged_in" in st.user


def _is_welcome(email: str) -> bool:
    """Whether an address is in `clew.people`, or ends with one of its `@domain`s; if given."""
    if not email or st.user.get("email_verified") is False:
        return False
    people = [str(entry).lower() for entry in st.secrets.get("clew", {}).get("people", [])]
    email = email.lower()
    return not people or email in people or f"@{email.rpartition('@')[2]}" in people
