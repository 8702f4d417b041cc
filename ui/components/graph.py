"""The graph of an explanation: the test triple and its strongest training facts.

It is drawn like the picture of a report, for a wide and for a narrow place. `assets/graph.js` shows
the fitting one and tells what was clicked: a line selects its fact, an entity shows its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
import streamlit as st
from markupsafe import Markup, escape
from streamlit.column_config import NumberColumn, TextColumn

from clew.biolink import page_of
from clew.runs.influence_forms import Form
from clew.runs.reading import picture
from clew.runs.reading.facts import FactPath, Paths
from clew.ui.components import basics, tables

HEIGHT = 420
MAX_EDGES = 60
WIDTHS = (640, 340)
LETTERS = 0.55
"""How wide a letter of the pages' font is, in font sizes."""
NUM_STRONGEST = 3
_MARK = '<span><b style="color:{colour}" aria-hidden="true">{mark}</b> {kind}</span>'
_LINK = '<a href="{page}" target="_blank" rel="noreferrer">{text}</a>'
_CARD = (
    '<div class="clew-card clew-small"><b>{name}</b> <span class="clew-muted">{about}</span>'
    "<p>In {number} of the drawn facts. The strongest:</p>{facts}</div>"
)
_FILES = Path(__file__).parent.parent / "assets"
_component = st.components.v2.component(
    "clew_graph",
    html=(_FILES / "graph.html").read_text("utf-8"),
    js=(_FILES / "graph.js").read_text("utf-8"),
    isolate_styles=False,
)


def show(
    test: pd.Series,
    facts: pd.DataFrame,
    *,
    column: str,
    selected: Collection[int],
    kinds: Mapping[str, str],
    key: str,
    take: Callable[[int | None], None],
    alt: str,
) -> None:
    """Show the picture, a legend for the kinds of entities, and the entity that was clicked.

    The strongest of the facts come first. `column` sets the width of their lines; `selected` has
    the places of those that stand out. `take` is called with the place of the fact whose line is
    clicked, or None for anything but an entity.
    """
    facts = facts.head(MAX_EDGES)

    def choose() -> None:
        taken = st.session_state[key].taken or {}
        basics.write_address("entity", taken.get("entity"))
        if "entity" not in taken:
            take(int(taken["fact"]) if "fact" in taken else None)

    draw = partial(picture.draw, test, facts.assign(influence=facts[column]), kinds)
    drawn = [draw(width=w, height=HEIGHT, letters=LETTERS, selected=selected) for w in WIDTHS]
    labels = picture.node_labels(test, facts)
    lines = [
        (picture.ANSWER, "┅", str(test["relation"]).replace("_", " ") + "?"),
        (picture.FOR, "━", "made it more likely"),
        (picture.AGAINST, "━", "less likely"),
    ]
    lines += [(look.colour, look.mark, kind) for kind, look in picture.looks(kinds, labels).items()]
    marks = [
        basics.fill(_MARK, colour=colour, mark=mark, kind=kind) for colour, mark, kind in lines
    ]
    data = {"drawn": basics.join(drawn), "legend": basics.join(marks, " ")}
    _component(data=data | {"alt": alt, "height": HEIGHT}, key=key, on_taken_change=choose)
    if (entity := basics.address("entity")) in labels:
        _entity(entity, labels[entity], facts, column, kinds.get(entity, ""))


def identified(key: str, name: str, kind: str) -> Markup:
    """Return an entity's identifier, a link if its database is known, and its kind."""
    page = page_of(key)
    shown = basics.fill(_LINK, page=page, text=key) if page else escape(key)
    parts = [shown] if page or key != name else []
    return basics.join([*parts, escape(kind)] if kind else parts, ", ")


def _entity(key: str, name: str, facts: pd.DataFrame, column: str, kind: str) -> None:
    """Show an entity's kind and identifier, and its strongest facts among those drawn."""
    own = facts[(facts["head_id"].astype(str) == key) | (facts["tail_id"].astype(str) == key)]
    lines = [
        basics.fill(
            "<p>{sign} {triple}</p>",
            sign=basics.sign_symbol(fact[column]),
            triple=basics.triple(fact["head"], fact["relation"], fact["tail"]),
        )
        for _, fact in own.head(NUM_STRONGEST).iterrows()
    ]
    basics.show(
        _CARD,
        name=name,
        about=identified(key, name, kind),
        number=len(own),
        facts=basics.join(lines),
    )


NUM_DRAWN = 8
"""How many paths are drawn; a selected path further down is drawn too."""


def show_paths(
    test: pd.Series,
    found: Paths,
    *,
    key: str,
    kinds: Mapping[str, str],
    form: Form,
) -> None:
    """Show paths as a picture next to their sentences; a click on either selects one."""
    paths = found.found
    if not paths:
        basics.note(found.searched)
        return
    place = basics.address_number("path") or 0
    place = place if place < len(paths) else 0
    drawn = [*paths[:NUM_DRAWN], *([paths[place]] if place >= NUM_DRAWN else [])]

    def take(fact: int | None) -> None:
        if fact is not None:
            through = (number for number, path in enumerate(paths) if fact in path.ranks)
            basics.write_address("path", next(through))

    left, right = basics.columns([1.3, 1], key="paths")
    with left:
        show(
            test,
            found.facts_of(drawn),
            column="influence",
            selected=paths[place].ranks,
            kinds=kinds,
            key=f"{key}-paths",
            take=take,
            alt="Graph of the paths of training facts between the two ends of the test triple",
        )
    with right:
        _path_table(paths, place, form, key=f"{key}-sentences-{place}")
        basics.note(found.searched.removesuffix(":") + ".")


def _path_table(paths: Sequence[FactPath], place: int, form: Form, *, key: str) -> None:
    total = f"{form.heading} of its facts together."
    tables.tick_one(
        {
            "Influence": (
                [path.influence for path in paths],
                NumberColumn(format="%+.4g", width=80, help=total),
            ),
            "Path": (
                [path.sentence for path in paths],
                TextColumn(
                    width="large", help="Its facts, starting at the head, each as in the data."
                ),
            ),
        },
        range(len(paths)),
        key=key,
        chosen=place,
        take=lambda ticked: basics.write_address("path", ticked or 0),
        alt="Paths between the two ends, the most specific first",
        most=HEIGHT - 90,
    )
    steps = (basics.markdown(step) for step in paths[place].steps)
    st.markdown("\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)))
