"""Sign-in: the page of people who have not signed in, and the name under which things are saved."""

import streamlit as st

from clew.errors import ConfigError
from clew.ui import access
from clew.ui.components import markup, states

ROLES_HELP = (
    "A reader reads. A reviewer also asks, uploads and reviews. A promoter also promotes, rolls "
    "back and trains."
)


def name_box() -> str:
    """Show the name under which things are saved, or let a person give one; return the name."""
    if found := access.person():
        st.caption(f"Saved as {markup.markdown(found)}")
        return found
    return st.text_input(
        "Your name",
        key="reviewer",
        persist_state="session",
        help="Saved with your entries, so that others can ask you.",
    ).strip()


def require() -> None:
    """Stop the page unless nobody has to sign in, or the person has signed in and has a role."""
    try:
        allowed = access.settings()
    except ConfigError as error:
        states.problem("The dashboard", str(error))
        st.stop()
    if allowed is None:
        return
    if not st.user.get("is_logged_in"):
        st.title("Clew", anchor=False)
        st.write("Reviews and promotions are recorded with your e-mail address.")
        st.button("Sign in", type="primary", on_click=st.login)
        st.stop()
    role = access.role_of(st.user.to_dict(), allowed)
    if role is None:
        st.title("Clew", anchor=False)
        who = markup.markdown(access.person() or "You")
        st.error(f"{who} may not use this dashboard; ask the person who runs it.")
        st.button("Sign out", on_click=st.logout)
        st.stop()
    with st.sidebar:
        st.caption(f"Signed in as {markup.markdown(access.person())}, {role}", help=ROLES_HELP)
        st.button("Sign out", on_click=st.logout)
