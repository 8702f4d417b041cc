"""Saved views of the page Compare: a link to each, and a form that saves what the page shows.

An open view's name is in the address under `view`, next to its values. Only an open view can be
changed, renamed or deleted, so that nobody replaces a view that they have not seen.
"""

from collections.abc import Sequence

import streamlit as st

from clew.errors import ClewError
from clew.ui import access
from clew.ui.components import address, markup, sign_in, states
from clew.ui.data.comparison import SavedView, SavedViews, delete_view, save_view
from clew.ui.data.runs import RunRecord

# A plain link: Streamlit's own link to the open page would not change its widgets.
_ITEM = (
    '<li class="clew-ids"><a href="?view={name}">{name}</a> '
    '<span class="clew-muted clew-small">{origin}</span></li>'
)


def opened(found: SavedViews) -> SavedView | None:
    """Return the view that the address names; if the address has no runs, put its values there.

    Warn if no view has that name, or if tags in the store are no valid views.
    """
    for problem in found.problems:
        states.warning(f"A saved view is left out: {problem}")
    name = address.text("view")
    view = found.find(name) if name else None
    if name and view is None:
        states.warning(f"No view {name} is in the store; it may have been renamed or deleted.")
    elif view is not None and not address.text("runs"):
        st.query_params.from_dict(view.parameters | {"view": view.name})
        st.rerun()
    return view


def missing_runs(view: SavedView | None, wanted: Sequence[str], found: int) -> None:
    """Show in one line how many of the wanted runs are gone."""
    if found == len(wanted):
        return
    of = f"View {view.name}: " if view is not None else ""
    if not found:
        states.warning(f"{of}none of its {len(wanted)} runs is in the store any more.")
        return
    gone = len(wanted) - found
    states.warning(
        f"{of}{gone} of {len(wanted)} runs are not in the store any more; they are left out."
    )


def bar(found: SavedViews, view: SavedView | None, runs: Sequence[RunRecord]) -> None:
    """Show the saved views, and the form to save, rename or delete the open one."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if found.views:
            with st.popover(f"Saved views · {len(found.views)}"):
                items = [
                    markup.fill(_ITEM, name=each.name, origin=_origin(each)) for each in found.views
                ]
                markup.show_list(items)
        if runs or view is not None:
            with st.popover("Save this view" if view is None else f"View {view.name}"):
                _form(view)
        if view is not None:
            states.note(f"View {view.name}, saved {_origin(view)}")


def _origin(view: SavedView) -> str:
    return f"by {view.person or 'somebody'}, {markup.minute(view.created)}"


def _form(view: SavedView | None) -> None:
    current = "" if view is None else view.name
    with st.form(f"view-{current}", border=False):
        name = st.text_input(
            "Name",
            value=current,
            key=f"view-name-{current}",
            max_chars=60,
            help="Letters, digits, and - _ . between them. Everybody who uses this store sees it.",
        )
        instead = view is not None and st.checkbox(
            f"Instead of {markup.markdown(current)}",
            value=True,
            key=f"view-instead-{current}",
            help="With the same name the view is changed, with another it is renamed. If off, a "
            "second view is saved.",
        )
        person = sign_in.name_box()
        if st.form_submit_button(
            "Save", key="view-save", type="primary", disabled=not access.may("save views")
        ):
            _save(name.strip(), person, current if instead else "")
    if view is not None and st.button(
        "Delete it", key="view-delete", disabled=not access.may("save views")
    ):
        try:
            delete_view(view.name)
        except ClewError as error:
            states.problem("The view", str(error), done="deleted")
            return
        address.write("view", None)
        st.rerun()


def _save(name: str, person: str, replaces: str) -> None:
    shown = {key: value for key, value in st.query_params.to_dict().items() if key != "view"}
    try:
        save_view(name, shown, person, replaces=replaces)
    except ClewError as error:
        states.problem("The view", str(error), done="saved")
        return
    address.write("view", name)
    st.rerun()
