"""Sign-in: people sign in to the dashboard by OpenID Connect, if the secrets have `[auth]`.

Without it nobody signs in, and the dashboard accepts connections only from its own machine.
"""

import streamlit as st

from clew.ui.components import markup


def person() -> str:
    """Return the e-mail address of the signed-in person, empty if nobody has to sign in."""
    return str(st.user.get("email") or st.user.get("sub") or "") if is_configured() else ""


def name_box() -> str:
    """Show the name under which things are saved, or let a person give one; return the name."""
    if found := person():
        st.caption(f"Saved as {markup.markdown(found)}")
        return found
    return st.text_input(
        "Your name",
        key="reviewer",
        persist_state="session",
        help="Saved with your entries, so that others can ask you.",
    ).strip()


def require() -> None:
    """Stop the page unless the person is signed in and, if `clew.people` is set, listed in it."""
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
    return "is_logged_in" in st.user


def _is_welcome(email: str) -> bool:
    if not email or st.user.get("email_verified") is False:
        return False
    people = [str(entry).lower() for entry in st.secrets.get("clew", {}).get("people", [])]
    email = email.lower()
    return not people or email in people or f"@{email.rpartition('@')[2]}" in people
